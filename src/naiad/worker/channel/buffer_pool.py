"""A buffer pool: blocks of shared memory for large payloads, created by the sender and used by the receiver.

Theory of operation: the ownership of blocks. A block is an anonymous file (memfd, or an unlinked temporary file) that
both sides map; /dev/shm is not used. Each direction has a pool: the owner (`BufferOwner`) is the sender of payloads,
the user (`BufferUser`) their receiver. A block has one of three states at its owner:

- free: no side reads it; the owner may write a payload into it (`lend`), or drop it.
- lent: a frame names it. The owner must not write to it, and the user may hand out views without a copy.
- dropped: the owner has unmapped it (`trim`, after `IDLE_S`) and freed its pages; its number may be reused later.

The path of a block:

1. The owner creates it. Its descriptor travels once (SCM_RIGHTS) with the frame that announces it under "opened".
2. The user maps it. Arrays of the model refer to the mapping, directly or through others, so the reference count of
   the mapping shows when no view is left: then the block is released. Arrays that a model keeps therefore stay valid.
3. A release is reported in "freed" of the next frame in the other direction, or, if none is due, as a byte of the
   flags page that the owner polls (`reclaim`). The block is free again.
4. A drop is reported in "dropped" of a later frame, and at once as a byte of the flags page, so that the user need
   not keep the mapping until then.

`limit_bytes` bounds all blocks of an owner; beyond it `lend` raises TransportFullError and the sender waits.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

GRANULE_BYTES = 65536
NUMBERS = 4096
"""Block numbers identify bytes of the flags page modulo this."""
RELEASED = 1
"""On the flags page: the user has released the block."""
GONE = 2
"""On the flags page: the owner has dropped the block."""
IDLE_S = 10.0
"""A free block is dropped after this time without use."""
_WASTE = 4
"""A free block is used for a payload unless it is more than this many times larger."""


class TransportFullError(Exception):
    """A payload exceeds the remaining limit."""

    def __init__(self, needed_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"{needed_bytes} bytes of tensors do not fit into the shared memory between server and worker, of which "
            f"{max(0, limit_bytes)} bytes are left (--backend-config=python,transport-max-byte-size)"
        )
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
    """Return the size of a new block: a multiple of an eighth of a power of two, which wastes at most a tenth or
    so.
    """
    step = max(GRANULE_BYTES, 1 << max(0, needed_bytes.bit_length() - 4))
    return -(-needed_bytes // step) * step


class BufferOwner:
    """The blocks that this side creates. Not thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self.board: memoryview | None = None
        """The user's bytes of the flags page, which announce a drop before the next frame does."""
        self.limit_bytes = limit_bytes
        """Limit of all blocks together; may change at any time."""
        self.total_bytes = 0
        self._free: dict[int, _Block] = {}
        self._lent: dict[int, _Block] = {}
        self._last_number = 0
        self.opened: list[tuple[int, int, int]] = []
        """Number, size and file descriptor of blocks that are not announced yet."""
        self.dropped: list[int] = []
        """Numbers of dropped blocks that no frame has reported yet."""

    def lend(self, parts: Sequence[Any], needed_bytes: int) -> int:
        """Copy `parts`, which are C-contiguous buffers, into a block and return its number.

        Raises TransportFullError if the limit leaves no room.
        """
        block = self._find(needed_bytes) or self._create(needed_bytes)
        target = np.frombuffer(block.map, np.uint8)
        position = 0
        for part in parts:
            size = memoryview(part).nbytes
            if not size:
                continue
            # numpy releases the GIL while it copies; slices of a memoryview would not.
            target[position : position + size] = np.frombuffer(part, np.uint8)
            position += size
        self._lent[block.number] = self._free.pop(block.number)
        return block.number

    def take_back(self, numbers: Iterable[int]) -> None:
        """Note that the user has released these blocks."""
        now_s = time.monotonic()
        for number in numbers:
            block = self._lent.pop(number, None)
            if block is not None:
                block.free_since_s = now_s
                self._free[number] = block

    def reclaim(self, released: memoryview) -> None:
        """Take back the blocks with the byte RELEASED in `released`, at their number modulo NUMBERS; clear it."""
        numbers = [number for number in self._lent if released[number % NUMBERS] == RELEASED]
        for number in numbers:
            released[number % NUMBERS] = 0
        self.take_back(numbers)

    def note_reported(self) -> None:
        """Note that a frame reports the dropped blocks."""
        if self.board is not None:
            for number in self.dropped:
                self.board[number % NUMBERS] = 0
        self.dropped = []

    def trim(self, idle_s: float = IDLE_S) -> None:
        """Drop free blocks that have not been used for `idle_s`."""
        before_s = time.monotonic() - idle_s
        for block in [block for block in self._free.values() if block.free_since_s <= before_s]:
            self._drop(block)

    def close(self) -> None:
        """Drop all blocks."""
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
            # The byte may belong to a dropped block with the same number; the frame that announces the new one
            # reports that drop, too.
            self.board[block.number % NUMBERS] = 0
        self.opened.append((block.number, size_bytes, descriptor))
        self.total_bytes += size_bytes
        # Free until it has its payload: a failed copy leaves it to the next one.
        block.free_since_s = time.monotonic()
        self._free[block.number] = block
        return block

    def _drop(self, block: _Block) -> None:
        del self._free[block.number]
        self.total_bytes -= block.size_bytes
        self.dropped.append(block.number)
        if self.board is not None:
            self.board[block.number % NUMBERS] = GONE
        # Frees the pages at once, although the user keeps its mapping until it gets the report.
        if hasattr(mmap, "MADV_REMOVE"):
            with contextlib.suppress(OSError):  # if unsupported, the pages are freed with the last mapping
                block.map.madvise(mmap.MADV_REMOVE)
        block.map.close()


