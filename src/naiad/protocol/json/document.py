"""Long JSON documents, read in slices: their large values are located but not parsed.

A request is a few short values around a few arrays or strings that hold nearly all of its bytes:

    {"inputs": [{"name": "A", "shape": [3, 224, 224], "datatype": "FP32", "data": [0.1, 0.2, ...]}]}
                                                                                   '------------' long

The reader reads the short values token by token, and a long array or string window by window. It returns the short
values as Python objects and the long ones as `LongArray` and `LongString`, which `long_data` decodes. The values,
members and bytes of the short part are bounded, so a hostile document costs no more than the walk over its bytes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import orjson

from naiad.core.errors import InferError, invalid_argument
from naiad.core.limits.request_limits import MAX_MEMBERS
from naiad.core.slices import SLICE_BYTES, Slices
from naiad.core.tensor import Buffer
from naiad.protocol.json.tree import MAX_DATA_DEPTH, Members, data_too_deep, parse_document, syntax_error, too_deep

SHORT_BYTES = 64 * 1024
"""Documents up to this size are parsed at once, and so are short arrays and strings of longer ones."""
MAX_PLAIN_BYTES = 1 << 20
"""Limit of the text around long arrays and strings."""
_FIRST_WINDOW_BYTES = 512
"""Most arrays are short: shapes."""
_MAX_VALUES = 16384
_MAX_NESTED_OBJECTS = 16

_SPACE = re.compile(rb"[ \t\r\n]*")
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]{1,400}")
_SHORT_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BEGINS_WITH_OBJECT = re.compile(rb"\[[ \t\r\n]*(?:\{|\[[ \t\r\n]*\{)")

_QUOTE, _COMMA, _OPEN, _CLOSE, _BRACE = b'",[]{'
_STEPS = np.zeros(256, np.int8)
_STEPS[_OPEN], _STEPS[_CLOSE] = 1, -1

Piece: TypeAlias = tuple[int, int, int, int]
"""Start and end of a part of an array, and how deep its brackets are nested at both."""


@dataclass(frozen=True, slots=True)
class LongString:
    """A located string that is not decoded yet."""

    document: memoryview
    start: int
    """Position after its opening quote."""
    end: int
    """Position of its closing quote."""


@dataclass(frozen=True, slots=True)
class LongArray:
    """A located array that is not parsed yet, cut into pieces at commas between its values."""

    document: memoryview
    pieces: Sequence[Piece]
    length: int
    """Number of values; a nested array counts as one."""
    has_objects: bool

    @property
    def size_bytes(self) -> int:
        """Return the length of its text."""
        return self.pieces[-1][1] - self.pieces[0][0]


def read_document(text: Buffer, max_objects: int = MAX_MEMBERS) -> Slices[Any]:
    """Return a document in slices: objects as `Members`, arrays of objects as lists, long values unparsed.

    An array has at most `max_objects` objects.

    Raises InferError for invalid JSON, and for a document with too many values, members or levels.
    """
    return _Reader(text, max_objects).read()


class _Reader:
    """One document and the position in it."""

    def __init__(self, text: Buffer, max_objects: int) -> None:
        self._max_objects = max_objects
        self._view = memoryview(text)
        self._at = 0
        self._member = ""
        self._plain_bytes = 0
        self._value_count = 0

    def read(self) -> Slices[Any]:
        """Return the value of the whole document."""
        value = yield from self._value(0)
        if (yield from self._next()) >= 0:
            raise syntax_error("unexpected data behind the document", self._at)
        return value

    def _next(self) -> Slices[int]:
        """Skip white space, of any length, and return the byte after it; -1 at the end."""
        while True:
            match = _SPACE.match(self._view, self._at, self._at + SLICE_BYTES)
            skipped = 0 if match is None else match.end() - self._at
            self._at += skipped
            if skipped < SLICE_BYTES:
                return self._view[self._at] if self._at < len(self._view) else -1
            yield

    def _advance(self, end: int) -> None:
        """Advance over short text."""
        self._plain_bytes += end - self._at
        self._at = end
        if self._plain_bytes > MAX_PLAIN_BYTES:
            raise invalid_argument(
                f"what stands around the tensor data of the request JSON has more than {MAX_PLAIN_BYTES} bytes"
            )

    def _take(self, mark: bytes) -> Slices[None]:
        found = yield from self._next()
        if found != mark[0]:
            got = "the end" if found < 0 else repr(chr(found))
            raise syntax_error(f"expected {mark.decode()!r}, got {got}", self._at)
        self._advance(self._at + 1)

    def _value(self, depth: int) -> Slices[Any]:
        self._value_count += 1
        if self._value_count > _MAX_VALUES:
            raise invalid_argument(f"the request JSON has more than {_MAX_VALUES} values beside its tensor data")
        mark = yield from self._next()
        if mark == b"{"[0]:
            return (yield from self._object(depth + 1))
        if mark == _OPEN:
            if _BEGINS_WITH_OBJECT.match(self._view, self._at, self._at + SHORT_BYTES):
                return (yield from self._list(depth + 1))
            return (yield from self._array())
        if mark == _QUOTE:
            return (yield from self._string())
        return self._scalar()

    def _object(self, depth: int) -> Slices[Members]:
        if depth > _MAX_NESTED_OBJECTS:
            raise too_deep(_MAX_NESTED_OBJECTS)
        yield from self._take(b"{")
        members: list[tuple[str, Any]] = []
        while (yield from self._next()) != b"}"[0] or members:
            if self._at >= len(self._view) or self._view[self._at] != _QUOTE:
                raise syntax_error("expected the name of a member", self._at)
            name = yield from self._string()
            if not isinstance(name, str):
                raise invalid_argument(f"the name of a JSON member has more than {SHORT_BYTES} bytes")
            yield from self._take(b":")
            self._member = name
            members.append((name, (yield from self._value(depth))))
            if len(members) > MAX_MEMBERS:
                raise invalid_argument(f"an object of the request JSON has more than {MAX_MEMBERS} members")
            if (yield from self._next()) == b"}"[0]:
                break
            yield from self._take(b",")
        yield from self._take(b"}")
        return tuple(members)

    def _list(self, depth: int) -> Slices[list[Any]]:
        """Return an array of objects."""
        if depth > _MAX_NESTED_OBJECTS:
            raise too_deep(_MAX_NESTED_OBJECTS)
        yield from self._take(b"[")
        values: list[Any] = []
        while True:
            values.append((yield from self._value(depth)))
            if len(values) > self._max_objects:
                raise invalid_argument(
                    f"an array of the request JSON has more than {self._max_objects} objects, more than there are "
                    "tensors for it"
                )
            if (yield from self._next()) == _CLOSE:
                break
            yield from self._take(b",")
            yield
        yield from self._take(b"]")
        return values

    def _scalar(self) -> Any:
        match = _SCALAR.match(self._view, self._at)
        if match is None:
            raise syntax_error("expected a value", self._at)
        return self._parse(match.end())

    def _parse(self, end: int) -> Any:
        start = self._at
        self._advance(end)
        try:
            return parse_document(bytes(self._view[start:end]))
        except InferError as error:
            raise type(error)(error.code, f"{error.message} behind {start}") from None

    def _string(self) -> Slices[str | LongString]:
        start = self._at
        match = _SHORT_STRING.match(self._view, start, start + SHORT_BYTES)
        if match is not None:
            end = match.end()
            self._advance(end)
            try:
                text: str = orjson.loads(bytes(self._view[start:end]))
            except ValueError:
                self._at = start
                text = self._parse(end)
            return text
        end = yield from _end_of_string(self._view, start + 1)
        self._at = end + 1
        return LongString(self._view, start + 1, end)

    def _array(self) -> Slices[Any]:
        start = self._at
        scan = _ArrayScan(self._view, start, self._member)
        end = yield from scan.run()
        if end - start <= SHORT_BYTES:
            return self._parse(end)
        self._at = end
        return LongArray(self._view, scan.pieces, scan.comma_count + 1, scan.has_objects)


def _end_of_string(view: memoryview, start: int) -> Slices[int]:
    """Return the position of the quote that ends the string that begins at `start`."""
    at, is_escaped = start, False
    while True:
        window, is_escaped = _without_escapes(bytes(view[at : at + SLICE_BYTES]), is_escaped)
        if not window:
            raise syntax_error("Unterminated string", start)
        found = window.find(b'"')
        if found >= 0:
            return at + found
        at += len(window)
        yield


def _without_escapes(window: bytes, is_escaped: bool) -> tuple[bytes, bool]:
    """Return a window of the same size without escaped quotes, and whether the next byte is escaped."""
    if is_escaped and window:
        window = b"x" + window[1:]
    if b"\\" not in window:
        return window, False
    is_next_escaped = (len(window) - len(window.rstrip(b"\\"))) % 2 == 1
    return window.replace(b"\\\\", b"xx").replace(b'\\"', b"xx"), is_next_escaped


class _ArrayScan:
    """Finds the end of an array and its cut positions, window by window."""

    def __init__(self, view: memoryview, start: int, member: str) -> None:
        self._view = view
        self._member = member
        self._depth = 1
        self._is_in_string = False
        self._is_escaped = False
        self._piece_start = start
        self._piece_depth = 0
        self._at = start + 1
        self._window_bytes = _FIRST_WINDOW_BYTES
        self.pieces: list[Piece] = []
        self.comma_count = 0
        """Commas between the values of the outermost array."""
        self.has_objects = False

    def run(self) -> Slices[int]:
        """Return the position after the array."""
        while True:
            raw = bytes(self._view[self._at : self._at + self._window_bytes])
            self._window_bytes = min(4 * self._window_bytes, SLICE_BYTES)
            if not raw:
                raise syntax_error("the array does not end", self._piece_start)
            window, self._is_escaped = _without_escapes(raw, self._is_escaped)
            end = self._scan_flat(window) if self._is_flat(window) else self._scan(window)
            if end >= 0:
                self.pieces.append((self._piece_start, end, self._piece_depth, 0))
                return end
            self._at += len(window)
            if self._window_bytes == SLICE_BYTES:
                yield

    def _is_flat(self, window: bytes) -> bool:
        """Return whether a window has only numbers, commas, and perhaps the end of the array."""
        if self._is_in_string or b'"' in window or b"[" in window or b"{" in window:
            return False
        return self._depth == 1 or b"]" not in window

    def _scan_flat(self, window: bytes) -> int:
        """Scan a flat window; return the position after the array if it ends there, or -1."""
        close = window.find(b"]") if self._depth == 1 else -1
        stop = len(window) if close < 0 else close
        if self._depth == 1:
            # Nearly every fifth byte is a comma: numpy counts them ten times as fast as `bytes.count`.
            self.comma_count += int(np.count_nonzero(np.frombuffer(window, np.uint8, stop) == _COMMA))
        if close >= 0:
            return self._at + close + 1
        comma = window.rfind(b",")
        if comma >= 0:
            self._cut(comma, self._depth)
        return -1

    def _scan(self, window: bytes) -> int:
        """Scan any window; return the position after the array if it ends there, or -1."""
        marks = np.frombuffer(window, np.uint8)
        inside = (np.cumsum(marks == _QUOTE, dtype=np.int32) + self._is_in_string) & 1
        outside = inside == 0
        depths = np.cumsum(_STEPS[marks] * outside, dtype=np.int32) + self._depth
        if int(depths.max()) > MAX_DATA_DEPTH:
            raise data_too_deep(self._member)
        ends = np.flatnonzero(depths == 0)
        stop = int(ends[0]) if len(ends) else len(marks)
        self.has_objects |= bool((outside[:stop] & (marks[:stop] == _BRACE)).any())
        commas = np.flatnonzero(outside[:stop] & (marks[:stop] == _COMMA))
        self.comma_count += int(np.count_nonzero(depths[commas] == 1))
        if len(commas):
            if self._at - self._piece_start > SLICE_BYTES:
                # The end of a long string, which is a piece of its own.
                self._cut(int(commas[0]), int(depths[commas[0]]))
            self._cut(int(commas[-1]), int(depths[commas[-1]]))
        if len(ends):
            return self._at + stop + 1
        self._depth, self._is_in_string = int(depths[-1]), bool(inside[-1])
        return -1

    def _cut(self, comma: int, depth: int) -> None:
        end = self._at + comma
        if end >= self._piece_start:
            self.pieces.append((self._piece_start, end, self._piece_depth, depth))
            self._piece_start, self._piece_depth = end + 1, depth
