"""The answers of one HTTP/2 connection: how they leave, what waits until the peer takes them, what is refused.

What is answered during one callback of the loop leaves with one write. While too many bytes of answers wait for the
peer's windows its complete requests wait here.

How many bytes of requests one connection holds, and what happens when those are too many.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from naiad.core.request_limits import UNCOUNTED_BYTES, RequestBudget
from naiad.core.tensor import Buffer
from naiad.frontend.body_reservation import BudgetExceededError, no_room
from naiad.frontend.exchange import CancelReason, GrpcService
from naiad.frontend.http2.call import Http2Call
from naiad.wire.grpc import GrpcError, GrpcStatus
from naiad.wire.http1 import HttpError
from naiad.wire.http2.frames import Http2Code
from naiad.wire.http2.limits import Http2Limits
from naiad.wire.http2.server import ServerConnection
from naiad.wire.http2.windows import ReceiveWindows

SMALL_MESSAGE_BYTES = 64 * 1024
"""Messages up to this size are handed over at once when they come in one piece."""


class RequestBytes:
    """Counts incomplete requests, which are refused beyond a limit, and complete ones, whose answers are awaited.

    While too many of the latter wait the peer gets no window for more bodies. Both are reserved in the budget that
    all connections of the server share.
    """

    __slots__ = ("_budget", "_limits", "_windows", "collecting_bytes", "held_bytes")

    def __init__(self, windows: ReceiveWindows, limits: Http2Limits, budget: RequestBudget) -> None:
        self._budget = budget
        self._windows = windows
        self._limits = limits
        self.collecting_bytes = 0
        """Of requests that are not complete."""
        self.held_bytes = 0
        """Of complete ones that are not answered."""

    def collect(self, call: Http2Call, pending_bytes: int) -> None:
        """Count `pending_bytes` for an incomplete request. Raises GrpcError when there is no room for it."""
        change = pending_bytes - call.collected_bytes
        if change <= 0:
            self._budget.release(-change)
        elif self.collecting_bytes + change > self._limits.collecting_bytes:
            limit = self._limits.collecting_bytes
            raise GrpcError(
                GrpcStatus.RESOURCE_EXHAUSTED, f"incomplete messages of this connection exceed {limit} bytes"
            )
        elif not self._budget.reserve(change):
            raise BudgetExceededError
        self.collecting_bytes += change
        call.collected_bytes = pending_bytes

    def hold(self, call: Http2Call, size: int) -> None:
        """Count a message that is not tiny until its call is answered. Raises GrpcError when there is no room."""
        if size > UNCOUNTED_BYTES and not self.reserve(call, size):
            raise BudgetExceededError

    def reserve(self, call: Http2Call, size: int) -> bool:
        """Count `size` more bytes for a call; False when there is no room for them."""
        if not self._budget.reserve(size):
            return False
        call.held_bytes += size
        self.held_bytes += size
        if self.held_bytes > self._limits.outstanding_bytes:
            self._windows.hold()
        return True

    def release(self, call: Http2Call) -> bool:
        """Count nothing more for a call; tell whether that gave the peer its window back."""
        if call.collected_bytes:
            self.collect(call, 0)
        return self.release_some(call, call.held_bytes)

    def release_some(self, call: Http2Call, size: int) -> bool:
        """Count `size` bytes less for a call; tell whether that gave the peer its window back."""
        size = min(size, call.held_bytes)
        self._budget.release(size)
        self.held_bytes -= size
        call.held_bytes -= size
        if self._windows.is_held and self.held_bytes <= self._limits.outstanding_bytes:
            self._windows.release()
            return True
        return False


_HTTP_STATUS = {GrpcStatus.DEADLINE_EXCEEDED: 408, GrpcStatus.RESOURCE_EXHAUSTED: 413}
"""Of what the transport itself refuses."""


class MessageHolder(Protocol):
    """The receiving side of a connection."""

    def hold_messages(self, call: Http2Call) -> None:
        """Hand over no more messages of a call."""

    def release_messages(self, call: Http2Call) -> None:
        """Hand over the messages of a call that wait."""


class Http2Responses:
    """The owner of a connection's calls: implements `frontend.http2_call.CallOwner`."""

    def __init__(
        self,
        service: GrpcService,
        limits: Http2Limits,
        connection: ServerConnection[Http2Call],
        holder: MessageHolder,
        flush_soon: Callable[[], object],
        budget: RequestBudget,
    ) -> None:
        self.output = connection.output
        self.max_queued_bytes = limits.queued_bytes
        self.is_dirty = False
        """The output is written at the end of this callback, or soon."""
        self.hold_messages = holder.hold_messages
        self.release_messages = holder.release_messages
        self.request_bytes = RequestBytes(connection.windows, limits, budget)
        self._service = service
        self._flush_soon = flush_soon
        self._transport: asyncio.Transport | None = None
        self._watching: dict[Http2Call, None] = {}
        """Calls that are told whenever bytes have left: the service takes no messages of theirs, or makes none."""
        self._waiting: dict[Http2Call, Buffer | None] = {}
        """Complete requests that wait until the peer takes answers; None for one whose exchange has its body."""

    # --- writing ------------------------------------------------------------------------------------------------

    def start(self, transport: asyncio.Transport) -> None:
        """Write to `transport` from now on."""
        self._transport = transport

    def stop(self) -> None:
        """Write nothing more."""
        self._transport = None
        self.is_dirty = True

    def mark_dirty(self) -> None:
        """Have the output written once the current callback is over."""
        self.is_dirty = True
        self._flush_soon()

    @property
    def has_work(self) -> bool:
        """Whether `flush` would do anything."""
        return bool(self.output.frames or self._watching or self._waiting)

    def flush(self) -> None:
        """Write what there is to write."""
        transport = self._transport
        if transport is None:
            return
        output = self.output
        if output.frames:
            self._write(transport)
        while self._watching or self._waiting:
            self._tell_watching()
            self._serve_waiting()
            if not output.frames:
                break
            # These frames may free the window that another call waits for.
            self._write(transport)
        self.is_dirty = False

    def _write(self, transport: asyncio.Transport) -> None:
        output = self.output
        while output.frames:
            pieces = output.take()
            if len(pieces) == 1:
                transport.write(pieces[0])
            else:
                transport.writelines(pieces)
            output.pump()

    # --- what waits ---------------------------------------------------------------------------------------------

    def watch_writable(self, call: Http2Call) -> None:
        """Tell the call's exchange, or the service of a held one, whenever bytes have left."""
        self._watching[call] = None

    def unwatch_writable(self, call: Http2Call) -> None:
        """No longer."""
        self._watching.pop(call, None)

    def _tell_watching(self) -> None:
        for call in list(self._watching):
            if call.is_local_closed:
                del self._watching[call]
            elif call.exchange is not None:
                call.exchange.writable()
            else:
                try:
                    self._service.stream_writable(call)
                except Exception:
                    call.fail()

    def serve(self, call: Http2Call, message: Buffer) -> None:
        """Hand over the message of a unary call, now or when the peer takes answers."""
        if self.output.queued_bytes > self.max_queued_bytes:
            # A small one is a view on everything that was received with it.
            self._waiting[call] = message if len(message) > SMALL_MESSAGE_BYTES else bytes(message)
        else:
            self._serve_now(call, message)

    def serve_exchange(self, call: Http2Call) -> None:
        """Hand over a complete request to REST, now or when the peer takes answers."""
        if self.output.queued_bytes > self.max_queued_bytes:
            self._waiting[call] = None
        else:
            self._serve_now(call, None)

    def _serve_now(self, call: Http2Call, message: Buffer | None) -> None:
        if message is not None:
            try:
                self._service.unary(call, message)
            except Exception:
                call.fail()
        elif call.exchange is not None:
            call.exchange.dispatch(call.arrival_ns)

    def _serve_waiting(self) -> None:
        """Hand over requests that have waited, as long as the peer takes answers."""
        while self._waiting and self.output.queued_bytes <= self.max_queued_bytes:
            call = next(iter(self._waiting))
            self._serve_now(call, self._waiting.pop(call))

    # --- what is not answered by its service --------------------------------------------------------------------

    def release(self, call: Http2Call) -> None:
        """The call no longer holds its message, nor what came of others."""
        if self.request_bytes.release(call) and not self.is_dirty:
            self.mark_dirty()

    def reserve_bytes(self, call: Http2Call, size: int) -> bool:
        """Count more bytes for a call; False when the server has no room for them."""
        return self.request_bytes.reserve(call, size)

    def release_bytes(self, call: Http2Call, size: int) -> None:
        """Count fewer bytes for a call."""
        if self.request_bytes.release_some(call, size) and not self.is_dirty:
            self.mark_dirty()

    def refuse(self, call: Http2Call, error: GrpcError | HttpError) -> None:
        """End a call whose request is wrong."""
        if call.exchange is None:
            call.finish(error.status, error.message)
        else:
            if isinstance(error, BudgetExceededError):
                error = no_room()
            if isinstance(error, HttpError):
                call.exchange.refuse(error.status, error.message, error.headers)
            else:
                call.exchange.refuse(_HTTP_STATUS.get(error.status, 500), error.message)
        self._drop(call, CancelReason.REFUSED)

    def expire(self, call: Http2Call) -> None:
        """End a call whose deadline has passed."""
        # The service first: it knows the request's id, which belongs into the trailers.
        self._drop(call, CancelReason.DEADLINE)
        call.finish(GrpcStatus.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def abort(self, call: Http2Call) -> None:
        """End a call whose peer does not take its answers."""
        # gRPC clients report this code as RESOURCE_EXHAUSTED.
        self.output.reset(call, Http2Code.ENHANCE_YOUR_CALM)
        self.leave(call, CancelReason.DROPPED)
        if not self.is_dirty:
            self.mark_dirty()

    def leave(self, call: Http2Call, why: CancelReason) -> None:
        """Forget what is held for a call without a peer, and tell the service."""
        self._drop(call, why)
        self.release(call)

    def leave_all(self, calls: list[Http2Call]) -> None:
        """The connection is lost, and with it the peer of all its calls."""
        self._watching.clear()
        self._waiting.clear()
        for call in calls:
            self.output.forget(call)
            self.leave(call, CancelReason.DISCONNECTED)
        self.output.take()
        self.hold_messages = self.release_messages = _ignore
        self._flush_soon = _do_nothing

    def _drop(self, call: Http2Call, why: CancelReason) -> None:
        """Forget what is held for a call that is finished here, and tell the service."""
        self._waiting.pop(call, None)
        self.request_bytes.collect(call, 0)
        call.cancel(why)
        call.forget_request()


def _ignore(call: Http2Call) -> None:
    """Take the place of the receiving side once the connection is lost."""


def _do_nothing() -> None:
    """Take the place of a write once the connection is lost."""
