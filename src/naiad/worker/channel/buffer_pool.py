"""Blocks: shared memory for large payloads, made by the sender, lent to the receiver, and used again.

A block is an anonymous file (memfd, or an unlinked temporary file where there is none) that both sides map;
/dev/shm plays no part. The receiver hands out views and needs no copy: it gives a block back when nothing refers to
its mapping any more, which the mapping's reference count tells. So arrays that a model keeps stay valid.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

GRANULE_BYTES = 65536
NUMBERS = 4096
"""Numbers of blocks differ modulo this."""
RELEASED = 1
"""On the board: the receiver uses the block no more."""
GONE = 2
"""On the board: who made the block has dropped it."""
IDLE_S = 10.0
"""A free block that has not been used for so long is given up."""
_WASTE = 4
"""A free block serves a payload unless it is more than so many times larger."""


class TransportFullError(Exception):
    """A payload does not fit into what the cap leaves."""

    def __init__(self, needed_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"{needed_bytes} bytes do not fit")
        self.needed_bytes = needed_bytes
        self.limit_bytes = limit_bytes


class _Block:
    __slots__ = ("free_since_s", "map", "number", "size_bytes")

    def __init__(self, number: int, size_bytes: int, mapping: mmap.mmap) -> None:
        self.number = number
        self.size_bytes = size_bytes
        self.map = mapping
        self.free_since_s = 0.0


def rounded(needed_bytes: int) -> int:
    """Return the size of a new block: an eighth of a power of two, so that a tenth or less is wasted."""
    step = max(GRANULE_BYTES, 1 << max(0, needed_bytes.bit_length() - 4))
    return -(-needed_bytes // step) * step


class BufferOwner:
    """The blocks that this side made. Not thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self.board: memoryview | None = None
        """Where a byte a block tells a receiver that it is gone, which may hear of it by a message much later."""
        self.limit_bytes = limit_bytes
        """Most bytes that all blocks together may have; may change at any time."""
        self.total_bytes = 0
        self._free: dict[int, _Block] = {}
        self._lent: dict[int, _Block] = {}
        self._last_number = 0
        self.opened: list[tuple[int, int, int]] = []
        """Number, size and file descriptor of blocks that the receiver does not know yet."""
        self.dropped: list[int] = []
        """Numbers of blocks that the receiver does not know to be gone."""

    def lend(self, parts: Sequence[Any], needed_bytes: int) -> int:
        """Copy `parts`, which are C-contiguous buffers, into a block and return its number.

        Raises TransportFullError when the limit leaves no room.
        """
        block = self._find(needed_bytes) or self._create(needed_bytes)
        target = np.frombuffer(block.map, np.uint8)
        position = 0
        for part in parts:
            size = memoryview(part).nbytes
            if not size:
                continue
            # numpy lets other threads run while it copies; slices of a memoryview would not.
            target[position : position + size] = np.frombuffer(part, np.uint8)
            position += size
        self._free.pop(block.number, None)
        self._lent[block.number] = block
        return block.number

    def take_back(self, numbers: Iterable[int]) -> None:
        """Note that the receiver uses these blocks no more."""
        now_s = time.monotonic()
        for number in numbers:
            block = self._lent.pop(number, None)
            if block is not None:
                block.free_since_s = now_s
                self._free[number] = block

    def reclaim(self, released: memoryview) -> None:
        """Take back the blocks whose byte in `released`, at their number modulo NUMBERS, is 1; clear it."""
        numbers = [number for number in self._lent if released[number % NUMBERS] == RELEASED]
        for number in numbers:
            released[number % NUMBERS] = 0
        self.take_back(numbers)

    def told(self) -> None:
        """Note that the receiver hears of the blocks that were dropped."""
        if self.board is not None:
            for number in self.dropped:
                self.board[number % NUMBERS] = 0
        self.dropped = []

    def trim(self, idle_s: float = IDLE_S) -> None:
        """Give up free blocks that have not been used for `idle_s`."""
        before_s = time.monotonic() - idle_s
        for block in [block for block in self._free.values() if block.free_since_s <= before_s]:
            self._drop(block)

    def close(self) -> None:
        """Give up all blocks."""
        self.take_back(list(self._lent))
        self.trim(0.0)
        for _, _, descriptor in self.opened:
            os.close(descriptor)
        self.opened.clear()

    def _find(self, needed_bytes: int) -> _Block | None:
        fitting = [block for block in self._free.values() if block.size_bytes >= needed_bytes]
        best = min(fitting, key=lambda block: block.size_bytes, default=None)
        if best is None or best.size_bytes <= _WASTE * max(needed_bytes, GRANULE_BYTES):
            return best
        return None if self.total_bytes + rounded(needed_bytes) <= self.limit_bytes else best

    def _create(self, needed_bytes: int) -> _Block:
        size_bytes = rounded(needed_bytes)
        for block in sorted(self._free.values(), key=lambda block: block.free_since_s):
            if self.total_bytes + size_bytes <= self.limit_bytes:
                break
            self._drop(block)
        if self.total_bytes + size_bytes > self.limit_bytes:
            raise TransportFullError(needed_bytes, self.limit_bytes)
        taken = {number % NUMBERS for number in (*self._lent, *self._free)}
        if len(taken) == NUMBERS:
            raise TransportFullError(needed_bytes, self.limit_bytes)
        self._last_number += 1
        while self._last_number % NUMBERS in taken:
            self._last_number += 1
        descriptor = anonymous_file(size_bytes)
        try:
            block = _Block(self._last_number, size_bytes, mmap.mmap(descriptor, size_bytes))
        except BaseException:
            os.close(descriptor)
            raise
        if self.board is not None:
            # One that was dropped may have had the place; the message that tells of the new one tells of that, too.
            self.board[block.number % NUMBERS] = 0
        self.opened.append((block.number, size_bytes, descriptor))
        self.total_bytes += size_bytes
        return block

    def _drop(self, block: _Block) -> None:
        del self._free[block.number]
        self.total_bytes -= block.size_bytes
        self.dropped.append(block.number)
        if self.board is not None:
            self.board[block.number % NUMBERS] = GONE
        # Frees the pages at once, although the receiver keeps its mapping until it hears of this.
        if hasattr(mmap, "MADV_REMOVE"):
            with contextlib.suppress(OSError):  # where it cannot be done the pages go with the last mapping
                block.map.madvise(mmap.MADV_REMOVE)
        block.map.close()


