"""Tables, dictionaries and arrays as tensors of a model, and its answer as MLflow's predictions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas
from mlflow.deployments import PredictionsResponse

from naiad.core.datatype import DataType
from naiad.core.errors import excerpt
from naiad.core.model import ModelMetadata
from naiad.core.tensor import Array, TensorSpec


class InputsError(ValueError):
    """The inputs do not fit the model; the message names input and expected shape."""


class Predictions(PredictionsResponse):
    """`predictions` is an array, or arrays by output for a model with several. A column is [rows]."""

    def to_json(self, path: str | None = None) -> str | None:
        """Return the predictions as JSON, or write them to a file."""
        text = json.dumps({"predictions": _listed(self["predictions"])})
        if path is None:
            return text
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return None


def tensors_of(metadata: ModelMetadata, inputs: Any) -> dict[str, Array]:
    """Return a DataFrame, a dictionary, an array or a list as the inputs of a model. Raises InputsError."""
    specs = {spec.name: spec for spec in metadata.inputs}
    if isinstance(inputs, pandas.Series):
        inputs = inputs.to_frame()
    if isinstance(inputs, (pandas.DataFrame, Mapping)):
        named = {str(name): inputs[name] for name in inputs if str(name) in specs}
        if named:
            return {name: _tensor(specs[name], values) for name, values in named.items()}
        if isinstance(inputs, pandas.DataFrame) and len(specs) == 1:
            return _single(metadata, inputs.to_numpy())
        raise InputsError(f"the inputs have {_names(inputs)}, and model '{metadata.name}' expects {_names(specs)}")
    array = np.asarray(inputs)
    if len(specs) == 1:
        return _single(metadata, array)
    if array.ndim == 2 and array.shape[1] == len(specs):
        return {name: _tensor(spec, array[:, number]) for number, (name, spec) in enumerate(specs.items())}
    raise InputsError(
        f"an array of shape {list(array.shape)} does not fit the {len(specs)} inputs of model '{metadata.name}'; "
        f"give a DataFrame or a dictionary with {_names(specs)}"
    )


def row_count(tensors: Mapping[str, Array]) -> int:
    """Return the rows of all tensors. Raises InputsError if they differ."""
    counts = {name: array.shape[0] if array.ndim else 1 for name, array in tensors.items()}
    if len(set(counts.values())) != 1:
        raise InputsError(f"the inputs have different numbers of rows: {counts}")
    return next(iter(counts.values()))


def predictions_of(results: Sequence[Mapping[str, Array]]) -> Predictions:
    """Return the answers to consecutive rows."""
    outputs = {name: _column(np.concatenate([result[name] for result in results])) for name in results[0]}
    return Predictions({"predictions": next(iter(outputs.values())) if len(outputs) == 1 else outputs})


def _single(metadata: ModelMetadata, array: Array) -> dict[str, Array]:
    (spec,) = metadata.inputs
    return {spec.name: _tensor(spec, array)}


def _tensor(spec: TensorSpec, values: Any) -> Array:
    array = np.asarray(values)
    if array.ndim == 1 and len(spec.shape) == 2 and spec.shape[1] in (1, -1):
        array = array[:, None]  # A column of a table is [rows, 1] here.
    try:
        if spec.datatype is DataType.BYTES:
            texts: Array = np.frompyfunc(_text, 1, 1)(array.astype(object))
            return texts
        with np.errstate(invalid="ignore"):
            converted: Array = array.astype(spec.datatype.numpy)
        if converted.dtype.kind in "iub" and array.dtype.kind in "biufO" and not np.array_equal(converted, array):
            raise ValueError(f"values of {array.dtype} would change: convert the column")
        return converted
    except (ValueError, TypeError) as error:
        raise InputsError(f"input '{spec.name}' expects {spec.datatype.value}: {error}") from None


def _text(value: Any) -> Any:
    if isinstance(value, bytes | str):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _column(array: Array) -> Array:
    if array.dtype == object:
        array = np.frompyfunc(lambda each: each.decode(errors="replace"), 1, 1)(array)
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def _listed(predictions: Any) -> Any:
    if isinstance(predictions, Mapping):
        return {name: array.tolist() for name, array in predictions.items()}
    return predictions.tolist()


def _names(names: Any) -> str:
    return ", ".join(f"'{excerpt(str(name))}'" for name in names) or "none"
