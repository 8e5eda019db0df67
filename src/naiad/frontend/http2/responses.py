"""The responses of one HTTP/2 connection: writes, waiting requests, rejections, and the accounting of request bytes.

The output of one loop callback leaves with one write. While too many response bytes wait for the peer's windows, its
complete requests wait here.
"""

import asyncio
from collections.abc import Callable

from naiad.core.errors import Rejection
from naiad.core.request_limits import UNCOUNTED_BYTES, RequestBudget
from naiad.core.tensor import Buffer
from naiad.frontend.connections.body_reservation import BudgetExceededError, budget_exceeded
from naiad.frontend.context import CancelReason, GrpcService
from naiad.frontend.http2.call import Http2Call
from naiad.frontend.refusal import note_invalid, note_refused_call
from naiad.telemetry.metrics.responses import rejection_of_status, rejections
from naiad.wire.grpc import GrpcError, GrpcStatus
from naiad.wire.http1 import HttpError
from naiad.wire.http2.frames import Http2Code
from naiad.wire.http2.limits import Http2Limits
from naiad.wire.http2.server import ServerConnection

SMALL_MESSAGE_BYTES = 64 * 1024
"""Messages up to this size are delivered at once if they arrive in one piece."""


_HTTP_STATUS = {GrpcStatus.DEADLINE_EXCEEDED: 408, GrpcStatus.RESOURCE_EXHAUSTED: 413}


