"""What the calls of one HTTP/2 connection share: its output, and the requests and bytes that wait.

Theory of operation. Calls put responses into `output`, which makes frames as far as the peer's windows allow, and
then mark the flow as dirty. The output of one callback of the event loop leaves with one write: `data_received` of
the connection flushes at its end, and a call that responds from another callback has a flush scheduled.

Three kinds of work wait for a peer that reads slowly:

1. Response bytes beyond the peer's windows wait in the queues of `output`.
2. Complete requests wait in `waiting` while more than `max_queued_bytes` of such bytes exist, because their responses
   would have to wait as well.
3. Calls whose service or route has stopped producing are in `watching`.

`flush` writes all frames, then notifies `watching` and delivers from `waiting`. It repeats this while the notified
calls make frames, because those may free the window that another call waits for.

The bytes of requests are counted twice over. `collect` counts incomplete requests: above the limit of the connection
the request is rejected. `reserve` counts complete requests until their responses: above the limit the peer gets no
window for further bodies, while frames without flow control are still read. Both count in the budget of the server.

The flow refers to no class of calls and to no asyncio protocol: calls refer to it, and the connection refers to both.
"""

import asyncio
from typing import Any, Protocol

from naiad.frontend.connections.body_reservation import BudgetExceededError
from naiad.frontend.connections.linger import RecentOutput, undelivered_bytes
from naiad.frontend.http2.endpoint import Http2Endpoint
from naiad.wire.grpc import GrpcError, GrpcStatus
from naiad.wire.http2.server_connection import ServerConnection


class WaitingCall(Protocol):
    """A call that waits for its peer."""

    is_local_closed: bool

    def deliver(self) -> None:
        """Pass the complete request to its service or route."""

    def writable(self) -> None:
        """Bytes were sent; go on if few enough of them are left."""


class Http2Flow:
    """The output of one connection and what waits for its peer."""

    def __init__(self, endpoint: Http2Endpoint[Any], connection: ServerConnection[Any], now_ns: int) -> None:
        self._endpoint = endpoint
        self._limits = endpoint.limits
        self._budget = endpoint.budget
        self._streams = connection.streams
        self._windows = connection.windows
        self.connection = connection
        self.output = connection.output
        self.transport: asyncio.Transport | None = None
        """None before the connection is made, and after the last write."""
        self.is_dirty = False
        """The output is written at the end of this callback, or soon."""
        self.arrival_ns = 0
        """Arrival time of the bytes being processed."""
        self.recent_output = RecentOutput(now_ns)
        self.is_lingering = False
        """This side has sent everything and waits until the peer closes."""
        self.watching: dict[WaitingCall, None] = {}
        """Calls to notify whenever bytes were sent: their messages or their production is paused."""
        self.waiting: dict[WaitingCall, None] = {}
        """Complete requests that wait until the peer reads responses, oldest first."""
        self.max_queued_bytes = self._limits.queued_bytes
        self.collecting_bytes = 0
        """Bytes of incomplete requests."""
        self.reserved_bytes = 0
        """Bytes of complete requests without a response."""

    # --- writing ------------------------------------------------------------------------------------------------

    def start(self, transport: asyncio.Transport) -> None:
        """Write to `transport` from now on."""
        self.transport = transport

    def stop(self) -> None:
        """Write nothing more."""
        self.transport = None
        self.is_dirty = True

    def close(self) -> None:
        """Forget the connection, which is lost; a call that its service still refers to would keep it in memory."""
        self.stop()
        self.watching.clear()
        self.waiting.clear()
        del self.connection

    def mark_dirty(self) -> None:
        """Write after the current callback, or now if there is no other call whose response could join."""
        self.is_dirty = True
        if self._streams:
            self._endpoint.flush_soon(self.flush)
        else:
            self.flush()

    def flush(self) -> None:
        """Write all output, and close after the last response of a connection that drains."""
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
            if not output.frames:
                break
        self.is_dirty = False
        if self.connection.is_draining:
            self._close_if_drained(transport)

    def _close_if_drained(self, transport: asyncio.Transport) -> None:
        """Close once the peer has the last response.

        A closed socket replies to further input, for example a WINDOW_UPDATE, with a reset, and the kernel then
        discards undelivered data. This side therefore closes its sending direction and reads for a limited time until
        the peer, which has received GOAWAY, closes.
        """
        if not self.connection.is_drained:
            return
        if not (self.recent_output.may_be_unread(self.output.data_count) or undelivered_bytes(transport)):
            transport.close()
            return
        self.is_lingering = True
        self.stop()
        self.connection.close()
        if transport.can_write_eof():  # not with TLS
            transport.write_eof()

    # --- calls that wait for the peer -------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """More response bytes wait for the peer than the limit; complete requests have to wait."""
        return self.output.queued_bytes > self.max_queued_bytes

    def serve(self, call: WaitingCall) -> None:
        """Deliver a complete request, now or when the peer reads responses."""
        if self.is_full:
            self.waiting[call] = None
        else:
            call.deliver()

    def watch(self, call: WaitingCall) -> None:
        """Call `writable` of the call whenever bytes were sent."""
        self.watching[call] = None

    def unwatch(self, call: WaitingCall) -> None:
        """Stop calling `writable`."""
        self.watching.pop(call, None)

    def _serve_waiting(self) -> None:
        while self.waiting and not self.is_full:
            call = next(iter(self.waiting))
            del self.waiting[call]
            call.deliver()

    def _notify_watching(self) -> None:
        for call in list(self.watching):
            if call.is_local_closed:
                del self.watching[call]
            else:
                call.writable()

    # --- bytes of requests ------------------------------------------------------------------------------------------

    def collect(self, change: int) -> None:
        """Count `change` more bytes of incomplete requests. Raises GrpcError if there is no room for them."""
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

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes of complete requests; return False if the server has no room for them."""
        if not self._budget.reserve(size):
            return False
        self.reserved_bytes += size
        if self.reserved_bytes > self._limits.outstanding_bytes:
            self._windows.hold()
        return True

    def release(self, size: int) -> None:
        """Release `size` reserved bytes; the peer gets its window back when few enough are left."""
        self._budget.release(size)
        self.reserved_bytes -= size
        if self._windows.is_held and self.reserved_bytes <= self._limits.outstanding_bytes:
            self._windows.release()
            if not self.is_dirty:
                self.mark_dirty()
