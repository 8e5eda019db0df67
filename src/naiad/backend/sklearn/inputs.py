"""What an estimator takes: a matrix, the columns of a table, or texts; read from its fitted attributes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from naiad.backend.signature import TensorSignature
from naiad.backend.sklearn.columns import NUMBER, TRIALS, Column, ColumnKind, first_step, read_columns, text_of
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import BY_CONFIG_NUMBER, DataType
from naiad.core.errors import invalid_argument
from naiad.core.tensor import Array

MATRIX_INPUT = "input__0"
"""Name of an input that has all features."""
_MAX_FREE_COLUMNS = 64
"""Columns that are tried alone: each try is a call of the estimator."""


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

    def others(self, free: Mapping[str, DataType | None]) -> Iterator["MatrixInput"]:
        """Yield other inputs to try: a matrix has none."""
        yield from ()


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
            return self._pandas.DataFrame({name: self._typed(name, column) for name, column in values.items()})
        table = np.empty((len(next(iter(values.values()))), len(values)), object)
        for index, column in enumerate(values.values()):
            table[:, index] = column
        return table

    def example(self) -> dict[str, Array]:
        """Return one row that the first step accepts, as tensors."""
        return {name: _example([[column.example]], kind) for name, (kind, column) in self._columns.items()}

    def others(self, free: Mapping[str, DataType | None]) -> Iterator["ColumnInputs"]:
        """Yield inputs whose `free` columns are no numbers: one of them text, a flag or a date, then all of them.

        A column with a datatype remains of it.
        """
        for name in list(free)[:_MAX_FREE_COLUMNS]:
            for trial in TRIALS:
                if free[name] in (None, trial.datatype):
                    yield self._with({name: trial})
        for trial in TRIALS:
            yield self._with({name: trial for name, kind in free.items() if kind in (None, trial.datatype)})

    def _with(self, columns: Mapping[str, Column]) -> "ColumnInputs":
        found = {name: (column.datatype, column) for name, column in columns.items()}
        return ColumnInputs({**self._columns, **found}, self._pandas)

    def _typed(self, name: str, values: Array) -> Any:
        """Return a column as pandas had it for training. Raises InferError(INVALID_ARG)."""
        column = self._columns[name][1]
        if column.kind is ColumnKind.CATEGORY:
            # Empty text is no value, unless it is a category; other unknown values are the estimator's affair.
            known = list(column.categories)
            by_text = {text_of(each): each for each in known}
            given = [by_text.get(value, value) for value in values.tolist()]
            items = [None if value not in known and (value == "" or value != value) else value for value in given]
            others = [value for value in dict.fromkeys(items) if value is not None and value not in known]
            return self._pandas.Categorical(items, categories=[*known, *others])
        if column.kind is ColumnKind.DATE:
            try:
                return self._pandas.to_datetime(self._pandas.Series(values), format="ISO8601")
            except (ValueError, TypeError) as error:
                raise invalid_argument(f"input '{name}' has text that is no date in ISO 8601: {error}") from None
        if column.empty != "" and values.dtype == object:
            values = values.copy()
            values[values == ""] = column.empty
        return values


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
    if not count and isinstance(estimator, type):
        raise invalid_argument(
            f"model '{config.name}': the file holds the class {estimator.__name__}; save a fitted estimator"
        )
    if not count:
        raise invalid_argument(
            f"model '{config.name}': the {type(estimator).__name__} does not say how many features it has "
            "(n_features_in_); if it is not fitted, save it after fit(); otherwise write one input with 'dims' in "
            "config.pbtxt"
        )
    # scikit-learn: columns without names are called x0, x1, ...
    keys = names or [f"x{index}" for index in range(count)]
    found = read_columns(estimator, keys)
    columns = {key: found.get(key, NUMBER) for key in keys}
    texts = [column.datatype is DataType.BYTES for column in columns.values()]
    is_matrix = not names and len(set(texts)) == 1
    if is_matrix or (kinds and not kinds.keys() & columns.keys()):
        kind = matrix_kind or (DataType.BYTES if all(texts) else DataType.FP64)
        return MatrixInput(matrix_name, kind, [column.example for column in columns.values()], is_flat=False)
    pandas = _pandas(config.name, estimator) if names else None
    return ColumnInputs(
        {name: (kinds.get(name) or column.datatype, column) for name, column in columns.items()}, pandas
    )


def free_columns(
    config: ModelConfig, estimator: Any, inputs: MatrixInput | ColumnInputs
) -> dict[str, DataType | None]:
    """Return the columns of which the estimator does not say what they are, with the datatypes of a configuration."""
    kinds = {tensor.name: BY_CONFIG_NUMBER.get(tensor.data_type) for tensor in config.input}
    names = list(inputs.signatures) if isinstance(inputs, ColumnInputs) else []
    known = read_columns(estimator, names)
    return {name: kinds.get(name) for name in names if name not in known}


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
