"""Inputs of a call: by position or by name, one sample or a batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from naiad.bind.client.exceptions import PyTritonClientModelDoesntSupportBatchingError, PyTritonClientValueError
from naiad.bind.model_config.triton_model_config import TritonModelConfig
from naiad.core.datatype import MASKED
from naiad.core.parameters import ParameterValue
from naiad.core.tensor import Array, has_masked


def named_inputs(
    config: TritonModelConfig, by_position: Sequence[Array], by_name: Mapping[str, Array], *, is_sample: bool
) -> dict[str, Array]:
    """Return the inputs of a request by name; a sample for a model that batches becomes a batch of one row.

    Raises PyTritonClientValueError for both kinds of arguments or none, and for arrays that cannot be sent,
    PyTritonClientModelDoesntSupportBatchingError for a batch that the model does not take.
    """
    if not is_sample and not config.batching:
        raise PyTritonClientModelDoesntSupportBatchingError(
            f"Model {config.model_name} doesn't support batching - use infer_sample method instead"
        )
    inputs = dict(by_name)
    if by_position:
        names = [spec.name for spec in config.inputs]
        if len(by_position) > len(names):
            raise PyTritonClientValueError(
                f"got {len(by_position)} inputs, expected at most {len(names)}: {', '.join(names)}"
            )
        inputs = dict(zip(names, by_position, strict=False))
    arrays = {name: _checked(name, value) for name, value in inputs.items()}
    return (
        {name: array[np.newaxis, ...] for name, array in arrays.items()} if is_sample and config.batching else arrays
    )


def check_arguments(by_position: Sequence[Array], by_name: Mapping[str, Array]) -> None:
    """Raise PyTritonClientValueError unless inputs are given either by position or by name."""
    if not by_position and not by_name:
        raise PyTritonClientValueError("Provide input data")
    if by_position and by_name:
        raise PyTritonClientValueError("Use either positional either keyword method arguments convention")


def _checked(name: str, value: Any) -> Array:
    if not isinstance(value, np.ndarray):
        raise PyTritonClientValueError(
            f"input '{name}' is of type {type(value).__name__}, expected a numpy array: np.array(...), or its "
            "to_numpy()"
        )
    if has_masked(value):
        raise PyTritonClientValueError(f"input '{name}' {MASKED}")
    if value.dtype.kind in "OT":
        kinds = set(map(type, value.ravel().tolist())) - {bytes, str, np.bytes_, np.str_}
        if kinds:
            raise PyTritonClientValueError(
                f"input '{name}' has objects of type {', '.join(sorted(kind.__name__ for kind in kinds))}, expected "
                "bytes or str"
            )
    return value


def checked_values(values: Mapping[str, ParameterValue] | None) -> dict[str, ParameterValue]:
    """Return parameters or headers. Raises PyTritonClientValueError for a wrong type."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise PyTritonClientValueError("Parameters and headers must be a dictionary")
    for key, value in values.items():
        if not isinstance(key, str):
            raise PyTritonClientValueError(f"Parameter/header key must be a string, got {key!r}")
        if not isinstance(value, str | int | bool):
            raise PyTritonClientValueError(
                f"Parameter/header value must be a string, integer or boolean; '{key}' is {value!r}"
            )
    return dict(values)
