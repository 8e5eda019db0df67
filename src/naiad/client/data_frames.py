"""Rows of a program as the inputs of a model, and outputs as a data frame: NumPy and pandas in and out.

pandas is optional: its frames are recognized by their class, and are made only for a caller that sent one.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from naiad.config.tensors.features import Features
from naiad.core.datatype import DataType, from_numpy
from naiad.core.errors import excerpt, invalid_argument
from naiad.core.model import ModelMetadata
from naiad.core.tensor import Array, TensorSpec

WHERE = "the rows"


def is_frame(rows: object) -> bool:
    """Return whether rows are a pandas DataFrame."""
    return _is_pandas(rows, "DataFrame")


def _is_pandas(value: object, name: str) -> bool:
    """Return whether a value is of a class of pandas, or of one that inherits from it."""
    return any(
        each.__name__ == name and each.__module__.partition(".")[0] == "pandas" for each in type(value).__mro__
    )


def to_inputs(
    rows: object, metadata: ModelMetadata, features: Features, optional: frozenset[str] = frozenset()
) -> dict[str, Array]:
    """Return arrays by input: from a frame, a list of records, a mapping of columns or arrays, or one array.

    Raises InferError(INVALID_ARG) with both lists of names for rows that lack an input or a feature.
    """
    specs = {spec.name: spec for spec in metadata.inputs}
    required = [spec for name, spec in specs.items() if name not in optional]
    only = required[0] if len(required) == 1 else None
    columns = _columns(rows, features.names or [spec.name for spec in required])
    if columns is None:
        if only is None:
            raise invalid_argument(
                f"the model has the inputs {_listed(specs)}: send a dictionary with an array for each, or a DataFrame"
            )
        return {only.name: _tensor(only, _array(rows, WHERE))}
    if only is not None and only.name not in columns and (features.names or is_frame(rows)):
        return {only.name: _matrix(only, columns, features)}
    missing = [spec.name for spec in required if spec.name not in columns]
    unknown = [name for name in columns if name not in specs]
    if missing or unknown:
        what = f"have no {_listed(missing)}" if missing else f"have {_listed(unknown)}, which is no input"
        raise invalid_argument(f"{WHERE} {what}; they have {_listed(columns)}, the model takes {_listed(specs)}")
    return {name: _tensor(specs[name], _array(values, f"'{excerpt(name)}'")) for name, values in columns.items()}


def _columns(rows: object, wanted: Sequence[str]) -> dict[str, Any] | None:
    """Return values by name; None for rows without names. `wanted` are the features or inputs of the model."""
    if is_frame(rows):
        frame: Any = rows
        names = [str(name) for name in frame.columns]
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise invalid_argument(f"{WHERE} have two columns with the name {_listed(twice)}: rename one")
        return {name: frame.iloc[:, place].to_numpy() for place, name in enumerate(names)}
    if _is_pandas(rows, "Series"):
        return _series(rows, wanted)
    if hasattr(rows, "columns") or hasattr(rows, "column_names"):
        raise invalid_argument(
            f"{WHERE} are a {type(rows).__module__}.{type(rows).__name__}: send its to_pandas(), or a dictionary"
        )
    if isinstance(rows, Mapping):
        return {str(name): values for name, values in rows.items()}
    if isinstance(rows, Sequence) and rows and isinstance(rows[0], Mapping):
        names = list(rows[0])
        for number, row in enumerate(rows):
            if not isinstance(row, Mapping) or (list(row) != names and set(row) != set(names)):
                raise invalid_argument(f"row {number} has other names than row 0, which has {_listed(names)}")
        return {str(name): _array([row[name] for row in rows], f"'{excerpt(str(name))}'") for name in names}
    return None


def _series(series: Any, wanted: Sequence[str]) -> dict[str, Any]:
    """Return a row of a frame by its labels, or values for the only input."""
    labels = [str(label) for label in series.index]
    if set(wanted) <= set(labels) and len(set(labels)) == len(labels):
        return dict(zip(labels, ([value] for value in series.tolist()), strict=True))
    if len(wanted) == 1:
        return {wanted[0]: series.to_numpy()}
    raise invalid_argument(f"the Series has {_listed(labels)}, the model takes {_listed(wanted)}")


def _array(values: object, where: str) -> Array:
    """Return values as an array. Raises InferError for those that are none, or hide some of them."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise invalid_argument(f"{where}: lists of different lengths make no array: {error}") from None
    if array.ndim == 0 and array.dtype.kind == "O":
        raise invalid_argument(
            f"{where}: a {type(values).__name__} is no array; send a DataFrame, a list, a dictionary or an array"
        )
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise invalid_argument(f"{where}: values are masked; choose others for them with filled()")
    return array


