"""The interfaces between routes and transports: an HTTP request context and a gRPC call.

Routes run on the event loop and must not block. Each request or call gets exactly one response; a response after the
peer has disconnected is allowed and has no effect. A transport collects the output of one loop callback and writes it
with one system call per connection.

A request with a large body may be rejected by its headers, before any of the body is buffered: the transport calls
`RejectEarly` once the headers are complete. The same routes decide in the same order as for complete requests, so the
result does not depend on when the check happens.
"""

import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from naiad.core.errors import ErrorCode, InferError, excerpt, internal
from naiad.core.request import InferRequest
from naiad.core.tensor import Buffer
from naiad.telemetry.server_timing import RequestTiming
from naiad.wire.header_fields import Headers


class CancelReason(enum.Enum):
    """Why a request no longer needs a response: its error code and the text for the log."""

    DISCONNECTED = (ErrorCode.CANCELLED, "the client disconnected")
    """The connection has ended."""
    CANCELLED = (ErrorCode.CANCELLED, "the client cancelled the request")
    """RST_STREAM."""
    DROPPED = (ErrorCode.CANCELLED, "the client was disconnected because it does not read its responses")
    REJECTED = (ErrorCode.CANCELLED, "the call ended because its client sent an invalid message")
    FAILED = (ErrorCode.CANCELLED, "the call ended because of an internal error")
    DEADLINE = (ErrorCode.DEADLINE_EXCEEDED, "the deadline passed")

    def error(self, *, waited: bool) -> InferError:
        """Return the error of a cancelled request, which `waited` for an instance or was executed."""
        code, words = self.value
        return InferError(code, f"{words} while {'it waited' if waited else 'it was executed'}")


_log = logging.getLogger(__name__)


def encoding_error(error: Exception, request: InferRequest) -> InferError:
    """Return the error in place of a response that cannot be encoded; a defect is logged, and fails one request."""
    if isinstance(error, InferError):
        return error.with_traceback(None)  # which refers to frames with the response
    _log.error("encoding the response to request '%s' failed", excerpt(request.id), exc_info=error)
    return internal("internal error; see the server log")


def version_of(request: InferRequest) -> str:
    """Return the version that serves a request, or the requested version if none serves it yet."""
    return request.header.model_version if request.model is None else request.model.version


OnCancel = Callable[[CancelReason], object]


class HttpContext(Protocol):
    """One HTTP request that waits for its response, over HTTP/1.1 or HTTP/2."""

    method: str
    path: str
    """Percent-decoded path without the query."""
    headers: Mapping[bytes, bytes]
    """Lower-case names; values of repeated fields are joined with ", "."""
    body: Buffer
    """The complete body; empty if there is none."""
    arrival_ns: int
    """Monotonic time at which the request was complete."""
    on_disconnect: OnCancel | None
    """Set by the route: called if the peer disconnects, or the deadline passes, before the response."""
    on_pause: Callable[[bool], object] | None
    """Set by the route of a streamed response: called with true when the peer does not read what was sent, and with
    false when it has read it. A peer with too much unread data is disconnected, which calls `on_disconnect`."""

    @property
    def client(self) -> object:
        """The connection: the key by which slices of large requests alternate between clients."""

    @property
    def unread_bytes(self) -> int:
        """Bytes of a streamed response that the peer has not taken yet."""

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Send a response with a complete body; the transport adds Content-Length (and Date where required)."""

    def start_stream(self, status: int, headers: Headers) -> None:
        """Start a response of unknown length; `send` and `end` follow."""

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send a piece of a streamed response."""

    def end(self) -> None:
        """End a streamed response."""

    def reserve_bytes(self, size: int) -> bool:
        """Reserve `size` more bytes for the request, for example decompressed ones, until its response is sent.

        Return False if the server has no room for them (`core.request_budget`); the request must then be rejected.
        """

    def release_bytes(self, size: int) -> None:
        """Release `size` bytes, which were reserved but not needed."""

    def start_timing(self) -> RequestTiming:
        """Return the timing of the request, the same for each call, which its response then carries."""


