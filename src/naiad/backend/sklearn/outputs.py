"""What an estimator returns: the tensors of its methods, found out with one row."""

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from naiad.backend.framework import Parameters, reason
from naiad.backend.signature import TensorSignature
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import BY_CONFIG_NUMBER, DataType, from_numpy
from naiad.core.errors import InferError, invalid_argument
from naiad.core.tensor import Array

_log = logging.getLogger(__name__)

METHODS = ("predict", "predict_proba", "transform", "decision_function")
"""Methods of estimators that a model can call."""

_FLOATS = (DataType.FP16, DataType.FP32, DataType.FP64)


def plan_outputs(config: ModelConfig, estimator: Any, parameters: Parameters) -> dict[str, str]:
    """Return output name to method: by the outputs of the configuration and the parameter `method`.

    Raises InferError(INVALID_ARG) for a method that is unknown or that the estimator does not have.
    """
    available = [name for name in METHODS if hasattr(estimator, name)]
    text = parameters.text("method")
    methods = [name.strip() for name in text.split(",")] if text else available[:1]
    if not methods:
        raise invalid_argument(
            f"model '{config.name}': the {type(estimator).__name__} has none of the methods {', '.join(METHODS)}; "
            "the file must hold a fitted estimator"
        )
    names = [output.name for output in config.output]
    if names and set(names) <= set(METHODS):
        methods = names
    for method in methods:
        if method not in METHODS:
            raise parameters.error("method", f"one or more of {', '.join(METHODS)}, separated by commas")
        if method not in available:
            raise invalid_argument(
                f"model '{config.name}': the {type(estimator).__name__} has no method '{method}'; it has "
                f"{', '.join(available)}"
            )
    if names and len(names) != len(methods):
        raise invalid_argument(
            f"model '{config.name}': {len(names)} outputs ({', '.join(names)}) and {len(methods)} methods "
            f"({', '.join(methods)}); name in the parameter 'method' a method for each output, in their order"
        )
    return dict(zip(names or methods, methods, strict=True))


def call(model: str, estimator: Any, method: str, table: Any) -> Array:
    """Return the result of a method as [n, ...]; text as an object array of str.

    Raises InferError(INVALID_ARG) for values that the estimator does not accept.
    """
    try:
        result = getattr(estimator, method)(table)
    except (ValueError, TypeError, KeyError) as error:
        raise invalid_argument(f"model '{model}': {method} failed: {reason(error)}") from error
    if isinstance(result, list):
        # One array for each of several targets.
        result = np.stack(result, axis=1)
    elif hasattr(result, "toarray"):
        result = result.toarray()
    array = np.asarray(result)
    if array.dtype.kind in "OUS":
        array = array.astype(str).astype(object)
    return array[:, None] if array.ndim == 1 else array


def read_outputs(
    config: ModelConfig, estimator: Any, methods: Mapping[str, str], example: Any
) -> dict[str, TensorSignature]:
    """Return the tensors of the methods, by calling them with one row.

    FP16, FP32 and FP64 of the configuration stand for each other. Without a result the configuration must be
    complete. Raises InferError(INVALID_ARG).
    """
    kinds = {tensor.name: BY_CONFIG_NUMBER.get(tensor.data_type) for tensor in config.output}
    dims: Mapping[str, Sequence[int]] = {tensor.name: tensor.dims for tensor in config.output}
    found: dict[str, TensorSignature] = {}
    for name, method in methods.items():
        configured = kinds.get(name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                array = call(config.name, estimator, method, example)
        except InferError as error:
            if configured is None or not dims.get(name):
                raise invalid_argument(
                    f"{error.message}. So its outputs are not known: the row for it is made of zeros and of the "
                    "first category of each column; write 'input' and 'output' in config.pbtxt"
                ) from error
            _log.info("%s, with zeros and first categories; outputs are not checked", error.message)
            found[name] = TensorSignature(name, configured, (None, *(dim if dim > 0 else None for dim in dims[name])))
            continue
        datatype = DataType.BYTES if array.dtype == object else from_numpy(array.dtype)
        if configured in _FLOATS and datatype in _FLOATS:
            datatype = configured
        found[name] = TensorSignature(name, datatype, (None, *array.shape[1:]), str(array.dtype))
    return found
