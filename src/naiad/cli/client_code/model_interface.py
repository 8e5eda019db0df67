"""What a generated client needs of a model: its tensors, with names that the language allows."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import BY_CONFIG_NUMBER, DataType
from naiad.core.errors import excerpt

_OTHER = re.compile(r"[^0-9A-Za-z_]")
_UNNAMED = "tensor"


class NoClientError(Exception):
    """No client can be written for a model; the message has the reason."""


@dataclass(frozen=True, slots=True)
class TensorField:
    """A tensor of the model."""

    identifier: str
    name: str
    """On the wire."""
    datatype: DataType
    shape: Sequence[int]
    """With the batch dimension; -1 is any size."""
    is_optional: bool = False

    @property
    def description(self) -> str:
        """Name, datatype and shape in one printable line."""
        shape = ", ".join("any" if size < 0 else str(size) for size in self.shape)
        return f"{excerpt(self.name)}: {self.datatype.value}, shape [{shape}]"


@dataclass(frozen=True, slots=True)
class ModelInterface:
    """A model with its inputs and outputs."""

    name: str
    inputs: Sequence[TensorField]
    outputs: Sequence[TensorField]
    is_decoupled: bool
    """It sends any number of responses."""
    takes_sequences: bool
    """Each request names the sequence to which it belongs."""


@dataclass(frozen=True, slots=True)
class Naming:
    """Which identifiers a language has for fields."""

    reserved: Collection[str]
    is_lower: bool = False
    """Capital letters become small ones."""


def read_interface(name: str, config: ModelConfig, naming: Naming) -> ModelInterface:
    """Return the interface of a model. Raises NoClientError if its configuration names no tensors."""
    is_decoupled = config.model_transaction_policy.decoupled
    takes_sequences = config.HasField("sequence_batching") and not config.sequence_batching.iterative_sequence
    if is_decoupled and takes_sequences:
        raise NoClientError(
            f"model '{excerpt(name)}' is decoupled and takes sequences: no client is written for both; use "
            "tritonclient's streams"
        )
    if not (config.input and config.output):
        raise NoClientError(
            f"the configuration of model '{excerpt(name)}' names no inputs and outputs; ask a server with --url, "
            "which reads them from the model's file"
        )
    batch = (-1,) if config.max_batch_size > 0 else ()
    input_names = identifiers((each.name for each in config.input), naming)
    output_names = identifiers((each.name for each in config.output), naming)
    inputs = [
        TensorField(own, each.name, BY_CONFIG_NUMBER[each.data_type], (*batch, *each.dims), each.optional)
        for own, each in zip(input_names, config.input, strict=True)
    ]
    outputs = [
        TensorField(own, each.name, BY_CONFIG_NUMBER[each.data_type], (*batch, *each.dims))
        for own, each in zip(output_names, config.output, strict=True)
    ]
    return ModelInterface(name, inputs, outputs, is_decoupled, takes_sequences)


def identifiers(names: Iterable[str], naming: Naming) -> Sequence[str]:
    """Return an identifier for each name, all of them different: the name itself if it is one.

    Other letters become `_`; words of the language get a `_` behind them, and a name that is taken gets a number.
    """
    found: dict[str, None] = {}
    for name in names:
        own = _OTHER.sub("_", name.lower() if naming.is_lower else name)
        # No underscores in front: Python gives them a meaning in classes.
        own = own.lstrip("_") or _UNNAMED
        if own[0].isdigit():
            own = f"{_UNNAMED}_{own}"
        if own in naming.reserved:
            own += "_"
        unique, number = own, 1
        while unique in found:
            number += 1
            unique = f"{own}_{number}"
        found[unique] = None
    return list(found)
