"""What an estimator returns: the tensors of its methods, found out with one row."""

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from naiad.backend.framework import Parameters, reason
from naiad.backend.signature import TensorSignature
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import BY_CONFIG_NUMBER, STRING_KINDS, DataType, from_numpy
from naiad.core.errors import InferError, internal, invalid_argument
from naiad.core.tensor import Array

_log = logging.getLogger(__name__)

METHODS = ("predict", "predict_proba", "transform", "decision_function")
"""Methods of estimators that a model can call."""


@dataclass(frozen=True, slots=True)
class MethodCall:
    """The method behind an output, and the target where each target of the estimator has an output of its own."""

    method: str
    target: int | None = None


_FLOATS = (DataType.FP16, DataType.FP32, DataType.FP64)


def plan_outputs(config: ModelConfig, estimator: Any, parameters: Parameters) -> dict[str, MethodCall]:
    """Return what each output calls: by the outputs of the configuration and the parameter `method`.

    Without both, a classifier has labels and probabilities. Targets whose numbers of classes differ have an output
    each for their probabilities, `predict_proba_0` and so on.

    Raises InferError(INVALID_ARG) for a method that is unknown or that the estimator does not have.
    """
    available = [name for name in METHODS if hasattr(estimator, name)]
    text = parameters.text("method")
    defaults = available[:2] if available[:2] == list(METHODS[:2]) else available[:1]
    methods = [name.strip() for name in text.split(",")] if text else defaults
    if not methods:
        raise invalid_argument(
            f"model '{config.name}': the {type(estimator).__name__} has none of the methods {', '.join(METHODS)}; "
            f"the file must hold a fitted estimator{_estimators_in(estimator)}"
        )
    names = [output.name for output in config.output]
    if names and {_base(name) for name in names} <= set(METHODS):
        methods = list(dict.fromkeys(_base(name) for name in names))
    elif not text and len(names) == 1:
        methods = methods[:1]
    for method in methods:
        if method not in METHODS:
            raise parameters.error("method", f"one or more of {', '.join(METHODS)}, separated by commas")
        if method not in available:
            raise invalid_argument(
                f"model '{config.name}': the {type(estimator).__name__} has no method '{method}'; it has "
                f"{', '.join(available)}"
            )
    calls = {name: each for method in methods for name, each in _calls(estimator, method).items()}
    if names and set(names) <= calls.keys():
        return {name: calls[name] for name in names}
    if names and len(names) != len(calls):
        raise invalid_argument(
            f"model '{config.name}': {len(names)} outputs ({', '.join(names)}) and {len(calls)} results of methods "
            f"({', '.join(calls)}); name in the parameter 'method' a method for each output, in their order"
        )
    return dict(zip(names or calls, calls.values(), strict=True))


def _estimators_in(value: Any) -> str:
    """Return where a list or dictionary has estimators, to be saved by themselves."""
    entries = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    found = [repr(name) for name, each in entries if hasattr(each, METHODS[0])][:3]
    return f": save its entry {', '.join(found)} by itself, or all steps as one Pipeline" if found else ""


def _base(name: str) -> str:
    """Return the method of an output that is called after it, `predict_proba` for `predict_proba_1`."""
    method, _, target = name.rpartition("_")
    return method if method in METHODS and target.isdecimal() else name


def _calls(estimator: Any, method: str) -> dict[str, MethodCall]:
    counts = class_counts(estimator) if method == "predict_proba" else ()
    if len(set(counts)) <= 1:
        return {method: MethodCall(method)}
    return {f"{method}_{target}": MethodCall(method, target) for target in range(len(counts))}


def class_counts(estimator: Any) -> Sequence[int]:
    """Return the number of classes of each target of a classifier with several; empty for other estimators."""
    classes = getattr(estimator, "classes_", None)
    if not isinstance(classes, list) or not all(np.ndim(each) == 1 for each in classes):
        return ()
    return [len(each) for each in classes]


def class_labels(estimator: Any, calls: Mapping[str, MethodCall]) -> dict[str, list[str]]:
    """Return the labels of the probabilities of a classifier, by output."""
    classes = getattr(estimator, "classes_", None)
    if classes is None:
        return {}
    found: dict[str, list[str]] = {}
    for name, each in calls.items():
        if each.method != "predict_proba":
            continue
        if each.target is not None:
            found[name] = [str(label) for label in classes[each.target]]
        elif isinstance(classes, np.ndarray) and classes.ndim == 1:
            found[name] = [str(label) for label in classes.tolist()]
    return found