class Http2Responses:
    """The owner of the calls of a connection: implements `frontend.http2.call.CallOwner`.

    It counts incomplete requests, which are rejected above a limit, and complete ones that wait for their responses.
    While too many bytes of complete requests wait, the peer gets no window for more bodies. Both kinds are reserved
    in the budget that all connections of the server share.
    """

    def __init__(
        self,
        service: GrpcService,
        limits: Http2Limits,
        connection: ServerConnection[Http2Call],
        pause_messages: Callable[[Http2Call], object],
        resume_messages: Callable[[Http2Call], object],
        flush: Callable[[], object],
        flush_soon: Callable[[], object],
        budget: RequestBudget,
    ) -> None:
        """`pause_messages` and `resume_messages` are the receiving side's.

        `flush` writes the output of the connection, `flush_soon` calls it after the current callback.
        """
        self.output = connection.output
        self.max_queued_bytes = limits.queued_bytes
        self.is_dirty = False
        """The output is written at the end of this callback, or soon."""
        self.pause_messages = pause_messages
        self.resume_messages = resume_messages
        self._budget = budget
        self._windows = connection.windows
        self._limits = limits
        self.collecting_bytes = 0
        """Bytes of incomplete requests."""
        self.reserved_bytes = 0
        """Bytes of complete requests without a response."""
        self._service = service
        self._streams = connection.streams
        self._flush = flush
        self._flush_soon = flush_soon
        self.transport: asyncio.Transport | None = None
        self.watching: dict[Http2Call, None] = {}
        """Calls to notify whenever bytes were sent: the service has paused their messages or their production."""
        self.waiting: dict[Http2Call, Buffer | None] = {}
        """Complete requests that wait until the peer reads responses; None for a REST request, whose context has its
        body."""

    # --- writing ------------------------------------------------------------------------------------------------

    def start(self, transport: asyncio.Transport) -> None:
        """Write to `transport` from now on."""
        self.transport = transport

    def stop(self) -> None:
        """Write nothing more."""
        self.transport = None
        self.is_dirty = True

    def mark_dirty(self) -> None:
        """Write after the current callback, or now if there is no other call whose response could join."""
        self.is_dirty = True
        if self._streams:
            self._flush_soon()
        else:
            self._flush()

    def flush(self) -> None:
        """Write all output."""
        transport = self.transport
        if transport is None:
            return
        output = self.output
        while True:
            while output.frames:
                pieces = output.take()
                if len(pieces) == 1:
                    transport.write(pieces[0])
                else:
                    transport.writelines(pieces)
                if output.queued_bytes:
                    output.pump()
            if not (self.watching or self.waiting):
                break
            self._notify_watching()
            self._serve_waiting()
            # Frames made meanwhile may free the window that another call waits for.
            if not output.frames:
                break
        self.is_dirty = False

    # --- waiting calls ----------------------------------------------------------------------------------------------

    def watch_writable(self, call: Http2Call) -> None:
        """Notify the call's REST context, or the service of a paused call, whenever bytes were sent."""
        self.watching[call] = None

    def unwatch_writable(self, call: Http2Call) -> None:
        """Stop notifying."""
        self.watching.pop(call, None)

    def _notify_watching(self) -> None:
        for call in list(self.watching):
            if call.is_local_closed:
                del self.watching[call]
            elif call.rest_context is not None:
                call.rest_context.writable()
            else:
                try:
                    self._service.stream_writable(call)
                except Exception:
                    call.fail()

    def serve(self, call: Http2Call, message: Buffer) -> None:
        """Deliver the message of a unary call, now or when the peer reads responses."""
        if self.output.queued_bytes > self.max_queued_bytes:
            # A small message is a view of everything that was received with it.
            self.waiting[call] = message if len(message) > SMALL_MESSAGE_BYTES else bytes(message)
        else:
            self._serve_now(call, message)

    def serve_rest(self, call: Http2Call) -> None:
        """Deliver a complete request to REST, now or when the peer reads responses."""
        if self.output.queued_bytes > self.max_queued_bytes:
            self.waiting[call] = None
        else:
            self._serve_now(call, None)

    def _serve_now(self, call: Http2Call, message: Buffer | None) -> None:
        if message is not None:
            try:
                self._service.unary(call, message)
            except Exception:
                call.fail()
        elif call.rest_context is not None:
            call.rest_context.dispatch(call.arrival_ns)

    def _serve_waiting(self) -> None:
        """Deliver waiting requests as long as the peer reads responses."""
        while self.waiting and self.output.queued_bytes <= self.max_queued_bytes:
            call = next(iter(self.waiting))
            self._serve_now(call, self.waiting.pop(call))

    # --- bytes of requests ------------------------------------------------------------------------------------------

    def collect(self, call: Http2Call, pending_bytes: int) -> None:
        """Count `pending_bytes` of an incomplete request. Raises GrpcError if there is no room for it."""
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

    def count(self, call: Http2Call, size: int) -> None:
        """Count a message that is not tiny until the response. Raises GrpcError if there is no room."""
        if size > UNCOUNTED_BYTES and not self.reserve_bytes(call, size):
            raise BudgetExceededError

    def reserve_bytes(self, call: Http2Call, size: int) -> bool:
        """Reserve `size` more bytes for a call; return False if there is no room for them."""
        if not self._budget.reserve(size):
            return False
        call.reserved_bytes += size
        self.reserved_bytes += size
        if self.reserved_bytes > self._limits.outstanding_bytes:
            self._windows.hold()
        return True

    def release(self, call: Http2Call) -> None:
        """Release all bytes of a call."""
        if call.collected_bytes:
            self.collect(call, 0)
        self.release_bytes(call, call.reserved_bytes)

    def release_bytes(self, call: Http2Call, size: int) -> None:
        """Release `size` bytes of a call; the peer gets its window back when few enough are left."""
        size = min(size, call.reserved_bytes)
        self._budget.release(size)
        self.reserved_bytes -= size
        call.reserved_bytes -= size
        if self._windows.is_held and self.reserved_bytes <= self._limits.outstanding_bytes:
            self._windows.release()
            if not self.is_dirty:
                self.mark_dirty()

    # --- calls that end without a response of the service -----------------------------------------------------------

    def reject(self, call: Http2Call, error: GrpcError | HttpError) -> None:
        """Reject a call with an invalid request."""
        if isinstance(error, BudgetExceededError):
            rejections.count(Rejection.MEMORY)
        elif isinstance(error, HttpError):
            rejections.count(rejection_of_status(error.status))
        else:
            is_late = error.status == GrpcStatus.DEADLINE_EXCEEDED
            rejections.count(Rejection.TIMEOUT if is_late else Rejection.INVALID)
        self._note(call, error)
        if call.rest_context is None:
            call.finish(error.status, error.message)
        else:
            if isinstance(error, BudgetExceededError):
                error = budget_exceeded()
            if isinstance(error, HttpError):
                call.rest_context.reject(error.status, error.message, error.headers)
            else:
                call.rest_context.reject(_HTTP_STATUS.get(error.status, 500), error.message)
        self._drop(call, CancelReason.REJECTED)

    def _note(self, call: Http2Call, error: GrpcError | HttpError) -> None:
        """Log a request that is not valid or too large; a full server refuses others without a line for each."""
        path = call.path.partition("?")[0]
        if isinstance(error, BudgetExceededError):
            return
        if call.rest_context is None:
            note_refused_call(path, GrpcStatus(error.status).name, error.message, self)
        else:
            status = error.status if isinstance(error, HttpError) else _HTTP_STATUS.get(error.status, 500)
            note_invalid(call.head.method, path, status, error.message, self)

    def expire(self, call: Http2Call) -> None:
        """End a call whose deadline has passed."""
        # The service first: it knows the request's id, which belongs in the trailers.
        self._drop(call, CancelReason.DEADLINE)
        call.finish(GrpcStatus.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def abort(self, call: Http2Call) -> None:
        """End a call whose peer does not read its responses."""
        # gRPC clients report this code as RESOURCE_EXHAUSTED.
        self.output.reset(call, Http2Code.ENHANCE_YOUR_CALM)
        self.cancel_call(call, CancelReason.DROPPED)
        if not self.is_dirty:
            self.mark_dirty()

    def cancel_call(self, call: Http2Call, why: CancelReason) -> None:
        """Discard the state of a call without a peer, and notify the service."""
        self._drop(call, why)
        self.release(call)

    def cancel_all(self, calls: list[Http2Call]) -> None:
        """Cancel all calls of a lost connection."""
        self.watching.clear()
        self.waiting.clear()
        for call in calls:
            self.output.forget(call)
            self.cancel_call(call, CancelReason.DISCONNECTED)
        self.output.take()
        self.pause_messages = self.resume_messages = _ignore
        self._flush = self._flush_soon = _do_nothing

    def _drop(self, call: Http2Call, why: CancelReason) -> None:
        """Discard the state of a call that is finished here, and notify the service."""
        self.waiting.pop(call, None)
        self.collect(call, 0)
        call.cancel(why)
        call.forget_request()


def _ignore(call: Http2Call) -> None:
    """Replaces the receiving side of a lost connection."""


def _do_nothing() -> None:
    """Replaces the write of a lost connection."""
