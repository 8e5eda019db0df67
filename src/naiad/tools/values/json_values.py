"""Values in JSON data: documents with NaN and Infinity, base64, shapes."""

import binascii
from base64 import b64decode
from typing import Any

import orjson

from naiad.core.errors import InferError
from naiad.core.tensor import Shape
from naiad.protocol.json.tree import parse_document
from naiad.tools.values.tensor import InputError


def parse_text(text: bytes, where: str) -> Any:
    """Return a document as plain Python values. Raises InputError."""
    try:
        return orjson.loads(text)
    except ValueError:
        pass  # perhaps NaN and Infinity, which orjson does not know
    try:
        return parse_document(text)
    except InferError as error:
        raise InputError(f"{where}: not a JSON document: {error.message}") from None


def decoded(text: str, where: str) -> bytes:
    """Return the bytes of base64. Raises InputError."""
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{where}: 'b64' is not base64: {error}") from None


def read_shape(value: Any, where: str) -> Shape | None:
    """Return the shape that a `shape` member states; None without one. Raises InputError."""
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(size) is int for size in value):
        raise InputError(f"{where}: expected a list of integers as 'shape', got {kind_of(value)}")
    return tuple(value)


def kind_of(value: Any) -> str:
    """Return a value for error messages."""
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return f"an object with {', '.join(map(repr, value)) or 'no members'}"
    return repr(value)[:60]