def anonymous_file(size_bytes: int) -> int:
    """Return a descriptor of new anonymous memory. Raises OSError."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("naiad", os.MFD_CLOEXEC)
    else:
        import tempfile  # its imports take longer than all others of this module

        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size_bytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class BufferUser:
    """The blocks that the peer has created. Not thread-safe."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._maps: dict[int, mmap.mmap] = {}
        self._unused: dict[int, int] = {}
        """The reference count of an unused block."""
        self.held: set[int] = set()
        """Numbers of blocks in use at the last check."""

    def open(self, number: int, size_bytes: int, descriptor: int) -> None:
        """Map a new block and close the descriptor."""
        try:
            self._maps[number] = mmap.mmap(descriptor, size_bytes)
        finally:
            os.close(descriptor)
        self._unused[number] = self._references(number)
        self.total_bytes += size_bytes

    def view(self, number: int, size_bytes: int) -> memoryview:
        """Return the first bytes of a block. Raises LookupError or ValueError for an unknown block or size."""
        mapping = self._maps[number]
        if size_bytes > len(mapping):
            raise ValueError(f"{size_bytes} bytes in a block of {len(mapping)}")
        self.held.add(number)
        return memoryview(mapping)[:size_bytes]

    @property
    def has_released(self) -> bool:
        """Whether blocks were released since the last report."""
        return any(self._references(number) <= self._unused[number] for number in self.held)

    def released(self) -> list[int]:
        """Return the numbers of blocks that were released since the last report."""
        free = [number for number in self.held if self._references(number) <= self._unused[number]]
        self.held.difference_update(free)
        return free

    def drop(self, numbers: Iterable[int]) -> None:
        """Unmap blocks that the peer has dropped; no effect for unknown ones."""
        for number in numbers:
            mapping = self._maps.pop(number, None)
            if mapping is None:
                continue
            del self._unused[number]
            self.total_bytes -= len(mapping)
            self.held.discard(number)
            _unmap(mapping)

    def drop_gone(self, board: memoryview) -> None:
        """Unmap blocks that the peer has marked as dropped on the flags page."""
        self.drop([number for number in self._maps if board[number % NUMBERS] == GONE])

    def close(self) -> None:
        """Forget all blocks; views still in use keep their mappings."""
        self._maps.clear()
        self.held.clear()

    def _references(self, number: int) -> int:
        # Every array and memoryview on a mapping refers to it, directly or through others.
        return sys.getrefcount(self._maps[number])


def _unmap(mapping: mmap.mmap) -> None:
    with contextlib.suppress(BufferError):  # a view is still in use; the last one frees the mapping
        mapping.close()
