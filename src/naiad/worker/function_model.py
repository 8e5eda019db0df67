"""A plain function `predict` as a model: its arguments are the inputs, its result is the outputs.

    def predict(x: np.ndarray, temperature: float = 1.0) -> np.ndarray: ...

Annotations say what a tensor is: an array is all rows of a request, a list the values of a column, one for each row,
and a function of plain values (`str`, `int`, `float`, `bool`) is called for each row. What the annotations leave
open, such as the names in a dictionary, shows one call with a row of zeros at load.
"""

from __future__ import annotations

import collections.abc
import inspect
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from naiad.worker.api import pb_utils
from naiad.worker.api.failure import text_of
from naiad.worker.api.tensor import conversion_hint, plain_array

FUNCTION = "predict"
MAX_BATCH_SIZE = 16384
_SCALARS = {str: "TYPE_STRING", bytes: "TYPE_STRING", int: "TYPE_INT64", float: "TYPE_FP64", bool: "TYPE_BOOL"}
_TYPE_OF_KIND = {"O": "TYPE_STRING", "U": "TYPE_STRING", "S": "TYPE_STRING", "T": "TYPE_STRING", "b": "TYPE_BOOL"}
_OUTPUT = "output"


def _converted(name: str, array: Any, dtype: Any) -> Any:
    """Return an output in the declared dtype. Raises ValueError for a number that it does not have."""
    with np.errstate(over="ignore"):
        converted = array.astype(dtype, casting="same_kind")
    is_wrong = converted != array if array.dtype.kind in "iu" else np.isinf(converted) & ~np.isinf(array)
    if is_wrong.any():
        raise ValueError(
            f"output '{name}' has {array[is_wrong].flat[0]}, which is out of range for {np.dtype(dtype)}; "
            f"annotate the result with {array.dtype}"
        )
    return converted


class TensorAnnotation:
    """What the annotations of one argument or result say."""

    def __init__(self, form: str, data_type: str, item: Any = None) -> None:
        self.form = form
        """`array`, `list` or `value`."""
        self.data_type = data_type
        """Empty if the annotation leaves it open."""
        self.item = item
        """The Python type of values, of lists and `value`."""

    @property
    def dims(self) -> list[int]:
        """The dimensions of a row."""
        return [-1] if self.form == "array" else [1]


def type_of_dtype(dtype: Any) -> str:
    """Return the datatype of a configuration. Raises ValueError for one that tensors do not have."""
    dtype = np.dtype(dtype)
    if dtype.kind in _TYPE_OF_KIND:
        return _TYPE_OF_KIND[dtype.kind]
    if dtype.kind in "iuf" and dtype.itemsize <= 8:
        name = {"i": "INT", "u": "UINT", "f": "FP"}[dtype.kind]
        return f"TYPE_{name}{8 * dtype.itemsize}"
    raise ValueError(f"dtype {dtype} is no datatype of tensors: {conversion_hint(dtype)}")


