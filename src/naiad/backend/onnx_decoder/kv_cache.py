"""The keys and values of all rows: rows that decode lie together in one block, other rows each alone.

    block    row A   . . . a a a a a     lengths 5, 8, 3; the ends are in line, and a mask hides what is before
             row B   b b b b b b b b
             row C   . . . . . c c c

ONNX Runtime wants one contiguous tensor for each layer, and returns one that is a token longer. Two buffers for each
take turns: the output of a step is the input of the next one where it lies. Rows are copied only when another set of
rows decodes. The longest row has no padding then, and all become longer together, so the block stays as narrow as
the longest row.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from naiad.backend.onnx_decoder.decoder_graph import CacheTensor
from naiad.core.tensor import Array

COPIES = 3
"""The most bytes are this many times the bytes of all tokens: two buffers, and rows outside of the block."""


class RowCache:
    """The keys and values of one row."""

    __slots__ = ("arrays", "length")

    def __init__(self) -> None:
        self.length = 0
        """Tokens."""
        self.arrays: Sequence[Array] = ()
        """[1, heads, length, size] for each cache; empty while the row is in the block, or has no tokens."""


class _Buffers:
    """Two buffers of one cache, which take turns; they grow by doubling."""

    __slots__ = ("_flat", "_most", "_past", "_tensor")

    def __init__(self, tensor: CacheTensor, most_tokens: int) -> None:
        self._tensor = tensor
        self._most = prod(tensor.shape(1, most_tokens))
        self._flat = [np.empty(0, tensor.datatype.numpy), np.empty(0, tensor.datatype.numpy)]
        self._past = 0
        """Which one has the cache."""

    def past(self, rows: int, length: int) -> Array:
        shape = self._tensor.shape(rows, length)
        return self._flat[self._past][: prod(shape)].reshape(shape)

    def next(self, rows: int, length: int) -> Array:
        """Return room in the other buffer; its content is arbitrary."""
        shape = self._tensor.shape(rows, length)
        size, other = prod(shape), 1 - self._past
        if self._flat[other].size < size:
            larger = min(max(size, 2 * self._flat[other].size), max(size, self._most))
            self._flat[other] = np.empty(0, self._tensor.datatype.numpy)  # first, so that both are not there at once
            self._flat[other] = np.empty(larger, self._tensor.datatype.numpy)
        return self._flat[other][:size].reshape(shape)

    def swap(self) -> None:
        self._past = 1 - self._past


class CacheBlock:
    """The caches of the rows that decode together."""

    def __init__(self, tensors: Sequence[CacheTensor], most_tokens: int) -> None:
        """`most_tokens` is the number that all rows may have together."""
        self._buffers = [_Buffers(tensor, most_tokens) for tensor in tensors]
        self._rows: list[RowCache | None] = []
        """None for rows that have ended."""
        self.length = 0
        """Tokens of the longest row."""

    def arrange(self, wanted: Sequence[RowCache]) -> Sequence[RowCache]:
        """Have these rows in the block, and no others; return them in the order of the block."""
        ids = {id(row) for row in wanted}
        staying = [row for row in self._rows if row is not None and id(row) in ids]
        known = {id(row) for row in staying}
        rows = [*staying, *(row for row in wanted if id(row) not in known)]
        if len(rows) == len(self._rows) == len(staying):
            return rows
        length = max(row.length for row in rows)
        places = {id(row): place for place, row in enumerate(self._rows) if row is not None}
        leaving = [row for row in self._rows if row is not None and id(row) not in ids]
        parked: list[list[Array]] = [[] for _ in leaving]
        for number, buffers in enumerate(self._buffers):
            past = buffers.past(len(self._rows), self.length)
            block = buffers.next(len(rows), length)
            for position, row in enumerate(rows):
                # Zeros: older bytes may be no number, and a mask does not hide that.
                block[position, :, : length - row.length] = 0
                own = row.arrays[number] if row.arrays else self._part(past, places[id(row)], row)
                block[position, :, length - row.length :] = own[0]
            for row, arrays in zip(leaving, parked, strict=True):
                arrays.append(self._part(past, places[id(row)], row).copy())
        # Only now, when all copies have been made: without memory for one of them all is as before.
        for buffers in self._buffers:
            buffers.swap()
        for row, arrays in zip(leaving, parked, strict=True):
            row.arrays = arrays
        for row in rows:
            row.arrays = ()
        self._rows, self.length = list(rows), length
        return rows

    def _part(self, past: Array, place: int, row: RowCache) -> Array:
        """Return a row of the block without its padding."""
        return past[place : place + 1, :, self.length - row.length :]

    def mask(self) -> Array:
        """Return what counts [rows, length + 1], with the token that is computed."""
        lengths = np.array([row.length for row in self._rows if row is not None])
        found: Array = (np.arange(self.length + 1) >= (self.length - lengths)[:, None]).astype(np.int64)
        return found

    def pasts(self) -> Sequence[Array]:
        """Return the caches of all rows, [rows, heads, length, size]."""
        return [buffers.past(len(self._rows), self.length) for buffers in self._buffers]

    def room(self) -> Sequence[Array]:
        """Return where the caches with one more token are to be written."""
        return [buffers.next(len(self._rows), self.length + 1) for buffers in self._buffers]

    def advance(self) -> None:
        """Take note that the room has been written: each row has one more token."""
        for buffers in self._buffers:
            buffers.swap()
        for row in self._rows:
            if row is not None:
                row.length += 1
        self.length += 1

    def forget(self, ended: RowCache) -> None:
        """Drop a row that has ended; its place is used from the next change of rows on."""
        ended.arrays = ()
        self._rows = [None if row is ended else row for row in self._rows]
        if not any(row is not None for row in self._rows):
            self._rows, self.length = [], 0
