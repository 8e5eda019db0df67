"""The response sender: responses of a decoupled model on their way to the server.

A response is sent at once while the server keeps up. Otherwise responses are collected and sent in one message: with
the next response that finds the server ready, with the last one of a request, or half a millisecond later. The
collection is bounded: responses of `INLINE_BYTES` are sent in any case, which blocks once the pipe is full; large
ones wait for a block when shared memory is at its limit; and a sender waits for a slow client.

A thread that sends for several requests must not delay all of them for one slow client. The message that queries the
client's state therefore names the request, and whether the thread is known to be shared. The server lets the thread
continue when other requests wait, and cancels the request when too much is queued for its client
(backend/workers/conversation/open_requests.py).
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from naiad.worker.api.failure import TritonError, TritonModelException
from naiad.worker.api.response import InferenceResponse, closed_sender
from naiad.worker.channel import channel as channel_module
from naiad.worker.channel import frame as frames
from naiad.worker.channel.buffer_pool import TransportFullError, rounded
from naiad.worker.channel.channel import Channel
from naiad.worker.channel.flags_page import CANCELLED, LISTENING, PAUSED, FlagsPage
from naiad.worker.channel.frame import ChannelClosedError
from naiad.worker.execution.codec import (
    FINAL,
    HAS_RESPONSE,
    RESCHEDULED,
    SLOT_SHIFT,
    EncodedResponse,
    ResponseEncoder,
)
from naiad.worker.last_resort import start_thread

_GATHER_S = 0.0005
"""Maximum time that responses wait for others."""
_YIELD_COUNT = 16
"""A client waits mostly for the first response, and the client or the server perhaps for the core of the model: 100
responses on two cores, the first after 0.4 ms instead of 0.9, the last after 2.3 ms either way."""
_FIRST_WAIT_S = 0.0005
_LONGEST_WAIT_S = 0.02
_FLUSH = -1


def _has_running_loop() -> bool:
    """Return whether this thread runs coroutines. Importing asyncio takes a quarter of the start of a worker."""
    module = sys.modules.get("asyncio")
    return module is not None and module._get_running_loop() is not None


class OpenStream:
    """The responses of one request, until the final one. Every sender refers to it."""

    __slots__ = (
        "__weakref__",
        "_response_sender",
        "_was_cancelled",
        "is_closed",
        "output_names",
        "slot",
        "yields_left",
    )

    def __init__(self, response_sender: ResponseSender, slot: int, output_names: frozenset[str]) -> None:
        self._response_sender = response_sender
        self.slot = slot
        self.output_names = output_names
        self.yields_left = _YIELD_COUNT
        """Number of further responses after which the thread yields its core."""
        self.is_closed = False
        self._was_cancelled = False

    def send(self, response: InferenceResponse | None, *, is_final: bool) -> None:
        """Accept a response, or only the end of the responses. Raises TritonModelException."""
        # hot: bench/micro_emission.py
        if self._response_sender.board.slots[self.slot] and not self.is_closed:
            self._wait_for_client()
        self._response_sender.send(self, response, is_final)

    def is_cancelled(self) -> bool:
        """Return whether the client has cancelled the request."""
        if self.is_closed:
            return self._was_cancelled
        return bool(self._response_sender.board.slots[self.slot] & CANCELLED)

    def close(self, *, was_cancelled: bool) -> None:
        """Note that the final response is on its way: the slot belongs to another request as soon as it arrives."""
        self._was_cancelled = was_cancelled
        self.is_closed = True

    def _wait_for_client(self) -> None:
        """Wait while the client is paused."""
        slots = self._response_sender.board.slots
        wait_s = _FIRST_WAIT_S
        words = (self.slot << 1 | self._response_sender.is_shared_thread(),)
        while slots[self.slot] & PAUSED and not self.is_closed:
            self._response_sender.ask(words)
            time.sleep(wait_s)
            wait_s = min(_LONGEST_WAIT_S, 2 * wait_s)

    def __del__(self) -> None:
        if not self.is_closed:
            self._response_sender.abort(self.slot)


class ResponseSender:
    """Collects responses of all streams and sends them; used by any thread."""

    def __init__(self, channel: Channel, board: FlagsPage) -> None:
        self.board = board
        self._channel = channel
        self._lock = channel.lock
        self._encoder = ResponseEncoder()
        self._reply = self._encoder.begin()
        self._count = 0
        self._sent_count = 0
        """Messages of responses that were sent."""
        self._is_armed = False
        self._asked_s = 0.0
        self._is_over = False
        """Whether the server has exited."""
        self._served = threading.local()
        """`count`: the number of requests that a thread has sent for."""
        # A SimpleQueue of jobs for the thread; a finalizer may put into it during garbage collection.
        self._jobs: queue.SimpleQueue[int] = queue.SimpleQueue()
        start_thread("response_sender", self._run)

    # --- called by senders ------------------------------------------------------------------------------------------

    def send(self, stream: OpenStream, response: InferenceResponse | None, is_final: bool) -> None:
        """Accept a response, or only the end of the responses. Raises TritonModelException."""
        # hot: bench/micro_emission.py
        board = self.board
        with self._lock:
            if stream.is_closed:
                raise closed_sender()
            marks = board.slots[stream.slot]
            was_cancelled = bool(marks & CANCELLED)
            if was_cancelled and not is_final and not marks & LISTENING:
                return  # the server ignores it
            mark, index = self._reply.mark(), self._count
            try:
                reply = self._add(stream, response, is_final)
                if reply.payload_bytes > channel_module.INLINE_BYTES and index:
                    # A large one is sent alone: it must fit independently of the collected ones.
                    reply.rewind(mark, index)
                    self._count = index
                    self._flush()
                    mark, index = self._reply.mark(), 0
                    reply = self._add(stream, response, is_final)
                if is_final or reply.is_large or board.taken_count == self._sent_count:
                    self._flush()
                else:
                    self._keep(mark[1])
            except BaseException:
                # Strings that cannot be encoded, or too large: as if it had not been sent.
                self._reply.rewind(mark, index)
                self._count = index
                raise
            if is_final:
                stream.close(was_cancelled=was_cancelled)
        if stream.yields_left:
            if stream.yields_left == _YIELD_COUNT:
                self._served.count = getattr(self._served, "count", 0) + 1
            stream.yields_left -= 1
            os.sched_yield()

    def ask(self, words: Sequence[int] = ()) -> None:
        """Let the server check whether slow clients have caught up. Raises TritonModelException.

        `words` is the slot of the request with the waiting sender, shifted, and whether its thread is shared.
        """
        with self._lock:
            self._flush()
            if time.monotonic() - self._asked_s > _FIRST_WAIT_S:
                self._ask(words)

    def is_shared_thread(self) -> bool:
        """Return whether the calling thread certainly serves other requests too.

        It runs `execute` or coroutines, or has sent for several requests.
        """
        return (
            threading.current_thread() is threading.main_thread()
            or _has_running_loop()
            or getattr(self._served, "count", 0) > 1
        )

    def abort(self, slot: int) -> None:
        """Fail a request without a sender; safe in a finalizer."""
        if not self._is_over:
            self._jobs.put(slot)

    # --- called by the worker's loop --------------------------------------------------------------------------------

    def executed(self) -> None:
        """Report the end of `execute` to the server. Raises ChannelClosedError."""
        with self._lock:
            self._flush_for_loop()
            self._channel.send(frames.EXECUTED)

    def failed(self, streams: Sequence[OpenStream], notes: dict[str, Any]) -> None:
        """Report the failure of `execute` to the server, which ends these streams. Raises ChannelClosedError."""
        with self._lock:
            self._flush_for_loop()
            for stream in streams:
                stream.close(was_cancelled=stream.is_cancelled())
            self._channel.send(frames.FAILED, extra=notes)

    def fail(self, streams: Sequence[OpenStream], message: str) -> None:
        """Fail the open ones among `streams`, as their final response."""
        response = InferenceResponse(error=TritonError(message))
        for stream in streams:
            with contextlib.suppress(TritonModelException):  # closed meanwhile, or the server has exited
                if not stream.is_closed:
                    self.send(stream, response, True)

    def reschedule(self, streams: Sequence[OpenStream]) -> None:
        """Return the open requests among `streams` to the server, to be executed again."""
        with self._lock, contextlib.suppress(TritonModelException):  # the server has exited
            for stream in streams:
                if not stream.is_closed:
                    self._reply.words.append(stream.slot << SLOT_SHIFT | RESCHEDULED)
                    self._count += 1
                    stream.close(was_cancelled=stream.is_cancelled())
            self._flush()

    def trim(self) -> None:
        """Release shared memory that has not been used for a while, unless a thread is sending."""
        if self._lock.acquire(blocking=False):
            try:
                self._reclaim()
                self._channel.buffer_owner.trim()
            finally:
                self._lock.release()

    # --- under the lock ---------------------------------------------------------------------------------------------

    def _add(self, stream: OpenStream, response: InferenceResponse | None, is_final: bool) -> EncodedResponse:
        reply = self._reply
        if response is None:
            reply.words.append(stream.slot << SLOT_SHIFT | FINAL)
        else:
            reply.words.append(stream.slot << SLOT_SHIFT | HAS_RESPONSE | is_final)
            self._encoder.add(reply, self._count, stream.output_names, response)
        self._count += 1
        return reply

    def _keep(self, first: int) -> None:
        """Copy the parts from `first` on: the model may write to its arrays meanwhile."""
        parts = self._reply.parts
        parts[first:] = [part if type(part) is bytes else part.tobytes() for part in parts[first:]]
        if not self._is_armed:
            self._is_armed = True
            self._jobs.put(_FLUSH)

    def _flush(self) -> None:
        """Send the collected responses. Raises TritonModelException if they do not fit or the server has exited."""
        reply = self._reply
        if not reply.words:
            return
        parts, block = reply.parts, 0
        try:
            if reply.payload_bytes > channel_module.INLINE_BYTES:
                block = self._lend(reply)
                parts = []
            self._channel.send(frames.EMITTED, reply.words, "", reply.extra(), parts, reply.payload_bytes, block)
        except ChannelClosedError:
            raise self._over() from None
        self._sent_count += 1
        self._reply = self._encoder.begin()
        self._count = 0

    def _flush_for_loop(self) -> None:
        with contextlib.suppress(TritonModelException):  # the server has exited: later calls report it as well
            self._flush()

    def _lend(self, reply: EncodedResponse) -> int:
        """Copy the payload into a block, and wait for one while shared memory is at its limit."""
        buffer_owner = self._channel.buffer_owner
        wait_s = _FIRST_WAIT_S
        while True:
            self._reclaim()
            try:
                return buffer_owner.lend(reply.parts, reply.payload_bytes)
            except TransportFullError as error:
                if rounded(error.needed_bytes) > error.limit_bytes:
                    raise TritonModelException(f"Unable to send response. {error}") from None
            self._ask()
            time.sleep(wait_s)
            wait_s = min(_LONGEST_WAIT_S, 2 * wait_s)

    def _ask(self, words: Sequence[int] = ()) -> None:
        self._asked_s = time.monotonic()
        try:
            self._channel.send(frames.WAITING, words)
        except ChannelClosedError:
            raise self._over() from None

    def _over(self) -> TritonModelException:
        self._is_over = True
        return TritonModelException("Unable to send response. The server has exited.")

    def _reclaim(self) -> None:
        self._channel.buffer_owner.reclaim(self.board.blocks)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_over:
            job = self._jobs.get()
            if job != _FLUSH:
                self._answer_abandoned(job)
                continue
            time.sleep(_GATHER_S)
            with self._lock, contextlib.suppress(TritonModelException):  # the server has exited
                self._is_armed = False
                self._flush()

    def _answer_abandoned(self, slot: int) -> None:
        stream = OpenStream(self, slot, frozenset())
        self.fail([stream], "the model released the response sender of this request without sending a final response")
