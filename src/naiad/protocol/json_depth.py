"""How deep arrays and objects of a JSON document lie within each other, found out before it is parsed.

For parsers that recurse. simdjson has a bound of its own, 1024, and costs nothing for that.
"""

import numpy as np

from naiad.core.errors import InferError, invalid_argument
from naiad.core.tensor import Buffer

MAX_JSON_DEPTH = 512
"""Triton: tensor data may be nested 100 levels deep."""

_OPEN, _CLOSE, _QUOTE = b"[{", b"]}", b'"'
# Quotes become 0, brackets what they add to the depth; as int8, so 255 is -1.
_STEPS = bytes.maketrans(_QUOTE + _OPEN + _CLOSE, b"\0\1\1\xff\xff")
_OTHERS = bytes(set(range(256)) - set(_QUOTE + _OPEN + _CLOSE))
_PIECE = 1 << 20


def check_depth(text: Buffer, limit: int = MAX_JSON_DEPTH) -> None:
    """Raise InferError(INVALID_ARG) when a document is nested deeper than `limit`.

    Nothing else is checked. Of what is no JSON some depth is found, or none.
    """
    data = text if isinstance(text, bytes | bytearray) else bytes(text)
    # Nearly every document has so few brackets that it cannot be too deep.
    if data.count(b"[") + data.count(b"{") > limit and _depth(data) > limit:
        raise too_deep(limit)


def too_deep(limit: int) -> InferError:
    """Return the error for a document that is nested deeper than `limit`."""
    return invalid_argument(
        f"failed to parse the request JSON buffer: arrays and objects are nested more than {limit} levels deep"
    )


def _depth(data: bytes | bytearray) -> int:
    if b"\\" in data:
        # Only strings have them; what is left of a string ends with the first quote.
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = np.frombuffer(data.translate(_STEPS, _OTHERS), np.int8)
    deepest = depth = quotes = 0
    for start in range(0, len(marks), _PIECE):
        piece = marks[start : start + _PIECE]
        quoted = np.cumsum(piece == 0, dtype=np.int32) + quotes
        depths = np.cumsum(np.where(quoted & 1, 0, piece), dtype=np.int32) + depth
        deepest = max(deepest, int(depths.max()))
        depth, quotes = int(depths[-1]), int(quoted[-1]) & 1
    return deepest