class GrpcCall(Protocol):
    """One gRPC call over HTTP/2."""

    path: str
    """`/inference.GRPCInferenceService/ModelInfer`."""
    metadata: Headers
    """Request fields without pseudo-headers."""
    deadline_ns: int
    """Monotonic time from `grpc-timeout`; 0 for none."""
    arrival_ns: int
    timing: RequestTiming | None
    """Set if the client asks for the timing of a unary call; its response then carries it."""
    on_cancel: OnCancel | None
    """Set by the service: called on RST_STREAM, on a passed deadline and on a lost connection. It may finish the
    call; only after a deadline does the client receive that status."""
    context: "object | None"
    """Owned by the service: its state of a streaming call."""
    queued_bytes: int
    """Bytes of the response that the peer has not read yet."""

    @property
    def client(self) -> object:
        """The connection: the key by which slices of large requests alternate between clients."""

    def respond(self, parts: Sequence[Buffer]) -> None:
        """Respond to a unary call: headers, one message, status OK, in one write."""

    def respond_compressed(self, message: bytes, encoding: bytes) -> None:
        """Respond to a unary call with a message compressed with `encoding`, gzip or deflate."""

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send one message of a streaming response."""

    def send_encoded(self, parts: Sequence[Buffer], encoding: bytes, *, is_compressed: bool) -> None:
        """Send one message of a streaming response whose messages may be compressed with `encoding`."""

    def finish(self, status: int, message: str = "", trailers: Headers = ()) -> None:
        """End the call with a gRPC status; without an earlier `send` the response is trailers-only."""

    def reserve_bytes(self, size: int) -> bool:
        """Reserve `size` more bytes for the call until it ends; return False if the server has no room for them."""

    def release_bytes(self, size: int) -> None:
        """Release `size` bytes; the rest is released when the call ends."""

    def pause(self) -> None:
        """Pause a streaming call: deliver no more messages, so that flow control soon stops the peer as well.

        From then on the transport calls `GrpcService.stream_writable` whenever bytes were sent.
        """

    def resume(self) -> None:
        """Resume a streaming call: deliver waiting messages at once, until the call is paused again."""


class GrpcService(Protocol):
    """The service, as the HTTP/2 transport calls it. `call` is the transport's own `GrpcCall`."""

    def unary(self, call: GrpcCall, message: Buffer) -> None:
        """Handle a complete unary call."""

    def rejection(self, path: str) -> InferError | None:
        """Return why calls to `path` are rejected before any message is read; None if they are served."""

    def message_began(self, call: GrpcCall, beginning: Buffer) -> None:
        """Finish a unary call if the beginning of its large message is enough to reject it."""

    def is_streaming(self, path: str) -> bool:
        """Return whether messages of calls to `path` are delivered one by one."""

    def stream_message(self, call: GrpcCall, message: Buffer) -> None:
        """Handle one message of a streaming call."""

    def stream_half_closed(self, call: GrpcCall) -> None:
        """Handle the end of a streaming call's messages."""

    def stream_writable(self, call: GrpcCall) -> None:
        """Handle progress of a paused call towards its peer; `queued_bytes` is the number of unread bytes."""

    def stream_draining(self, call: GrpcCall) -> None:
        """Finish a streaming call after the responses to its open requests, because the server drains."""