def anonymous_file(size_bytes: int) -> int:
    """Return a descriptor of new memory that no path leads to. Raises OSError."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("naiad", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size_bytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class BufferUser:
    """The blocks that the peer made. Not thread-safe."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._maps: dict[int, mmap.mmap] = {}
        self._unused: dict[int, int] = {}
        """What `_references` says of a block that nobody uses."""
        self.held: set[int] = set()
        """Numbers of blocks that were in use when last looked at."""

    def open(self, number: int, size_bytes: int, descriptor: int) -> None:
        """Map a new block and close the descriptor."""
        try:
            self._maps[number] = mmap.mmap(descriptor, size_bytes)
        finally:
            os.close(descriptor)
        self._unused[number] = self._references(number)
        self.total_bytes += size_bytes

    def view(self, number: int, size_bytes: int) -> memoryview:
        """Return the first bytes of a block. Raises LookupError or ValueError for what is not there."""
        mapping = self._maps[number]
        if size_bytes > len(mapping):
            raise ValueError(f"{size_bytes} bytes in a block of {len(mapping)}")
        self.held.add(number)
        return memoryview(mapping)[:size_bytes]

    @property
    def has_released(self) -> bool:
        """Whether there are blocks that were in use and are not any more."""
        return any(self._references(number) <= self._unused[number] for number in self.held)

    def released(self) -> list[int]:
        """Return the numbers of blocks that were in use and are not any more."""
        free = [number for number in self.held if self._references(number) <= self._unused[number]]
        self.held.difference_update(free)
        return free

    def drop(self, numbers: Iterable[int]) -> None:
        """Unmap blocks that the peer has given up, unless that is done."""
        for number in numbers:
            mapping = self._maps.pop(number, None)
            if mapping is None:
                continue
            del self._unused[number]
            self.total_bytes -= len(mapping)
            self.held.discard(number)
            _unmap(mapping)

    def drop_gone(self, board: memoryview) -> None:
        """Unmap blocks that the peer says on the board that it has dropped."""
        self.drop([number for number in self._maps if board[number % NUMBERS] == GONE])

    def close(self) -> None:
        """Forget all blocks; views that are still in use keep theirs mapped."""
        self._maps.clear()
        self.held.clear()

    def _references(self, number: int) -> int:
        # Every array and memoryview on a mapping refers to it, directly or through others.
        return sys.getrefcount(self._maps[number])


def _unmap(mapping: mmap.mmap) -> None:
    with contextlib.suppress(BufferError):  # a view is still in use; the mapping goes with the last of them
        mapping.close()
