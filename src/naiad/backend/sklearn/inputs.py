"""What an estimator takes: a matrix, the columns of a table, or texts; read from its fitted attributes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from naiad.backend.signature import TensorSignature
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import BY_CONFIG_NUMBER, DataType
from naiad.core.errors import invalid_argument
from naiad.core.tensor import Array

MATRIX_INPUT = "input__0"
"""Name of an input that has all features."""


@dataclass(frozen=True, slots=True)
class Column:
    """One feature, as the first step of an estimator sees it."""

    is_text: bool
    example: object
    """A value that the step accepts."""


_NUMBER = Column(False, 0.0)


class MatrixInput:
    """One tensor [n, features], or [n] texts for an estimator that begins with a text vectorizer."""

    def __init__(self, name: str, datatype: DataType, example: Sequence[object], *, is_flat: bool) -> None:
        self._name = name
        self._datatype = datatype
        self._example = example
        self._is_flat = is_flat
        self.signatures = {name: TensorSignature(name, datatype, (None, len(example)))}

    def build(self, inputs: Mapping[str, Array]) -> Any:
        """Return what the estimator takes, for the tensors of a request. Raises InferError(INVALID_ARG)."""
        rows = _values(self._name, inputs[self._name])
        return rows.reshape(-1) if self._is_flat else rows

    def example(self) -> dict[str, Array]:
        """Return one row that the first step accepts, as tensors."""
        return {self._name: _example([self._example], self._datatype)}


class ColumnInputs:
    """One tensor [n, 1] a column; pandas makes the table when the columns have names, otherwise numpy."""

    def __init__(self, columns: Mapping[str, tuple[DataType, Column]], pandas: Any) -> None:
        self._columns = columns
        self._pandas = pandas
        self.signatures = {name: TensorSignature(name, kind, (None, 1)) for name, (kind, _) in columns.items()}

    def build(self, inputs: Mapping[str, Array]) -> Any:
        """Return what the estimator takes, for the tensors of a request. Raises InferError(INVALID_ARG)."""
        values = {name: _values(name, inputs[name]).reshape(-1) for name in self._columns}
        if self._pandas is not None:
            return self._pandas.DataFrame(values)
        table = np.empty((len(next(iter(values.values()))), len(values)), object)
        for index, column in enumerate(values.values()):
            table[:, index] = column
        return table

    def example(self) -> dict[str, Array]:
        """Return one row that the first step accepts, as tensors."""
        return {name: _example([[column.example]], kind) for name, (kind, column) in self._columns.items()}


def plan_inputs(config: ModelConfig, estimator: Any) -> MatrixInput | ColumnInputs:
    """Return the inputs of an estimator; the configuration decides over names and datatypes.

    Raises InferError(INVALID_ARG) for an estimator that does not say its features, and for one that needs pandas.
    """
    kinds = {tensor.name: BY_CONFIG_NUMBER.get(tensor.data_type) for tensor in config.input}
    matrix_name = next(iter(kinds)) if len(kinds) == 1 else MATRIX_INPUT
    matrix_kind = kinds.get(matrix_name)
    if hasattr(first_step(estimator), "build_analyzer"):
        return MatrixInput(matrix_name, DataType.BYTES, [""], is_flat=True)
    names = [str(name) for name in getattr(estimator, "feature_names_in_", ())]
    count = len(names) or getattr(estimator, "n_features_in_", 0) or _configured_features(config)
    if not count:
        raise invalid_argument(
            f"model '{config.name}': the {type(estimator).__name__} does not say how many features it has "
            "(n_features_in_); write one input with 'dims' in config.pbtxt"
        )
    # scikit-learn: columns without names are called x0, x1, ...
    keys = names or [f"x{index}" for index in range(count)]
    found = read_columns(estimator, keys)
    columns = {key: found.get(key, _NUMBER) for key in keys}
    texts = [column.is_text for column in columns.values()]
    is_matrix = not names and len(set(texts)) == 1
    if is_matrix or (kinds and not kinds.keys() & columns.keys()):
        kind = matrix_kind or (DataType.BYTES if all(texts) else DataType.FP64)
        return MatrixInput(matrix_name, kind, [column.example for column in columns.values()], is_flat=False)
    pandas = _pandas(config.name, estimator) if names else None
    return ColumnInputs(
        {name: (kinds.get(name) or _kind(column), column) for name, column in columns.items()}, pandas
    )


def _kind(column: Column) -> DataType:
    return DataType.BYTES if column.is_text else DataType.FP64


def _configured_features(config: ModelConfig) -> int:
    dims = config.input[0].dims if len(config.input) == 1 else ()
    return dims[-1] if dims and dims[-1] > 0 else 0


def _pandas(model: str, estimator: Any) -> Any:
    try:
        import pandas
    except ImportError:
        raise invalid_argument(
            f"model '{model}': the {type(estimator).__name__} was trained on a DataFrame, and its columns need the "
            f"package pandas, which is not installed: pip install pandas; or write one input '{MATRIX_INPUT}' with "
            "all features in config.pbtxt if no step selects columns by name"
        ) from None
    return pandas


def first_step(estimator: Any) -> Any:
    """Return the step of a pipeline, a union or a search that sees the input first."""
    while True:
        steps = getattr(estimator, "steps", None) or getattr(estimator, "transformer_list", None)
        inner = steps[0][1] if steps else getattr(estimator, "best_estimator_", None)
        if inner is None:
            return estimator
        estimator = inner


def read_columns(estimator: Any, names: Sequence[str]) -> dict[str, Column]:
    """Return the columns that the first step knows more of than that they are numbers."""
    step = first_step(estimator)
    if hasattr(step, "build_analyzer"):
        return dict.fromkeys(names, Column(True, ""))
    if hasattr(step, "transformers_"):
        found: dict[str, Column] = {}
        for _, transformer, selected in step.transformers_:
            for name, column in read_columns(transformer, _select(selected, names)).items():
                found.setdefault(name, column)
        return found
    categories = getattr(step, "categories_", None)
    if categories is not None:
        return {name: _column(values[0]) for name, values in zip(names, categories, strict=False) if len(values)}
    statistics = getattr(step, "statistics_", None)
    if statistics is not None and statistics.dtype == object:
        return {name: _column(value) for name, value in zip(names, statistics, strict=False)}
    return {}


def _column(value: Any) -> Column:
    is_text = isinstance(value, str)
    return Column(is_text, value if is_text else float(value))


def _select(selected: Any, names: Sequence[str]) -> list[str]:
    """Return the columns that a transformer of a ColumnTransformer gets: by name, index, slice or mask."""
    if isinstance(selected, str):
        return [selected]
    if isinstance(selected, slice) and not isinstance(selected.start or selected.stop, str):
        return list(names[selected])
    if isinstance(selected, slice):
        first = names.index(selected.start) if selected.start else 0
        return list(names[first : names.index(selected.stop) + 1 if selected.stop else None])
    items = np.atleast_1d(np.asarray(selected))
    if items.dtype == bool:
        return [name for name, is_selected in zip(names, items, strict=True) if is_selected]
    return [str(item) if isinstance(item, str) else names[int(item)] for item in items.tolist()]


def _values(name: str, array: Array) -> Array:
    """Return a tensor as scikit-learn takes it: BYTES become str. Raises InferError(INVALID_ARG)."""
    if array.dtype != object:
        return array
    try:
        texts = [item.decode() for item in array.reshape(-1)]
    except UnicodeDecodeError as error:
        raise invalid_argument(f"input '{name}' has text that is no UTF-8: {error}") from None
    result = np.empty(array.shape, object)
    result.reshape(-1)[:] = texts
    return result


def _example(values: Sequence[object], datatype: DataType) -> Array:
    if datatype is not DataType.BYTES:
        return np.array(values).astype(datatype.numpy)
    texts = np.array(values, object)
    result: Array = np.vectorize(lambda text: str(text).encode(), otypes=[object])(texts)
    return result
