"""The tensors of an MLflow signature, and the tables and arrays that a model takes and returns."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas

from naiad.backend.mlflow.directory import MlflowDirectory
from naiad.backend.signature import ModelSignature, TensorSignature
from naiad.core.datatype import DataType, from_numpy
from naiad.core.errors import excerpt, invalid_argument
from naiad.core.tensor import Array

INPUTS = "inputs"
"""MLflow: the key of an input without a name in its REST protocol."""
PREDICTIONS = "predictions"
"""MLflow: the key of results."""
_DATATYPES = {
    "boolean": DataType.BOOL,
    "integer": DataType.INT32,
    "long": DataType.INT64,
    "float": DataType.FP32,
    "double": DataType.FP64,
    "string": DataType.BYTES,
    "binary": DataType.BYTES,
    "datetime": DataType.BYTES,
}


class MlflowTensors:
    """The inputs and outputs of one model."""

    def __init__(self, directory: MlflowDirectory) -> None:
        """Read the signature. Raises InferError(INVALID_ARG) for a model without one."""
        schema = directory.model.signature
        if schema is None or schema.inputs is None or schema.outputs is None:
            part = "signature" if schema is None else "complete signature"
            raise directory.error(f"has no {part}; save the model with signature=infer_signature(inputs, outputs)")
        self._directory = directory
        self._is_table = not schema.inputs.is_tensor_spec()
        self._kinds = {spec.name: _kind(spec) for spec in schema.inputs}
        inputs = self._signatures(schema.inputs, INPUTS)
        optional = {spec.name for spec in schema.inputs if not getattr(spec, "required", True)}
        self._is_nameless = not schema.inputs.has_input_names()
        self._has_result_names = schema.outputs.has_input_names()
        self.signature = ModelSignature(
            "MLflow",
            {name: tensor for name, tensor in inputs.items() if name not in optional},
            self._signatures(schema.outputs, PREDICTIONS),
            {name: tensor for name, tensor in inputs.items() if name in optional},
        )

    def to_model(self, inputs: Mapping[str, Array]) -> Any:
        """Return what `predict` takes. Raises InferError(INVALID_ARG) for text that is not UTF-8 or no date."""
        if self._is_table:
            return pandas.DataFrame({name: self._column(name, array) for name, array in inputs.items()})
        return inputs[INPUTS] if self._is_nameless else dict(inputs)

    def to_client(self, result: Any, name: str) -> Array:
        """Return one output of what `predict` has returned. Raises ValueError and KeyError for something else."""
        tensor = self.signature.outputs[name]
        if isinstance(result, Mapping) and not self._has_result_names and len(result) == 1:
            result = next(iter(result.values()))
        if self._has_result_names and isinstance(result, (Mapping, pandas.DataFrame)):
            result = result[name]
        array = np.asarray(result)
        if tensor.datatype is DataType.BYTES:
            dates = array.astype(str) if array.dtype.kind == "M" else array
            array = np.frompyfunc(_text, 1, 1)(dates.astype(object))
        elif tensor.datatype is not None:
            array = _in_datatype(name, array, tensor.datatype)
        dims = tensor.dims or ()
        if array.ndim == len(dims):
            return array
        # A column of a table is [n] in numpy and [n, 1] here.
        return array.reshape(len(array), *(dim if isinstance(dim, int) else -1 for dim in dims[1:]))

    def _column(self, name: str, array: Array) -> Any:
        values = array.reshape(-1)
        kind = self._kinds[name]
        try:
            if kind == "string":
                return [value.decode() for value in values.tolist()]
            if kind == "datetime":
                return pandas.to_datetime([value.decode() for value in values.tolist()], format="ISO8601")
        except ValueError as error:
            expected = "text in UTF-8" if kind == "string" else "a date such as 2030-12-31T23:59:59"
            raise invalid_argument(f"input '{name}' expects {expected}: {excerpt(str(error).strip())}") from error
        return values

    def _signatures(self, schema: Any, nameless: str) -> dict[str, TensorSignature]:
        """Return the tensors of a schema; `nameless` is the name of one without a name."""
        found: dict[str, TensorSignature] = {}
        for spec in schema:
            name = spec.name if spec.name is not None else nameless
            if name in found:
                raise self._directory.error(
                    "has columns without names in its signature; save the model with the signature of a DataFrame"
                )
            found[str(name)] = _tensor(str(name), spec)
        return found


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value
    return value.isoformat() if isinstance(value, datetime.date) and not pandas.isna(value) else str(value)


def _in_datatype(name: str, array: Array, datatype: DataType) -> Array:
    """Return an output in its datatype. Raises ValueError for missing values that the datatype lacks."""
    if array.dtype == object and pandas.isna(array).any():
        array = np.where(pandas.isna(array), np.nan, array).astype(np.float64)
    if datatype.numpy.kind in "iub" and array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"output '{name}' has values that are missing or not finite, which {datatype.value} lacks")
    converted: Array = array.astype(datatype.numpy, copy=False)
    is_narrowed = converted is not array and datatype.numpy.kind in "iu" and array.dtype.kind in "iuf"
    if is_narrowed and not np.array_equal(converted, array):
        raise ValueError(f"output '{name}' has values of {array.dtype} that {datatype.value} lacks")
    return converted


def _tensor(name: str, spec: Any) -> TensorSignature:
    if hasattr(spec, "shape"):
        dims: Sequence[int | None] = [size if size >= 0 else None for size in spec.shape]
        kind = np.dtype(spec.type)
        return TensorSignature(name, from_numpy(kind), tuple(dims), str(kind))
    return TensorSignature(name, _DATATYPES.get(_kind(spec)), (None, 1), _kind(spec))


def _kind(spec: Any) -> str:
    """Return MLflow's name of a type: `double`."""
    return str(getattr(spec.type, "name", spec.type))
