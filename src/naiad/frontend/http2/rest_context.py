"""REST over HTTP/2: one request as the `HttpContext` that routes see, on a stream of a connection."""

import logging
from collections.abc import Callable, Mapping, Sequence

from naiad.core.limits.request_limits import RequestBudget
from naiad.core.tensor import Buffer
from naiad.frontend.access.refusal import note_invalid
from naiad.frontend.connections.body_reservation import BudgetExceededError, budget_exceeded, check_length
from naiad.frontend.context import EARLY_REJECTION_BYTES, OnCancel, UnreadRequest
from naiad.frontend.http2.call import Http2Call
from naiad.frontend.http2.endpoint import RestHeaders, RestSide
from naiad.protocol.error_body import error_body
from naiad.telemetry.server_timing import RequestTiming
from naiad.wire.grpc import GrpcError, GrpcStatus
from naiad.wire.header_fields import Headers
from naiad.wire.http1 import HttpError, allocate_body
from naiad.wire.http2.headers import encode_fields

_log = logging.getLogger(__name__)

_JSON = ((b"content-type", b"application/json"),)
_HTTP_STATUS: dict[int, int] = {GrpcStatus.DEADLINE_EXCEEDED: 408, GrpcStatus.RESOURCE_EXHAUSTED: 413}
"""The status of an error of the connection; 500 for the rest."""
_CONTINUE_BLOCK = encode_fields(((b":status", b"100"),))
_PAUSED_BYTES, _RELIEVED_BYTES = 256 * 1024, 64 * 1024
"""Unread bytes of a streamed response: its producer is paused above the first limit and resumed at the second."""
_ALIGNED_BODY_BYTES = 4096
"""Bodies with tensors above this size are aligned even if they arrive in one piece."""