class HttpContextLayer:
    """A context that wraps another one and delegates to it; subclasses override what differs."""

    __slots__ = ("_context", "arrival_ns", "body", "headers", "method", "path")

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self.method = context.method
        self.path = context.path
        self.headers = context.headers
        self.body = context.body
        self.arrival_ns = context.arrival_ns

    @property
    def client(self) -> object:
        """The connection of the request."""
        return self._context.client

    @property
    def unread_bytes(self) -> int:
        """Bytes of a streamed response that the peer has not taken yet."""
        return self._context.unread_bytes

    @property
    def key_name(self) -> str:
        """The name of the client's API key; empty without one."""
        return getattr(self._context, "key_name", "")

    def note_control(self) -> None:
        """Note that the request changes something, for the access log."""
        note_control = getattr(self._context, "note_control", None)
        if note_control is not None:
            note_control()

    @property
    def on_disconnect(self) -> OnCancel | None:
        """Called when the peer disconnects."""
        return self._context.on_disconnect

    @on_disconnect.setter
    def on_disconnect(self, callback: OnCancel | None) -> None:
        self._context.on_disconnect = callback

    @property
    def on_pause(self) -> Callable[[bool], object] | None:
        """Called when the peer stops reading a streamed response, and when it resumes."""
        return self._context.on_pause

    @on_pause.setter
    def on_pause(self, callback: Callable[[bool], object] | None) -> None:
        self._context.on_pause = callback

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Send a response with a complete body."""
        self._context.respond(status, headers, parts)

    def start_stream(self, status: int, headers: Headers) -> None:
        """Start a response of unknown length."""
        self._context.start_stream(status, headers)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send a piece of a streamed response."""
        self._context.send(parts)

    def end(self) -> None:
        """End a streamed response."""
        self._context.end()

    def reserve_bytes(self, size: int) -> bool:
        """Reserve more bytes for the request until its response; return False if the server has no room for them."""
        return self._context.reserve_bytes(size)

    def release_bytes(self, size: int) -> None:
        """Release bytes of the request."""
        self._context.release_bytes(size)

    def start_timing(self) -> RequestTiming:
        """Return the timing of the request."""
        return self._context.start_timing()


EARLY_REJECTION_BYTES = 64 * 1024
"""Smaller bodies over HTTP/1.1 are always read: the connection can then be reused."""


class UnreadRequest:
    """An `HttpContext` without a body, which keeps its response for the transport."""

    __slots__ = ("arrival_ns", "client", "headers", "method", "on_disconnect", "on_pause", "path", "response")

    body: Buffer = b""
    unread_bytes = 0

    def __init__(
        self, method: str, path: str, headers: Mapping[bytes, bytes], arrival_ns: int, client: object = None
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.arrival_ns = arrival_ns
        self.client = client
        """The connection of the request."""
        self.on_disconnect: OnCancel | None = None
        self.on_pause: Callable[[bool], object] | None = None
        self.response: tuple[int, Headers, Sequence[Buffer]] | None = None
        """Status, fields and body of the rejection; None if the request is accepted."""

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Keep the response."""
        if self.response is None:
            self.response = (status, headers, parts)

    def start_stream(self, status: int, headers: Headers) -> None:
        """Raise AssertionError: rejections are not streamed."""
        raise AssertionError("a request without its body cannot have a streamed response")

    def send(self, parts: Sequence[Buffer]) -> None:
        """Raise AssertionError: rejections are not streamed."""
        raise AssertionError("a request without its body cannot have a streamed response")

    def end(self) -> None:
        """Raise AssertionError: rejections are not streamed."""
        raise AssertionError("a request without its body cannot have a streamed response")

    def reserve_bytes(self, size: int) -> bool:
        """Return True: nothing is buffered."""
        return True

    def release_bytes(self, size: int) -> None:
        """Do nothing: nothing is buffered."""

    def start_timing(self) -> RequestTiming:
        """Return a timing that the response does not carry."""
        return RequestTiming(self.arrival_ns)


RejectEarly = Callable[[HttpContext], object]
"""Responds to a context without a body if its headers are enough to reject it."""


def announced_bytes(headers: Mapping[bytes, bytes]) -> int:
    """Return the Content-Length of a request, -1 if it has none."""
    text = headers.get(b"content-length", b"")
    return int(text) if text.isdigit() and len(text) < 20 else -1