def call(model: str, estimator: Any, method: str, table: Any) -> Any:
    """Return the result of a method. Raises InferError(INVALID_ARG) for values that the estimator does not accept."""
    try:
        return getattr(estimator, method)(table)
    except MemoryError:
        raise
    except Exception as error:  # the estimators of other packages have exceptions of their own
        raise invalid_argument(
            f"model '{model}': the estimator does not accept these values, {method} failed: {reason(error)}"
        ) from error


def to_tensor(result: Any, target: int | None = None) -> Array:
    """Return the result of a method as [n, ...]; text and dates as an object array of str or bytes."""
    if target is not None:
        result = result[target]
    if isinstance(result, list):
        # One array for each of several targets.
        result = np.stack(result, axis=1)
    elif hasattr(result, "toarray"):
        result = result.toarray()
    array = _array(result)
    if array.dtype.kind == "M":
        array = array.astype(str)
    if array.dtype.kind in STRING_KINDS:
        array = _texts(array.astype(object))
    return array[:, None] if array.ndim == 1 else array


def _array(result: Any) -> Array:
    """Return a table or an array as one array: numbers of pandas with missing values as FP64, with NaN."""
    array = np.asarray(result)
    if array.dtype == object and hasattr(result, "to_numpy"):
        kinds = {getattr(dtype, "kind", "O") for dtype in np.atleast_1d(getattr(result, "dtypes", result))}
        if kinds <= set("biuf"):
            return np.asarray(result.to_numpy(np.float64, na_value=np.nan))
    return array


def _texts(array: Array) -> Array:
    texts = np.empty(array.shape, object)
    texts.reshape(-1)[:] = [each if isinstance(each, bytes) else str(each) for each in array.ravel().tolist()]
    return texts


def to_datatype(model: str, name: str, array: Array, dtype: "np.dtype[Any]") -> Array:
    """Return an output in the dtype of its datatype. Raises InferError(INTERNAL) for values that it cannot hold."""
    if dtype.kind in "iub" and array.dtype.kind == "f" and not np.isfinite(array).all():
        raise internal(
            f"model '{model}': output '{name}' has values that are missing or not finite, which {dtype} lacks; have "
            "the last step of the estimator return float64"
        )
    converted = array.astype(dtype, copy=False)
    is_narrowed = converted is not array and dtype.kind in "iu" and array.dtype.kind in "iuf"
    if is_narrowed and not np.array_equal(converted, array):
        raise internal(
            f"model '{model}': output '{name}' has values of {array.dtype} that {dtype} lacks: declare the output "
            "with the datatype of the estimator's result"
        )
    return converted


def read_outputs(
    config: ModelConfig, estimator: Any, calls: Mapping[str, MethodCall], example: Any
) -> dict[str, TensorSignature]:
    """Return the tensors of the methods, by calling them with one row.

    FP16, FP32 and FP64 of the configuration stand for each other. Without a result the configuration must be
    complete. Raises InferError(INVALID_ARG).
    """
    kinds = {tensor.name: BY_CONFIG_NUMBER.get(tensor.data_type) for tensor in config.output}
    dims: Mapping[str, Sequence[int]] = {tensor.name: tensor.dims for tensor in config.output}
    found: dict[str, TensorSignature] = {}
    for name, each in calls.items():
        configured = kinds.get(name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                array = to_tensor(call(config.name, estimator, each.method, example), each.target)
        except InferError as error:
            if configured is None or not dims.get(name):
                raise invalid_argument(
                    f"{error.message}. So its outputs are not known: the row for it has zeros, and the first "
                    "category of each column (text, truth values and dates were tried too); write 'input' and "
                    "'output' in config.pbtxt"
                ) from error
            _log.info("%s, with the first row that was tried; outputs are not checked", error.message)
            found[name] = TensorSignature(name, configured, (None, *(dim if dim > 0 else None for dim in dims[name])))
            continue
        datatype = DataType.BYTES if array.dtype == object else from_numpy(array.dtype)
        if configured in _FLOATS and datatype in _FLOATS:
            datatype = configured
        found[name] = TensorSignature(name, datatype, (None, *array.shape[1:]), str(array.dtype))
    return found
