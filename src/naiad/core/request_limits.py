"""How many parts a request may have. Checked while a request is decoded, before Python objects are made of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from naiad.core.errors import excerpt, invalid_argument

MAX_PARAMETERS = 1024
"""Of a request, of an input, of an output."""
MAX_DIMS = 64
"""Dimensions of a tensor; numpy has at most as many."""
MAX_NAME_CHARACTERS = 1024
"""Of the name of a tensor or a parameter."""
MAX_MEMBERS = 1024
"""Members of a JSON object."""
_SPARE_TENSORS = 16
"""So many tensors too many are decoded, so that the answer can name them as Triton does."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How many inputs and outputs a model has; a request cannot have more."""

    model_name: str
    inputs: int
    outputs: int

    def check_inputs(self, count: int) -> None:
        """Raise InferError(INVALID_ARG) for far more inputs than the model has."""
        if count > self.inputs + _SPARE_TENSORS:
            # Triton: the words.
            raise invalid_argument(
                f"expected {self.inputs} inputs but got {count} inputs for model '{self.model_name}'"
            )

    def check_outputs(self, count: int) -> None:
        """Raise InferError(INVALID_ARG) for far more requested outputs than the model has."""
        if count > self.outputs + _SPARE_TENSORS:
            raise invalid_argument(
                f"the request asks for {count} outputs; model '{self.model_name}' has {self.outputs}"
            )

    @property
    def most_tensors(self) -> int:
        """How many inputs and outputs together are decoded at most."""
        return self.inputs + self.outputs + 2 * _SPARE_TENSORS


def unlimited(model_name: str, model_version: str) -> RequestLimits:
    """Return limits for decoders that know no models."""
    return RequestLimits(model_name, 1 << 20, 1 << 20)


LimitsOf: TypeAlias = Callable[[str, str], RequestLimits]
"""Name and version of a model to its limits. Raises InferError for an unknown model."""


def check_parameters(count: int) -> None:
    """Raise InferError(INVALID_ARG) for more parameters than a request may have."""
    if count > MAX_PARAMETERS:
        raise invalid_argument(f"{count} parameters in one place are too many; at most {MAX_PARAMETERS} are allowed")


def check_name(kind: str, name: str) -> None:
    """Raise InferError(INVALID_ARG) for a name that is too long."""
    if len(name) > MAX_NAME_CHARACTERS:
        raise invalid_argument(
            f"the name of {kind} has {len(name)} characters; at most {MAX_NAME_CHARACTERS} are allowed: "
            f"'{excerpt(name)}'"
        )


def check_dims(name: str, count: int) -> None:
    """Raise InferError(INVALID_ARG) for a shape with too many dimensions."""
    if count > MAX_DIMS:
        raise invalid_argument(
            f"the shape of input '{excerpt(name)}' has {count} dimensions; at most {MAX_DIMS} are allowed"
        )
