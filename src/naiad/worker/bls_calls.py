"""Calls of other models (business logic scripting) and registration of metrics, over a channel of their own.

The first call opens the channel. Any thread of the model may call, also while no batch executes. Leader/follower: one
waiting thread reads the channel on behalf of all; for coroutines a thread reads, which starts with the first of their
calls. Tensors of more than `INLINE_BYTES` are in shared memory, and responses are views on it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import socket
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from naiad.worker.api.failure import ErrorCode, TritonError, TritonModelException
from naiad.worker.api.iteration import Arrivals, LeaderFollowerLock, ResponseIterator, Waiter, settle_soon
from naiad.worker.api.metric_family import MetricCells
from naiad.worker.api.request import InferenceRequest
from naiad.worker.api.response import InferenceResponse
from naiad.worker.busy_polling import SpinWait
from naiad.worker.channel import channel as channel_module
from naiad.worker.channel import frame as frames
from naiad.worker.channel.buffer_pool import TransportFullError
from naiad.worker.channel.channel import Channel
from naiad.worker.channel.frame import ChannelClosedError, ChannelError
from naiad.worker.control_socket import ControlSocket, ExecutionContext, late_slots, open_slots
from naiad.worker.execution.codec import DECOUPLED, FINAL, HOLDS, TRACED, CallEncoder, CallResponseDecoder
from naiad.worker.last_resort import start_thread

if TYPE_CHECKING:
    import asyncio

MOST_CALLS = 4096
"""Limit of the open calls of one worker."""
_LONGEST_TIMEOUT_US = (1 << 63) - 1
LINE = "calls"
"""Name of the channel's descriptors on the control socket."""
_OUTSIDE = "BLS is only supported during the 'execute' function."
_GONE = "The server has exited."
_FORKED = (
    "models and metrics of the server are there only for the process of the model, not for processes that it has "
    "forked: call them in a thread, or await 'async_exec'"
)


class _Single(Waiter):
    """A thread that waits for one response."""

    __slots__ = ("response",)

    def __init__(self) -> None:
        super().__init__()
        self.response: InferenceResponse | None = None

    @property
    def is_done(self) -> bool:
        return self.response is not None

    def take(self, response: InferenceResponse | None, is_final: bool) -> None:
        if is_final:
            self.response = response or InferenceResponse()


