"""How many values a JSON body may have that is parsed on the event loop: many small ones take long in few bytes."""

import numpy as np

from naiad.core.tensor import Buffer

MAX_MEMBERS_AND_CONTAINERS = 1 << 16
"""Limit of arrays, objects and members of objects together: each becomes a Python object of its own."""
MAX_ELEMENTS = 500_000
"""Limit of commas, which part the elements of arrays."""

_STEPS = bytes.maketrans(b'"[{:,', b"\0\1\1\1\2")
"""Quotes become 0, what begins a container or a value of a member 1, commas 2."""
_OTHERS = bytes(set(range(256)) - set(b'"[{:,'))
_PIECE = 1 << 20


def excess_of_values(text: Buffer) -> str | None:
    """Return what a document has too much of, with the limit; None for a document that can be parsed at once.

    For text that is not JSON the numbers are arbitrary.
    """
    data = text if isinstance(text, bytes) else bytes(text)
    # Nearly every document has few of them, also in its texts, which do not count.
    containers, commas = sum(map(data.count, (b"[", b"{", b":"))), data.count(b",")
    if containers > MAX_MEMBERS_AND_CONTAINERS or commas > MAX_ELEMENTS:
        containers, commas = _count_outside_texts(data)
    if containers > MAX_MEMBERS_AND_CONTAINERS:
        return f"{containers} arrays, objects and members; at most {MAX_MEMBERS_AND_CONTAINERS} are read"
    if commas > MAX_ELEMENTS:
        return f"{commas} commas between values; at most {MAX_ELEMENTS} are read"
    return None


def _count_outside_texts(data: bytes) -> tuple[int, int]:
    if b"\\" in data:
        # Only texts have backslashes; without these each quote begins or ends a text.
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = np.frombuffer(data.translate(_STEPS, _OTHERS), np.uint8)
    containers = commas = 0
    is_text = False
    for start in range(0, len(marks), _PIECE):
        piece = marks[start : start + _PIECE]
        quoted = np.logical_xor.accumulate(piece == 0) ^ is_text
        containers += int(np.count_nonzero((piece == 1) & ~quoted))
        commas += int(np.count_nonzero((piece == 2) & ~quoted))
        is_text = bool(quoted[-1])
    return containers, commas