def _matrix(spec: TensorSpec, columns: Mapping[str, Any], features: Features) -> Array:
    """Return the columns as one matrix, in the order of the model's features."""
    if not features.names:
        width = spec.shape[-1] if spec.shape else 1
        if width not in (-1, len(columns)):
            raise invalid_argument(
                f"{WHERE} have {len(columns)} columns ({_listed(columns)}), input '{spec.name}' takes {width}"
            )
        _check_lengths(columns)
        return _tensor(spec, np.stack([_numbers(name, values) for name, values in columns.items()], axis=-1))
    places = features.columns(list(columns), WHERE)
    _check_lengths(columns)
    found = []
    for name, place in zip(features.names, places, strict=True):
        values = columns[place]
        if name in features.categories:
            values = np.asarray([features.value(name, _plain(value), WHERE) for value in values], np.float64)
        found.append(_numbers(place, values))
    return _tensor(spec, np.stack(found, axis=-1))


def _check_lengths(columns: Mapping[str, Any]) -> None:
    counts = {name: np.shape(values)[:1] for name, values in columns.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"'{excerpt(name)}' {count[0] if count else 'no list'}" for name, count in counts.items())
        raise invalid_argument(f"the columns have different numbers of rows: {excerpt(listed)}")


def _plain(value: Any) -> Any:
    if type(value).__name__ in ("NAType", "NaTType"):  # pandas' missing values, which compare with nothing
        return None
    return value.item() if isinstance(value, np.generic) else value


def _numbers(name: str, values: Any) -> Array:
    array = np.asarray(values)
    _check_numbers(f"column '{excerpt(name)}'", array)
    try:
        return array.astype(np.float64) if array.dtype == object else array
    except (TypeError, ValueError) as error:
        raise invalid_argument(f"column '{excerpt(name)}' is no column of numbers: {error}") from None


def _check_numbers(what: str, array: Array) -> None:
    if array.dtype.kind in "mMc":
        raise invalid_argument(f"{what} has values of {array.dtype}, which are no numbers of a model: convert them")


def _tensor(spec: TensorSpec, array: Array) -> Array:
    """Return an array with the datatype of an input, and a row or a column where its shape lacks one."""
    array = _converted(spec, array)
    missing = len(spec.shape) - array.ndim
    if missing == 1 and spec.shape[:1] == (-1,) and not _fits(array.shape, spec.shape[:-1]):
        return array[np.newaxis]
    if missing == 1 and spec.shape[-1] in (1, -1):
        return array[..., np.newaxis]
    return array[np.newaxis] if missing == 1 and spec.shape[:1] == (-1,) else array


def _fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    return all(want in (-1, got) for want, got in zip(dims, shape, strict=True))


def _converted(spec: TensorSpec, array: Array) -> Array:
    if spec.datatype is DataType.BYTES or from_numpy(array.dtype) is spec.datatype:
        return array
    _check_numbers(f"input '{excerpt(spec.name)}'", array)
    try:
        if array.dtype == object:
            array = array.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            converted = array.astype(spec.datatype.numpy)
    except (TypeError, ValueError) as error:
        raise invalid_argument(f"input '{excerpt(spec.name)}' takes {spec.datatype.value}: {error}") from None
    if converted.dtype.kind in "iub" and not np.array_equal(converted, array):
        raise invalid_argument(
            f"input '{excerpt(spec.name)}' takes {spec.datatype.value}, and values of {array.dtype} would change: "
            "convert the array"
        )
    if array.dtype.kind in "iuf" and np.isinf(converted).sum() > np.isinf(array).sum():
        raise invalid_argument(f"input '{excerpt(spec.name)}': a value is out of the range of {spec.datatype.value}")
    return converted


def to_frame(outputs: Mapping[str, Array], like: Any) -> Any:
    """Return outputs as a DataFrame with the index of the rows: `NAME`, or `NAME_0`, `NAME_1`, ... for vectors."""
    import pandas  # the caller has it

    columns: dict[str, Any] = {}
    for name in outputs:
        array = _decoded(outputs[name])
        if array.ndim == 0 or len(array) != len(like):
            raise invalid_argument(
                f"output '{name}' has the shape {list(array.shape)} for {len(like)} rows: send the rows as arrays"
            )
        flat = array.reshape(len(array), math.prod(array.shape[1:]))
        is_single = flat.shape[1] == 1
        for number in range(flat.shape[1]):
            column = name if is_single else f"{name}_{number}"
            if column in columns:
                raise invalid_argument(f"two outputs make a column '{column}': name one of them in outputs=")
            columns[column] = flat[:, number]
    return pandas.DataFrame(columns, index=like.index)


def _decoded(array: Array) -> Array:
    if array.dtype != object:
        return array
    texts = np.empty(array.size, object)
    texts[:] = [_text(each) for each in array.flat]
    return texts.reshape(array.shape)


def _text(value: Any) -> Any:
    """Return bytes as text, and as bytes if they are none."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def _listed(names: Any) -> str:
    listed = list(names)
    more = ", ..." if len(listed) > 8 else ""
    return ", ".join(f"'{excerpt(str(name))}'" for name in listed[:8]) + more or "none"
