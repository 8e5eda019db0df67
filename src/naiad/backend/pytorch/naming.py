"""Which configured input is which argument of a program, and which output is which result.

Triton's rules, in this order, for all inputs of a model together:

1. Every name is an argument of `forward` (of archives also `ARGS[0]`, `KWARGS[mask]`, `ARGS[1][key]`).
2. Every name ends with `__` and the number of the argument: `INPUT__0`.
3. The order of the configuration is the order of the arguments.

Outputs follow rule 2 or 3. Archives also have the names `RESULT`, `RESULT[0]` and `RESULT[key]`, and the keys of a
dictionary.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from naiad.backend.signature import TensorSignature
from naiad.config.execution_tensors import execution_config
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import InferError, invalid_argument

REQUIRED: Any = object()
"""The default of an argument without one."""


@dataclass(frozen=True, slots=True)
class Slot:
    """An argument of a program, or one of its results."""

    names: Sequence[str]
    """Names that a configuration may use for it, the preferred one first; empty where it has a number only."""
    default: Any = REQUIRED
    """Value of an argument that the configuration leaves out."""
    is_text: bool = False
    """It is a list of strings."""
    tensor: TensorSignature | None = field(default=None, compare=False)
    """Datatype and shape, where the file has them."""


def bind_inputs(config: ModelConfig, slots: Sequence[Slot]) -> dict[str, int]:
    """Return the position of the argument of each input that the model executes.

    Raises InferError(INVALID_ARG) for too few or too many inputs, and for two inputs of one argument.
    """
    names = [tensor.name for tensor in execution_config(config).input]
    names += [name for batch_input in config.batch_input for name in batch_input.target_name]
    positions = match_names(config, "input", names, slots)
    required = {position for position, slot in enumerate(slots) if slot.default is REQUIRED}
    if not required <= set(positions.values()):
        raise _wrong_count(config, names, slots)
    for tensor in config.input:
        if tensor.optional and positions[tensor.name] in required:
            raise invalid_argument(
                f"unable to load model '{config.name}', input '{tensor.name}' is 'optional' in the model "
                "configuration, but the argument of forward has no default; remove 'optional', or give it one"
            )
    return positions


def bind_outputs(config: ModelConfig, slots: Sequence[Slot] | None) -> dict[str, int]:
    """Return the position of the result of each output; `slots` is None where their number is not known.

    Raises InferError(INVALID_ARG) for an output that is not among the results.
    """
    return match_names(config, "output", [tensor.name for tensor in execution_config(config).output], slots)


def match_names(config: ModelConfig, kind: str, names: Sequence[str], slots: Sequence[Slot] | None) -> dict[str, int]:
    """Return the position of each name by the rules above. Raises InferError(INVALID_ARG) for one that has none."""
    known = {alias: position for position, slot in enumerate(slots or ()) for alias in slot.names}
    if known and all(name in known for name in names):
        positions = {name: known[name] for name in names}
    elif all(re.search(r"__\d+$", name) for name in names):
        # Triton: the first "__" begins the number.
        positions = {name: known.get(name, int(name.rpartition("__")[2])) for name in names}
    else:
        positions = {name: position for position, name in enumerate(names)}
    for name, position in positions.items():
        if slots is not None and position >= len(slots):
            raise _no_such_slot(config, kind, names, name, position, slots)
    if kind == "input" and len(set(positions.values())) < len(positions):
        raise invalid_argument(
            f"unable to load model '{config.name}', several inputs are one argument of forward: "
            f"{', '.join(f'{name} is number {position}' for name, position in positions.items())}; use each once"
        )
    return positions


def _no_such_slot(
    config: ModelConfig, kind: str, names: Sequence[str], name: str, position: int, slots: Sequence[Slot]
) -> InferError:
    if kind == "input":
        return _wrong_count(config, names, slots)
    # Triton: its text, when the model has run.
    return invalid_argument(
        f"The output {name} in the model configuration refers to an output index which doesn't exist. This model has "
        f"{len(slots)} outputs: model '{config.name}' has no output number {position}; remove it, or name outputs "
        f"{_listed(slots, 'OUTPUT')}"
    )


def _wrong_count(config: ModelConfig, names: Sequence[str], slots: Sequence[Slot]) -> InferError:
    return invalid_argument(
        f"unable to load model '{config.name}', configuration expects {len(names)} inputs, model provides "
        f"{len(slots)}: name inputs by the arguments of forward, or by number: {_listed(slots, 'INPUT')}"
    )


def _listed(slots: Sequence[Slot], prefix: str) -> str:
    return ", ".join(
        f"{prefix}__{position}" + (f" ({slot.names[0]})" if slot.names else "") for position, slot in enumerate(slots)
    )


def check_texts(config: ModelConfig, positions: Mapping[str, int], slots: Sequence[Slot]) -> None:
    """Raise InferError(INVALID_ARG) for lists of strings with several dimensions, or of another datatype."""
    for tensor in config.input:
        is_text = slots[positions[tensor.name]].is_text
        if is_text != (tensor.data_type == DataType.BYTES.config_number):
            expected = "TYPE_STRING" if is_text else "a datatype of tensors"
            raise invalid_argument(
                f"unable to load model '{config.name}', input '{tensor.name}' is a "
                f"{'List[str]' if is_text else 'Tensor'} in the model; write {expected} as its data_type"
            )
        dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        if is_text and len(dims) + (config.max_batch_size > 0) > 1:
            raise invalid_argument(
                f"Triton only supports 1 dimensional List of String as input for '{tensor.name}' for model "
                f"'{config.name}'; write dims: [-1] and max_batch_size: 0, or dims: [1] and reshape {{ shape: [] }}"
            )


def name_tensors(config: ModelConfig, kind: str, slots: Sequence[Slot]) -> dict[str, TensorSignature]:
    """Return the tensors of slots by the names that a configuration has for them, otherwise by preferred names.

    `kind` is "input" or "output". Raises InferError(INVALID_ARG) for a name that fits no slot.
    """
    names = [tensor.name for tensor in getattr(config, kind)]
    used = {position: name for name, position in match_names(config, kind, names, slots).items()} if names else {}
    tensors = {used.get(place, slot.tensor.name): slot.tensor for place, slot in enumerate(slots) if slot.tensor}
    return {name: replace(tensor, name=name) for name, tensor in tensors.items()}


def configured_tensors(positions: Mapping[str, int], slots: Sequence[Slot]) -> dict[str, TensorSignature]:
    """Return the tensors of the configured names, as far as the file has them."""
    found = {name: slots[position].tensor for name, position in positions.items() if slots}
    return {name: replace(tensor, name=name) for name, tensor in found.items() if tensor is not None}