class _Awaited(Waiter):
    """A coroutine that waits for one response."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[InferenceResponse]) -> None:
        super().__init__()
        self.future = future

    @property
    def is_done(self) -> bool:
        return self.future.done()

    def take(self, response: InferenceResponse | None, is_final: bool) -> None:
        if is_final:
            settle_soon(self.future, response or InferenceResponse())


class _Reader(Waiter):
    """The thread that reads for coroutines."""

    __slots__ = ("_calls",)

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    @property
    def is_done(self) -> bool:
        return self._calls.is_over


class Calls:
    """The calls of one worker; used by any thread."""

    def __init__(self, side: ControlSocket, scope: ExecutionContext, batches: Channel) -> None:
        """`batches` is the channel of batches, whose shared memory counts as well."""
        self.transport_bytes = 0
        """Limit of the shared memory between the server and this worker."""
        self.is_over = False
        """Whether the server has exited."""
        self._side = side
        self._scope = scope
        self._batches = batches
        self._is_forked = False
        self._channel: Channel | None = None
        self._spin_wait: SpinWait | None = None
        self._laying = threading.Lock()
        self._encoder = CallEncoder()
        self._decoder = CallResponseDecoder()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Any] = {}
        self._left: deque[tuple[int, int]] = deque()
        """Kinds and numbers of frames that finalizers want to send."""
        self._turns = LeaderFollowerLock(self._read)
        self._thread: threading.Thread | None = None

    # --- called by models -------------------------------------------------------------------------------------------

    def exec(self, request: InferenceRequest, decoupled: bool, execution_timeout: int) -> Any:
        """Execute a request by another model and return its response, or an iterator of its responses.

        Raises TritonModelException for an invalid call; later failures are errors in a response.
        """
        if decoupled:
            return self._stream(request, execution_timeout)
        waiter = _Single()
        number = next(self._numbers)
        self._send(number, waiter, request, 0, execution_timeout)
        try:
            self._turns.wait(waiter)
        except BaseException:
            self.abandon(number)  # an exception has interrupted the thread
            raise
        return waiter.response

    def async_exec(self, request: InferenceRequest, decoupled: bool, execution_timeout: int) -> asyncio.Future[Any]:
        """Do so without waiting. Raises RuntimeError outside of a coroutine, otherwise what `exec` raises."""
        import asyncio  # most models have no coroutines

        loop = asyncio.get_running_loop()
        if decoupled:
            # Cancelling it releases the iterator, which cancels the call.
            return loop.create_task(self._stream(request, execution_timeout).begun())
        future: asyncio.Future[Any] = loop.create_future()
        number = next(self._numbers)
        self._send(number, _Awaited(future), request, 0, execution_timeout)
        future.add_done_callback(lambda done: self.cancel(number) if done.cancelled() else None)
        self.start_reading()
        return future

    def command(self, notes: Mapping[str, Any], parts: Sequence[bytes] = ()) -> str:
        """Send a command about a model, or a query of its readiness; return the server's result, a JSON object.

        Raises TritonModelException if it fails.
        """
        if not self._is_in_use:
            raise TritonModelException(
                "models can be loaded, unloaded and asked for during the 'initialize' and 'execute' functions only."
            )
        return self._ask(frames.COMMAND, notes, parts)

    def define(self, notes: Mapping[str, Any]) -> str:
        """Register a family of metrics, or a metric; return the server's result, a JSON object.

        Raises TritonModelException if it fails.
        """
        if not self._is_in_use:
            raise TritonModelException("metrics are made during the 'initialize' and 'execute' functions only")
        return self._ask(frames.METRIC, notes)

    @property
    def _is_in_use(self) -> bool:
        return self._scope.is_open or self._scope.is_initializing

    def _ask(self, kind: int, notes: Mapping[str, Any], parts: Sequence[bytes] = ()) -> str:
        waiter = _Single()
        number = next(self._numbers)
        channel = self._line()
        payload_bytes = sum(map(len, parts))
        with channel.lock:
            self._waiting[number] = waiter
            words = [number, *self._whose()]
            self._put(number, channel, kind, words, "", dict(notes), parts, payload_bytes)
        self._send_left()
        self._turns.wait(waiter)
        if waiter.response is None:
            raise TritonModelException(_GONE)
        error = waiter.response.error()
        if error is not None:
            raise TritonModelException(error.message())
        return waiter.response.parameters()

    def _stream(self, request: InferenceRequest, execution_timeout: int) -> ResponseIterator:
        arrivals = Arrivals()
        number = next(self._numbers)
        self._send(number, arrivals, request, DECOUPLED, execution_timeout)
        return ResponseIterator(self, number, arrivals)

    # --- called by iterators ----------------------------------------------------------------------------------------

    def wait(self, waiter: Waiter) -> None:
        """Return when `waiter` is done."""
        self._turns.wait(waiter)

    def start_reading(self) -> None:
        """Start the reading thread for callers that do not wait in a thread."""
        if self._thread is None:
            with self._laying:
                if self._thread is None:
                    self._thread = start_thread("calls", self._run)

    def taken(self, number: int, count: int) -> None:
        """Report the number of responses that were taken to the server."""
        self._notify(frames.CALL_TAKEN, [number, count])

    def cancel(self, number: int, *, is_listening: bool = False) -> None:
        """Report the cancellation of a call to the server, whose further responses are read if `is_listening`."""
        if number in self._waiting:
            self._notify(frames.CALL_CANCEL, [number, is_listening])

    def abandon(self, number: int) -> None:
        """Do so from a finalizer, perhaps in a thread that is sending."""
        self._left.append((frames.CALL_CANCEL, number))
        self._send_left()

    def release_family(self, number: int) -> None:
        """Report the end of a family of metrics to the server, from a finalizer."""
        self._left.append((frames.METRIC_RELEASED, number))
        self._send_left()

    # --- called by the worker's loop --------------------------------------------------------------------------------

    @property
    def has_blocks(self) -> bool:
        """Whether there is shared memory to release later."""
        return self._channel is not None and bool(self._channel.block_bytes)

    def trim(self) -> None:
        """Release shared memory that has not been used for a while, and report released blocks."""
        channel = self._channel
        if channel is not None and channel.lock.acquire(blocking=False):
            try:
                channel.buffer_owner.trim()
                if channel.has_news:
                    channel.send(frames.TIDY)
            except ChannelClosedError:
                return  # a waiting caller detects the closed channel
            finally:
                channel.lock.release()
            self._send_left()

    def close_in_child(self) -> None:
        """Close the channel in a forked process: it belongs to the parent."""
        self.is_over = self._is_forked = True
        if self._channel is not None:
            self._channel.close_in_child()

    # --- sending ----------------------------------------------------------------------------------------------------

    def _line(self) -> Channel:
        """Return the channel; the first call opens it."""
        if self.is_over:
            raise TritonModelException(_FORKED if self._is_forked else _GONE)
        channel = self._channel
        if channel is not None:
            return channel
        with self._laying:
            if self._channel is None:
                self._channel = self._lay()
            return self._channel

    def _lay(self) -> Channel:
        their_read, write_fd = os.pipe()
        read_fd, their_write = os.pipe()
        blocks, their_blocks = socket.socketpair()
        theirs = (their_read, their_write, their_blocks.fileno())
        self._side.pass_descriptors(LINE, theirs)
        os.close(their_read)
        os.close(their_write)
        their_blocks.close()
        poll = select.poll()
        poll.register(read_fd, select.POLLIN)
        self._spin_wait = SpinWait(poll)
        self._spin_wait.had_single_request = True
        return Channel(read_fd, write_fd, blocks, limit_bytes=0, own=bytearray)

    def _send(self, number: int, waiter: Any, request: InferenceRequest, flags: int, timeout_us: int) -> None:
        scope = self._scope
        if not scope.is_open:
            raise TritonModelException(_OUTSIDE)
        if len(self._waiting) >= MOST_CALLS:
            raise TritonModelException(f"the model has {MOST_CALLS} calls of other models open; that is the most")
        if scope.holds_execution and not late_slots():
            flags |= HOLDS
        table = [number, *self._whose(), flags, min(max(0, int(timeout_us)), _LONGEST_TIMEOUT_US)]
        if request._trace._place >= 0:
            table[-2] |= TRACED
            table.append(request._trace._place)
        channel = self._line()
        with channel.lock:
            try:
                words, extra, parts, payload_bytes = self._encoder.encode(request)
            except BaseException:
                self._encoder.restart()
                raise
            table += words
            self._waiting[number] = waiter
            self._put(number, channel, frames.CALL, table, request._id, extra, parts, payload_bytes)
        self._send_left()

    def _whose(self) -> list[int]:
        """Return the number of the batch, and the slots of the requests, that the caller works on."""
        late = late_slots()
        slots = late or open_slots()
        return [self._scope.serial if self._scope.is_executing and not late else 0, len(slots), *slots]

    def _put(
        self,
        number: int,
        channel: Channel,
        kind: int,
        words: Sequence[int],
        text: str,
        extra: dict[str, Any] | None,
        parts: Sequence[Any],
        payload_bytes: int,
    ) -> None:
        """Send a frame with a response; called with the lock held."""
        block = 0
        try:
            if payload_bytes > channel_module.INLINE_BYTES:
                buffer_owner = channel.buffer_owner
                buffer_owner.limit_bytes = (
                    self.transport_bytes - self._batches.block_bytes - channel.buffer_user.total_bytes
                )
                block = buffer_owner.lend(parts, payload_bytes)
                parts = ()
            channel.send(kind, words, text, extra, parts, payload_bytes, block)
        except BaseException as error:
            # It is not sent: no caller waits for its response, and its header is sent with another frame.
            self._waiting.pop(number, None)
            self._encoder.restart()
            if block:
                channel.buffer_owner.take_back([block])
            if isinstance(error, ChannelClosedError):
                raise TritonModelException(_GONE) from None
            if not isinstance(error, TransportFullError):
                raise
            raise TritonModelException(str(error)) from None

    def _notify(self, kind: int, words: Sequence[int]) -> None:
        """Send a frame without a response."""
        channel = self._channel
        if channel is None:
            return
        with channel.lock, contextlib.suppress(ChannelClosedError):  # a waiting caller detects the closed channel
            channel.send(kind, words)
        self._send_left()

    def _send_left(self) -> None:
        """Send the pending frames, or leave them to the thread that is sending, which checks afterwards."""
        channel = self._channel
        while self._left and channel is not None and channel.lock.acquire(blocking=False):
            try:
                while self._left:
                    kind, number = self._left.popleft()
                    channel.send(kind, [number, 0])
            except ChannelClosedError:
                self._left.clear()
            except IndexError:
                continue  # another thread has taken it
            finally:
                channel.lock.release()

    # --- reading ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._turns.wait(_Reader(self), may_busy_poll=False)

    def _read(self, may_busy_poll: bool) -> None:
        """Wait for one frame and handle it."""
        channel = self._channel
        if channel is None or self.is_over:
            self._fail_all(_GONE)
            return
        if may_busy_poll and self._spin_wait is not None and not channel.has_rest:
            self._spin_wait.wait()
        try:
            frame = channel.receive()
            if frame.kind != frames.ANSWER:
                return  # it has only notices about blocks
            response = self._decoder.response(frame)
        except ChannelError as error:
            self.is_over = True
            self._fail_all(_GONE if isinstance(error, ChannelClosedError) else str(error))
            return
        number, flags = frame.words[0], frame.words[1]
        is_final = flags & FINAL != 0
        waiter = self._waiting.pop(number, None) if is_final else self._waiting.get(number)
        if waiter is not None:
            waiter.take(response, is_final)
            self._turns.wake(waiter)
        if self._left:
            self._send_left()

    def _fail_all(self, message: str) -> None:
        for number in list(self._waiting):
            waiter = self._waiting.pop(number, None)
            if waiter is not None:
                waiter.take(InferenceResponse((), TritonError(message, ErrorCode.UNAVAILABLE)), True)
                self._turns.wake(waiter)


class MetricChannel:
    """The connection of a worker's metrics to the server."""

    def __init__(self, calls: Calls, descriptor: int) -> None:
        """`descriptor` is the page of cells, mapped with the first metric."""
        self._calls = calls
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._cells: MetricCells | None = None

    @property
    def cells(self) -> MetricCells:
        """The page of values."""
        with self._lock:
            if self._cells is None:
                self._cells = MetricCells(self._descriptor)
            return self._cells

    def new_family(self, name: str, description: str, kind: str) -> int:
        """Return the number of a family, created or joined. Raises TritonModelException."""
        answer = self._define({"family": name, "description": description, "kind": kind})
        return int(answer["family"])

    def new_metric(
        self, family: int, labels: Mapping[str, str], buckets: Sequence[float] | None
    ) -> tuple[int, Sequence[float]]:
        """Return the first cell of a metric, created or joined, and its bounds. Raises TritonModelException."""
        answer = self._define({"metric_of": family, "labels": dict(labels), "buckets": list(buckets or ())})
        return int(answer["cell"]), json.loads(answer["bounds"])

    def release_family(self, family: int) -> None:
        """Report the end of a family to the server."""
        self._calls.release_family(family)

    def _define(self, notes: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._calls.define(notes))
        return answer
