"""Scalars: tensors without dimensions in the model, which a configuration writes as `dims: [1]`."""

import math
from collections.abc import Mapping

from naiad.backend.signature import ModelSignature
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import invalid_argument
from naiad.core.tensor import Array, Shape


class Scalars:
    """The scalar inputs and outputs of a model that does not batch."""

    def __init__(self, config: ModelConfig, signature: ModelSignature) -> None:
        """Raise InferError(INVALID_ARG) for a scalar in a model that batches: a batch has one value per row."""
        scalars = [tensor.name for tensor in signature.inputs.values() if tensor.dims == ()]
        if scalars and config.max_batch_size > 0:
            raise invalid_argument(
                f"model '{config.name}': input '{scalars[0]}' is a scalar in the model, which has one value for all "
                "rows of a batch; set max_batch_size: 0, or export the model with one value per row"
            )
        self._inputs = scalars
        self._outputs: Mapping[str, Shape] = {
            output.name: tuple(output.dims)
            for output in config.output
            if not config.max_batch_size and not output.HasField("reshape") and math.prod(output.dims) == 1
        }

    @property
    def has_inputs(self) -> bool:
        """Whether an input is a scalar."""
        return bool(self._inputs)

    def to_model(self, inputs: dict[str, Array]) -> None:
        """Remove the dimensions of scalar inputs, in place."""
        for name in self._inputs:
            inputs[name] = inputs[name].reshape(())

    def to_client(self, name: str, array: Array) -> Array:
        """Return an output; a scalar gets the dimensions of the configuration."""
        return array.reshape(self._outputs[name]) if array.ndim == 0 and name in self._outputs else array