def read_annotation(annotation: Any, where: str) -> TensorAnnotation:
    """Return what an annotation says. Raises ValueError for one that is no tensor."""
    if annotation in (inspect.Parameter.empty, Any, np.ndarray):
        return TensorAnnotation("array", "")
    if annotation in _SCALARS:
        return TensorAnnotation("value", _SCALARS[annotation], annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is np.ndarray:
        (scalar,) = typing.get_args(arguments[1]) or (Any,)
        known = isinstance(scalar, type) and scalar is not np.generic
        return TensorAnnotation("array", type_of_dtype(scalar) if known else "")
    if origin in (list, tuple, collections.abc.Sequence) and arguments and arguments[0] in _SCALARS:
        return TensorAnnotation("list", _SCALARS[arguments[0]], arguments[0])
    raise ValueError(
        f"{where} has the annotation {annotation}; expected np.ndarray, npt.NDArray[...], str, int, float, bool or a "
        "list of these"
    )


class FunctionModel:
    """What a function says of itself, and its execution. Subclasses are made for one function each."""

    function: Callable[..., Any]

    # --- configuration --------------------------------------------------------------------------------------------

    @classmethod
    def arguments(cls) -> Mapping[str, TensorAnnotation]:
        """Return the arguments. Raises ValueError for those that no tensor can be."""
        hints = typing.get_type_hints(cls.function)
        found = {}
        for name, parameter in inspect.signature(cls.function).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ValueError(f"argument '{name}' of {FUNCTION} has no name for an input; write it as a plain one")
            found[name] = read_annotation(hints.get(name, parameter.annotation), f"argument '{name}' of {FUNCTION}")
        if not found:
            raise ValueError(f"{FUNCTION} has no arguments; a model has at least one input")
        return found

    @classmethod
    def annotated_outputs(cls) -> Mapping[str, TensorAnnotation] | None:
        """Return the outputs by the annotation of the result; None if it does not name them."""
        result = typing.get_type_hints(cls.function).get("return", inspect.Parameter.empty)
        named = getattr(result, "__annotations__", None) if isinstance(result, type) else None
        if named and issubclass(result, dict):
            hints = typing.get_type_hints(result)
            return {name: read_annotation(hint, f"'{name}' of the result") for name, hint in hints.items()}
        origin, arguments = typing.get_origin(result), typing.get_args(result)
        if result is dict or origin in (dict, collections.abc.Mapping):
            return None
        if origin is tuple and Ellipsis not in arguments:
            parts = [read_annotation(each, f"part {n} of the result") for n, each in enumerate(arguments)]
            return {f"{_OUTPUT}_{number}": each for number, each in enumerate(parts)}
        return {_OUTPUT: read_annotation(result, "the result")}

    @classmethod
    def auto_complete_config(cls, config: Any) -> Any:
        """Fill in what the configuration does not have."""
        known = config.as_dict()
        arguments = cls.arguments()
        if not known["input"]:
            config.set_max_batch_size(known["max_batch_size"] or MAX_BATCH_SIZE)
        has_batch = known["max_batch_size"] > 0
        defaults = inspect.signature(cls.function).parameters
        for name, each in arguments.items():
            if not any(tensor["name"] == name for tensor in known["input"]):
                tensor: dict[str, Any] = {"name": name, "data_type": each.data_type or "TYPE_FP64", "dims": each.dims}
                if defaults[name].default is not inspect.Parameter.empty:
                    tensor["optional"] = True
                config.add_input(tensor)
        if not known["output"]:
            for tensor in cls._found_outputs(known, has_batch):
                config.add_output(tensor)
        return config

    @classmethod
    def _found_outputs(cls, config: Mapping[str, Any], has_batch: bool) -> list[dict[str, Any]]:
        outputs = cls.annotated_outputs()
        if outputs is not None and all(each.data_type for each in outputs.values()):
            return [{"name": n, "data_type": each.data_type, "dims": each.dims} for n, each in outputs.items()]
        try:
            results = cls.call(cls._row_of_zeros(config, has_batch), has_batch)
        except Exception as error:
            if outputs is None:
                raise ValueError(
                    f"{FUNCTION} returns a dictionary, and a call with zeros to find its names failed "
                    f"({text_of(error)}): annotate the result with a TypedDict, or give each as --output "
                    "NAME:FP32:-1,1"
                ) from error
            return [
                {"name": n, "data_type": each.data_type or "TYPE_FP64", "dims": each.dims}
                for n, each in outputs.items()
            ]
        longer = cls._longer_results(config, has_batch)
        return [cls._tensor_of(name, array, longer.get(name, array), has_batch) for name, array in results.items()]

    @classmethod
    def _longer_results(cls, config: Mapping[str, Any], has_batch: bool) -> dict[str, Any]:
        """Return the results for a row whose variable dimensions are 2; none if the function does not take it."""
        if not any(int(dim) < 0 for tensor in config["input"] for dim in tensor["dims"]):
            return {}
        try:
            return dict(cls.call(cls._row_of_zeros(config, has_batch, length=2), has_batch))
        except Exception:  # A function of the user raises anything; then one length is what it takes.
            return {}

    @classmethod
    def _tensor_of(cls, name: str, array: Any, longer: Any, has_batch: bool) -> dict[str, Any]:
        # The row of zeros shows the number of dimensions, not their sizes for other inputs.
        count = max(1, array.ndim - has_batch)
        is_single = has_batch and array.shape[1:] in ((), (1,)) and longer.shape[1:] == array.shape[1:]
        return {"name": name, "data_type": type_of_dtype(array.dtype), "dims": [1] if is_single else [-1] * count}

    @classmethod
    def _row_of_zeros(cls, config: Mapping[str, Any], has_batch: bool, length: int = 1) -> dict[str, Any]:
        """Return a row of zeros; variable dimensions have a `length`."""
        inputs = {}
        for tensor in config["input"]:
            shape = [int(dim) if int(dim) > 0 else length for dim in tensor["dims"]]
            text = tensor["data_type"] == "TYPE_STRING"
            dtype = np.object_ if text else pb_utils.triton_string_to_numpy(tensor["data_type"])
            array = np.zeros([1, *shape] if has_batch else shape, dtype)
            if text:
                array.fill(b"")
            inputs[tensor["name"]] = array
        return inputs

    # --- execution ------------------------------------------------------------------------------------------------

    def initialize(self, args: Mapping[str, str]) -> None:
        """Take the configuration."""
        config = json.loads(args["model_config"])
        self.has_batch = config["max_batch_size"] > 0
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = {
            tensor["name"]: (pb_utils.triton_string_to_numpy(tensor["data_type"]), len(tensor["dims"]))
            for tensor in config["output"]
        }
        unknown = [name for name in self.inputs if name not in self.arguments()]
        if unknown:
            raise ValueError(
                f"{FUNCTION} has no argument '{unknown[0]}'; its arguments are {', '.join(self.arguments())}"
            )

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Call the function for each request."""
        return [self._response(request) for request in requests]

    def _response(self, request: Any) -> Any:
        try:
            found = {name: pb_utils.get_input_tensor_by_name(request, name) for name in self.inputs}
            inputs = {name: tensor.as_numpy() for name, tensor in found.items() if tensor is not None}
            results = self.call(inputs, self.has_batch)
            wanted = request.requested_output_names()
            tensors = [self._tensor(name, results, inputs) for name in self.outputs if name in wanted]
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{FUNCTION}: {text_of(error)}"))
        return pb_utils.InferenceResponse(tensors)

    def _tensor(self, name: str, results: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        if name not in results:
            raise ValueError(f"the result has no '{name}', it has {', '.join(results) or 'nothing'}")
        dtype, rank = self.outputs[name]
        array = results[name]
        if self.has_batch:
            rows = len(next(iter(inputs.values())))
            if array.ndim == 0 or len(array) != rows:
                raise ValueError(
                    f"output '{name}' has the shape {list(array.shape)} for {rows} rows; return one for each"
                )
            rank += 1
        if array.ndim == rank - 1:
            array = array[..., np.newaxis]
        if dtype is not np.object_ and array.dtype != dtype:
            array = _converted(name, array, dtype)
        return pb_utils.Tensor(name, np.ascontiguousarray(array))

    @classmethod
    def call(cls, inputs: Mapping[str, Any], has_batch: bool) -> dict[str, Any]:
        """Return the arrays of the result for the arrays of the inputs."""
        arguments = cls.arguments()
        if has_batch and all(each.form == "value" for each in arguments.values()):
            rows = [cls._named(cls.function(**cls._values(inputs, arguments, row))) for row in range(_count(inputs))]
            return {name: _array(name, [row[name] for row in rows]) for name in rows[0]} if rows else {}
        result = cls._named(cls.function(**cls._values(inputs, arguments)))
        return {name: _array(name, value) for name, value in result.items()}

    @classmethod
    def _values(
        cls, inputs: Mapping[str, Any], arguments: Mapping[str, TensorAnnotation], row: int = -1
    ) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, array in inputs.items():
            each = arguments[name]
            if each.form == "array":
                values[name] = _texts(array) if array.dtype == np.object_ else array
                continue
            flat = [_value(item, each.item) for item in array.ravel().tolist()]
            if each.form == "list":
                values[name] = flat
            elif row >= 0:
                values[name] = flat[row]
            elif flat and any(other != flat[0] for other in flat):
                raise ValueError(f"argument '{name}' is one {each.item.__name__}, and the rows have different values")
            else:
                values[name] = flat[0]
        return values

    @classmethod
    def _named(cls, result: Any) -> dict[str, Any]:
        if isinstance(result, collections.abc.Mapping):
            return dict(result)
        if isinstance(result, tuple):
            return {f"{_OUTPUT}_{number}": each for number, each in enumerate(result)}
        return {_OUTPUT: result}


def _count(inputs: Mapping[str, Any]) -> int:
    return len(next(iter(inputs.values()), ()))


def _value(item: Any, kind: Any) -> Any:
    return item.decode() if isinstance(item, bytes) and kind is not bytes else kind(item)


def _texts(array: Any) -> Any:
    texts = np.empty(array.size, np.object_)
    texts[:] = [item.decode() if isinstance(item, bytes) else item for item in array.ravel().tolist()]
    return texts.reshape(array.shape)


def _encoded(text: str) -> bytes | str:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text


def _array(name: str, value: Any) -> Any:
    array = np.asarray(plain_array(name, value) if isinstance(value, np.ndarray) else value)
    if array.dtype.kind in "UOT":
        texts = np.empty(array.size, np.object_)
        # Texts with halves of surrogate pairs stay texts: the encoder of responses reports them with their output.
        texts[:] = [_encoded(item) if isinstance(item, str) else item for item in array.ravel().tolist()]
        return texts.reshape(array.shape)
    return array


def model_class_of(function: Callable[..., Any]) -> type:
    """Return the class `TritonPythonModel` of a function."""
    return type("TritonPythonModel", (FunctionModel,), {"function": staticmethod(function)})