class Http2Context:
    """One request and its response; implements `frontend.http2.call.RequestSide` for its call."""

    __slots__ = (
        "_body",
        "_call",
        "_filled",
        "_first_byte_ns",
        "_head",
        "_is_checked",
        "_is_done",
        "_is_paused",
        "_is_streaming",
        "_side",
        "_timing",
        "arrival_ns",
        "body",
        "headers",
        "method",
        "on_pause",
        "path",
        "query",
    )

    def __init__(self, call: Http2Call, head: RestHeaders, side: RestSide) -> None:
        self._call: Http2Call | None = call
        self._side = side
        self._head = head
        self.method = head.method
        self.path = head.path
        self.query = head.query
        self.headers: Mapping[bytes, bytes] = head.headers
        self.body: Buffer = b""
        self.arrival_ns = self._first_byte_ns = call.arrival_ns
        self._timing: RequestTiming | None = None
        self._body: memoryview | bytearray | None = None
        self._filled = 0
        self.on_pause: Callable[[bool], object] | None = None
        self._is_paused = False
        self._is_streaming = False
        self._is_done = False
        self._is_checked = False
        """The routes have checked the headers, or will see the whole request soon."""

    # --- receiving ----------------------------------------------------------------------------------------------

    @property
    def received_bytes(self) -> int:
        """Number of received bytes of the body."""
        return self._filled

    def begin(self, budget: RequestBudget) -> None:
        """Check the headers, and send 100 Continue if the peer waits for it. Raises HttpError."""
        length = self._head.content_length
        # Clients lose an answer that comes before they have sent a small body (curl 7.88), so that is read first.
        if length > EARLY_REJECTION_BYTES or self._head.expects_continue:
            self._is_checked = True
            if self._is_rejected():
                return
        limit = self._side.body_bytes
        if length > limit:
            raise HttpError(413, f"request body of {length} bytes exceeds the limit of {limit}")
        if length > 0:
            check_length(budget, length)
        call = self._call
        if self._head.expects_continue and call is not None and not call.is_remote_closed:
            call.flow.output.send_headers(call, _CONTINUE_BLOCK)  # RFC 9110 10.1.1

    def _is_rejected(self) -> bool:
        """Respond to a request that its headers are enough to reject, before its body is buffered; return whether it
        was.
        """
        reject, call, refusal = self._side.reject, self._call, self._head.refusal
        if call is None or call.is_remote_closed:
            return False
        if refusal is not None:
            self._refuse(refusal)
            return True
        if reject is None:
            return False
        unread = UnreadRequest(self.method, self.path, self.headers, self.arrival_ns, call.flow)
        reject(unread)
        if unread.response is None:
            return False
        self.respond(*unread.response)
        return True

    def _refuse(self, refusal: HttpError) -> None:
        """Respond to a request that is refused by its fields, and log that."""
        status, message = refusal.status, refusal.message
        self._side.note_invalid(self.method, self.path, status, message, self.client)
        self.reject(status, message)

    def receive(self, call: Http2Call, data: memoryview) -> None:
        """Receive a piece of the body. Raises HttpError for a body above the limit, GrpcError if there is no room."""
        self._collect(data)
        # Beginning with the answer, which may come amid the body, nothing of it is kept.
        call.collect(0 if call.request is None else self._filled)

    def _collect(self, data: memoryview) -> None:
        """Add a piece to the body; a complete one is not copied."""
        head, size = self._head, len(data)
        if self._body is None:
            if size == head.content_length and not (head.binary_offset and size > _ALIGNED_BODY_BYTES):
                self.body = data
                self._filled = size
                return
            known = head.content_length >= 0
            self._body = allocate_body(head.content_length, head.binary_offset) if known else bytearray()
        if isinstance(self._body, bytearray):
            if self._filled + size > self._side.body_bytes:
                raise HttpError(413, f"request body exceeds the limit of {self._side.body_bytes} bytes")
            self._body += data
        else:
            self._body[self._filled : self._filled + size] = data
        self._filled += size
        if not self._is_checked and self._filled > EARLY_REJECTION_BYTES:
            self._is_checked = True
            self._is_rejected()

    def complete(self, call: Http2Call) -> None:
        """Pass the complete request to its route, now or when the peer reads responses. Raises GrpcError."""
        call.collect(0)
        call.count(self._filled)
        call.arrival_ns = call.flow.arrival_ns
        call.flow.serve(call)

    def is_amid_message(self, call: Http2Call) -> bool:
        """Return whether the peer owes the rest of the body: it does until it has ended its side."""
        return True

    def deliver(self, call: Http2Call) -> None:
        """Pass the complete request to its route."""
        self.arrival_ns = call.arrival_ns
        body, self._body = self._body, None
        if isinstance(body, memoryview):
            self.body = body.toreadonly()
        elif body is not None:
            self.body = bytes(body)
        refusal = self._head.refusal
        if refusal is not None:
            self._refuse(refusal)
            return
        try:
            self._side.handle(self)
        except Exception:
            _log.exception("the route of %s %s failed", self.method, self.path)
            self.reject(500, "internal error; see the server log")

    def resume(self, call: Http2Call) -> None:
        """Do nothing: a body is collected, so nothing pauses it."""

    # --- responding -------------------------------------------------------------------------------------------------

    @property
    def client(self) -> object:
        """The connection of the request."""
        return None if self._call is None else self._call.flow

    @property
    def unread_bytes(self) -> int:
        """Bytes of a streamed response that the peer has not taken yet."""
        return 0 if self._call is None else self._call.queued_bytes

    @property
    def on_disconnect(self) -> OnCancel | None:
        """Called when the peer disconnects."""
        call = self._call
        return None if call is None else call.on_cancel

    @on_disconnect.setter
    def on_disconnect(self, callback: OnCancel | None) -> None:
        if self._call is not None:
            self._call.on_cancel = callback

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Send a response with a complete body."""
        call = self._finish()
        if call is None:
            return
        length = sum(map(len, parts))
        output = call.flow.output
        if self._timing is not None:
            headers = [*headers, (b"server-timing", self._timing.value())]  # a list: these are not cached
        block = self._side.response_headers.complete(status, headers, length)
        # RFC 9110 9.3.2: a HEAD response has the fields of GET, including Content-Length, without the body.
        if not length or self.method == "HEAD":
            output.send_headers(call, block, ends_stream=True)
        else:
            output.send_headers(call, block)
            output.send_data(call, parts)
            output.send_end(call)
        self._written(call)

    def reject(self, status: int, message: str, headers: Headers = ()) -> None:
        """Respond with an error of the transport; `headers` are additional fields."""
        if self._is_streaming and self._call is not None:
            # An incomplete response must not look complete.
            self._call.abort()
        else:
            self.respond(status, (*_JSON, *headers), (error_body(self.path, status, message),))

    def start_stream(self, status: int, headers: Headers) -> None:
        """Start a response of unknown length."""
        call = self._call
        if call is None or call.is_local_closed or self._is_streaming:
            return
        self._is_streaming = True
        call.flow.output.send_headers(call, self._side.response_headers.streamed(status, headers))
        self._mark(call)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send a piece of a streamed response; disconnect a peer with too many unread bytes."""
        call = self._call
        if call is None or call.is_local_closed or self.method == "HEAD":
            return
        if call.queued_bytes > call.flow.max_queued_bytes:
            call.abort()
            return
        call.flow.output.send_data(call, parts)
        if call.queued_bytes > _PAUSED_BYTES and not self._is_paused:
            self._set_paused(True)
            call.flow.watch(call)
        self._mark(call)

    def refuse(self, call: Http2Call, error: GrpcError | HttpError) -> None:
        """Respond with an error of the transport, and log it; a full server refuses without a line for each."""
        if isinstance(error, BudgetExceededError):
            full = budget_exceeded()
            self.reject(full.status, full.message, full.headers)
            return
        is_http = isinstance(error, HttpError)
        status = error.status if is_http else _HTTP_STATUS.get(error.status, 500)
        note_invalid(self.method, call.path.partition("?")[0], status, error.message, call.client)
        self.reject(status, error.message, error.headers if isinstance(error, HttpError) else ())

    def writable(self, call: Http2Call) -> None:
        """Resume the route's production when a slow peer has read enough."""
        if self._is_paused and self._call is not None and self._call.queued_bytes <= _RELIEVED_BYTES:
            self._set_paused(False)
            self._call.flow.unwatch(self._call)

    def _set_paused(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        if self.on_pause is not None:
            self.on_pause(is_paused)

    def end(self) -> None:
        """End a streamed response."""
        call = self._finish()
        if call is not None:
            call.flow.output.send_end(call)
            self._written(call)

    def reserve_bytes(self, size: int) -> bool:
        """Reserve more bytes for the request until its response; return False if the server has no room for them."""
        return self._call is None or self._call.reserve_bytes(size)

    def release_bytes(self, size: int) -> None:
        """Release bytes of the request."""
        if self._call is not None:
            self._call.release_bytes(size)

    def start_timing(self) -> RequestTiming:
        """Return the timing of the request, which its response carries."""
        if self._timing is None:
            self._timing = RequestTiming(self._first_byte_ns)
        return self._timing

    def _finish(self) -> Http2Call | None:
        """Return the call, once, for its response; None if it has one or its peer has disconnected."""
        call, self._call = self._call, None
        if call is None or self._is_done:
            return None
        self._is_done = True
        # Call and context refer to each other, and the disconnect callback to both: break the cycle.
        call.on_cancel = call.request = self.on_pause = None
        if self._is_paused:
            call.flow.unwatch(call)
        if call.is_local_closed:
            return None
        if not call.is_remote_closed:
            call.flow.output.drop_body(call)
        return call

    def _written(self, call: Http2Call) -> None:
        if call.reserved_bytes:
            call.release()
        self._mark(call)

    def _mark(self, call: Http2Call) -> None:
        if not call.flow.is_dirty:
            call.flow.mark_dirty()
