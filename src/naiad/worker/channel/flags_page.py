"""The board: shared memory on which the server writes and a worker reads, so that neither waits for the other.

A byte a request says whether it was cancelled and whether its responses are taken as fast as they come; a byte a
block says that the server uses it no more; a counter says how many messages of responses the server has read. Nothing
here costs anything while nobody is cancelled and nobody is slow. The worker writes there whether its model says that
it is ready, and which batch it has begun, so that the server knows after a death whether the last one was executed.
"""

from __future__ import annotations

import mmap
import os
import time

from naiad.worker.channel.buffer_pool import NUMBERS, anonymous_file

CANCELLED = 1
"""The client has given the request up."""
PAUSED = 2
"""The client takes responses more slowly than they come: no more for now."""
SLOTS = 65536
"""Requests with a byte of their own: most that are open in a worker at a time."""
FIRST_LATE_SLOT = SLOTS // 2
"""Ordinary models: slots below belong to the requests of the batch that executes, the others to late responses."""
FIRST_LATE_PLACE = 1 << 40
"""Added to the slot of a late response, this is its place, where requests of the executing batch have a number."""
READY_LIMIT_S = 5.0
"""Triton: a model that has been asked for longer whether it is ready is not."""
_READINESS_AT = 8
_BEGUN_AT = 24
_BLOCKS_AT = 4096
_SLOTS_AT = _BLOCKS_AT + NUMBERS
_SIZE_BYTES = _SLOTS_AT + SLOTS


class FlagsPage:
    """One side's mapping. The server writes all but the bytes of blocks, which the worker clears, and readiness."""

    __slots__ = ("_begun", "_bytes", "_counter", "_map", "_readiness", "blocks", "slots")

    def __init__(self, descriptor: int) -> None:
        """Map the board. Raises OSError."""
        self._map = mmap.mmap(descriptor, _SIZE_BYTES)
        self._bytes = memoryview(self._map)
        self._counter = self._bytes[:8].cast("Q")
        self._readiness = self._bytes[_READINESS_AT : _READINESS_AT + 16].cast("Q")
        """Since when the model has been asked (`time.monotonic_ns`), 0 for not now; 1 when it said no."""
        self._begun = self._bytes[_BEGUN_AT : _BEGUN_AT + 8].cast("Q")
        """Number of the last batch that the worker has begun to execute."""
        self.blocks = self._bytes[_BLOCKS_AT:_SLOTS_AT]
        """Set to RELEASED by the server when it has let go of a block, to GONE by the worker when that is no more."""
        self.slots = self._bytes[_SLOTS_AT:]
        """CANCELLED and CONGESTED by the request's slot."""

    def close(self) -> None:
        """Unmap the board; nobody may look at it any more."""
        for view in (self._counter, self._readiness, self._begun, self.blocks, self.slots, self._bytes):
            view.release()
        self._map.close()

    @property
    def taken_count(self) -> int:
        """Messages of responses that the server has read."""
        return self._counter[0]

    def count_taken(self) -> None:
        """Note that one more message of responses was read."""
        self._counter[0] += 1

    def note_begun(self, serial: int) -> None:
        """Note that the batch with this number is about to be executed; the worker's."""
        self._begun[0] = serial

    def has_begun(self, serial: int) -> bool:
        """Tell whether the worker has begun to execute the batch with this number."""
        return self._begun[0] >= serial

    def begin_question(self) -> None:
        """Note that the model is being asked whether it is ready; the worker's."""
        self._readiness[0] = time.monotonic_ns()

    def say_ready(self, is_ready: bool) -> None:
        """Note what the model has answered; the worker's."""
        self._readiness[1] = not is_ready
        self._readiness[0] = 0

    def says_ready(self, now_ns: int) -> bool:
        """Tell whether the model says that it is ready, or says nothing."""
        asked_ns = self._readiness[0]
        return not self._readiness[1] and not (asked_ns and now_ns - asked_ns > READY_LIMIT_S * 1e9)


def create_board() -> tuple[FlagsPage, int]:
    """Return a new board and a descriptor of it for the other side, which the caller closes. Raises OSError."""
    descriptor = anonymous_file(_SIZE_BYTES)
    try:
        return FlagsPage(descriptor), descriptor
    except OSError:
        os.close(descriptor)
        raise
