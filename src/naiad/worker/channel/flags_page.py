"""The flags page: shared memory with the state that server and worker signal to each other without messages.

Theory of operation. Frames take turns, so a cancellation or a slow client could not be signalled while the worker
executes. Both sides map one page of bytes and words; each field has one writer, is written atomically, and is only a
hint or a counter, so no lock is needed.

- `slots`: one byte per open request, written by the server. CANCELLED: the client has cancelled. PAUSED: the client
  is slower than the model, and its response sender must wait. LISTENING: it has cancelled, and reads what still
  comes. Ordinary models use the slots below FIRST_LATE_SLOT for the batch that executes, and the higher ones for late
  responses.
- `blocks`: one byte per block of the worker's buffer pool. The server writes RELEASED when it has released a block;
  the worker clears it (`BufferOwner.reclaim`), and writes GONE when it has dropped the block.
- The counter of messages of responses that the server has read: the worker compares it with the number sent, and
  collects responses into larger messages while the server is behind.
- Readiness and the number of the last batch begun, written by the worker: after a death the server knows whether the
  last batch was executed, and queues it again if not.

A sender that waits for a slow client or a block also sends a frame (ASK), so that the server checks again; the page
alone would need polling. The page costs nothing while no request is cancelled and no client is slow.
"""

from __future__ import annotations

import mmap
import os
import time

from naiad.worker.channel.buffer_pool import NUMBERS, anonymous_file

CANCELLED = 1
"""The client has cancelled the request."""
PAUSED = 2
"""The client is slower than the model: wait before the next response."""
LISTENING = 4
"""The caller has cancelled and still reads the responses: a model that iterates over them."""
SLOTS = 65536
"""Requests with a byte of their own: limit of the open requests of a worker."""
FIRST_LATE_SLOT = SLOTS // 2
"""Ordinary models: lower slots belong to the executing batch, the higher ones to late responses."""
FIRST_LATE_PLACE = 1 << 40
"""Place of a late response: its slot plus this; requests of the executing batch have a number."""
READY_LIMIT_S = 5.0
"""Triton: a model without a result after this time is not ready."""
_READINESS_AT = 8
_BEGUN_AT = 24
_BLOCKS_AT = 4096
_SLOTS_AT = _BLOCKS_AT + NUMBERS
_SIZE_BYTES = _SLOTS_AT + SLOTS


class FlagsPage:
    """One side's mapping. The server writes all fields but readiness and the batch; the worker clears bytes of
    blocks.
    """

    __slots__ = ("_begun", "_bytes", "_counter", "_map", "_readiness", "blocks", "slots")

    def __init__(self, descriptor: int) -> None:
        """Map the page. Raises OSError."""
        self._map = mmap.mmap(descriptor, _SIZE_BYTES)
        self._bytes = memoryview(self._map)
        self._counter = self._bytes[:8].cast("Q")
        self._readiness = self._bytes[_READINESS_AT : _READINESS_AT + 16].cast("Q")
        """Start of the running check of readiness (`time.monotonic_ns`), 0 for none; 1 after the result False."""
        self._begun = self._bytes[_BEGUN_AT : _BEGUN_AT + 8].cast("Q")
        """Number of the last batch that the worker has begun to execute."""
        self.blocks = self._bytes[_BLOCKS_AT:_SLOTS_AT]
        """RELEASED, set by the server, or GONE, set by the worker when it has dropped the block."""
        self.slots = self._bytes[_SLOTS_AT:]
        """CANCELLED and PAUSED by the request's slot."""

    def close(self) -> None:
        """Unmap the page; it must not be used any more."""
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
        """Note that the batch with this number is about to be executed; for the worker."""
        self._begun[0] = serial

    def has_begun(self, serial: int) -> bool:
        """Return whether the worker has begun to execute the batch with this number."""
        return self._begun[0] >= serial

    def begin_question(self) -> None:
        """Note the start of a check of the model's readiness; for the worker."""
        self._readiness[0] = time.monotonic_ns()

    def say_ready(self, is_ready: bool) -> None:
        """Note the result of the check; for the worker."""
        self._readiness[1] = not is_ready
        self._readiness[0] = 0

    def says_ready(self, now_ns: int) -> bool:
        """Return whether the model is ready, or has no check."""
        asked_ns = self._readiness[0]
        return not self._readiness[1] and not (asked_ns and now_ns - asked_ns > READY_LIMIT_S * 1e9)


def create_board() -> tuple[FlagsPage, int]:
    """Return a new page and a descriptor of it for the other side, which the caller closes. Raises OSError."""
    descriptor = anonymous_file(_SIZE_BYTES)
    try:
        return FlagsPage(descriptor), descriptor
    except OSError:
        os.close(descriptor)
        raise
