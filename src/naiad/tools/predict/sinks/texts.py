"""Values as text: the numbers of a block are encoded by one call, and cut into rows afterwards."""

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import orjson

from naiad.core.errors import invalid_argument
from naiad.core.tensor import Array
from naiad.tools.predict.rows.row_outputs import OutputColumn


def json_rows(column: OutputColumn, count: int, *, is_single: bool) -> list[bytes]:
    """Return the JSON text of each row; `null` for a row without an array. NaN and infinities are bare, as in
    Triton's JSON.
    """
    if column.whole is None:
        return [b"null" if row is None else _text(row, is_single=is_single) for row in column.rows]
    array = plain(column.whole)
    if array.dtype != object and array.ndim <= 2 and count and is_finite(array):
        if is_single:
            return number_texts(array.reshape(count))
        if array.ndim == 2:
            return [b"[%b]" % text for text in row_texts(array)]
    return [_text(np.asarray(row), is_single=is_single) for row in array]


def number_texts(array: Array) -> list[bytes]:
    """Return the text of each number of an array with one dimension, all of them finite."""
    return orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")


def row_texts(array: Array) -> list[bytes]:
    """Return the numbers of each row, with commas; all of them are finite."""
    return orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)[2:-2].split(b"],[")


def plain(array: Array) -> Array:
    """Return an array whose dtype encoders know."""
    return array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array


def is_finite(array: Array) -> bool:
    """Return whether no number is NaN or infinite."""
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _text(row: Array, *, is_single: bool) -> bytes:
    row = plain(row)
    if row.dtype == object:
        values = nested(row, string_value)
        return orjson.dumps(values[0] if is_single and isinstance(values, list) else values)
    if not is_finite(row):
        values = nested(row, shortest)
        return json.dumps(values[0] if is_single and isinstance(values, list) else values).encode()
    if is_single:
        return number_texts(row.reshape(1))[0]
    return orjson.dumps(np.ascontiguousarray(row), option=orjson.OPT_SERIALIZE_NUMPY)


def shortest(value: Any) -> Any:
    """Return a number as a float whose text has the digits of its own precision, not of a double."""
    return float(str(value)) if isinstance(value, np.floating) else value.item()


def nested(row: Array, convert: Any) -> Any:
    """Return the elements as nested lists."""
    if row.ndim == 0:
        return convert(row[()])
    return [nested(np.asarray(each), convert) if row.ndim > 1 else convert(each) for each in row]


def string_value(element: bytes) -> Any:
    """Return a string for JSON; base64 for bytes that are no UTF-8."""
    try:
        return element.decode()
    except UnicodeDecodeError:
        return {"b64": b64encode(element).decode()}


def key_value(value: Any) -> Any:
    """Return the value of a key column for JSON."""
    return string_value(value) if isinstance(value, bytes) else value


def key_texts(values: Sequence[Any]) -> list[bytes]:
    """Return the JSON text of each key."""
    return [key_text(value) for value in values]


def key_text(value: Any) -> bytes:
    """Return the JSON text of a key. Raises InferError(INVALID_ARG) if it is nested too deeply."""
    key = key_value(value)
    try:
        return orjson.dumps(key, default=str)
    except TypeError:  # over 254 levels, or a whole number beyond 64 bits
        pass
    try:
        return json.dumps(key, default=str).encode()
    except RecursionError:
        raise invalid_argument("a key is nested too deeply to be written; send a smaller one") from None
