"""A request whose body has not come: it can be refused by its head, and then nothing of the body is buffered.

A transport asks once the head of a request with a large body is complete (`Refuse`). The same routes decide that
handle whole requests, in the same order, so that a refusal does not depend on when it is found.

Why nobody waits for an answer any more.

What routes see of a transport: an HTTP exchange and a gRPC call, whatever carries them.

Routes run on the event loop and must not block. Each exchange or call is answered exactly once; answering after the
peer has gone is allowed and does nothing. Writes are gathered: a transport keeps what is answered during one loop
callback and writes it with one system call per connection.

What stands between a route and the exchange that it answers.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import InferRequest
from naiad.core.tensor import Buffer
from naiad.wire.header_fields import Headers


class CancelReason(enum.Enum):
    """What a transport tells those who work on an answer: the code it comes to, and the words for the log."""

    DISCONNECTED = (ErrorCode.CANCELLED, "the client went away")
    """The connection has ended."""
    CANCELLED = (ErrorCode.CANCELLED, "the client cancelled the request")
    """RST_STREAM."""
    DROPPED = (ErrorCode.CANCELLED, "the client was dropped because it does not take its answers")
    REFUSED = (ErrorCode.CANCELLED, "the call was ended because of what its client sent")
    DEADLINE = (ErrorCode.DEADLINE_EXCEEDED, "the deadline passed")

    def error(self, *, waited: bool) -> InferError:
        """Return the failure of a request that waited for an instance then, or else executed."""
        code, words = self.value
        return InferError(code, f"{words} while {'it waited' if waited else 'it was executed'}")


class CancellingEngine(Protocol):
    """What is asked of the engine when a client leaves."""

    def cancel(self, request: InferRequest) -> bool:
        """Cancel a submitted request; True when it was dropped, False when something executes it."""


def version_of(request: InferRequest) -> str:
    """Return the version that serves a request, or the one it asked for."""
    return request.header.model_version if request.model is None else request.model.version


OnCancel = Callable[[CancelReason], object]


class HttpContext(Protocol):
    """One HTTP request that waits for its response, over HTTP/1.1 or HTTP/2."""

    method: str
    path: str
    """Percent-decoded path without the query."""
    headers: Mapping[bytes, bytes]
    """Lower-case names; of repeated fields the values joined with ", "."""
    body: Buffer
    """The whole body; empty when there is none."""
    arrival_ns: int
    """Monotonic time at which the request was complete."""
    on_disconnect: OnCancel | None
    """Set by the route: called when the peer goes away, or its deadline passes, before the answer."""
    on_pause: Callable[[bool], object] | None
    """Set by the route of a streamed answer: called with true when the peer does not take what was sent, and with
    false when it has. A peer that leaves too much is dropped, which `on_disconnect` tells."""

    @property
    def client(self) -> object:
        """The connection, which takes turns with others when requests are decoded in slices."""

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Answer with a complete body; the transport adds Content-Length (and Date where it must)."""

    def start_stream(self, status: int, headers: Headers) -> None:
        """Begin an answer whose length is not known; `send` and `end` follow."""

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send a piece of a streamed answer."""

    def end(self) -> None:
        """End a streamed answer."""

    def reserve_bytes(self, size: int) -> bool:
        """Count `size` more bytes for the request, decompressed ones for example, until it is answered.

        False, and the request is to be refused, when the server has no room for them (`core.request_budget`).
        """

    def release_bytes(self, size: int) -> None:
        """Count `size` bytes less: fewer came of it than were reserved."""


class GrpcCall(Protocol):
    """One gRPC call over HTTP/2."""

    path: str
    """`/inference.GRPCInferenceService/ModelInfer`."""
    metadata: Headers
    """Request fields, pseudo-headers left out."""
    deadline_ns: int
    """Monotonic time of `grpc-timeout`; 0 for none."""
    arrival_ns: int
    on_cancel: OnCancel | None
    """Set by the service: called on RST_STREAM, on a passed deadline, on a lost connection. It may finish the call,
    which only in the case of the deadline has anybody to listen."""
    context: "object | None"
    """Belongs to the service: what it keeps for a streaming call."""
    queued_bytes: int
    """Bytes of the answer that the peer has not taken yet."""

    @property
    def client(self) -> object:
        """The connection, which takes turns with others when requests are decoded in slices."""

    def respond(self, parts: Sequence[Buffer]) -> None:
        """Answer a unary call: headers, one message, status OK, in one write."""

    def respond_compressed(self, message: bytes, encoding: bytes) -> None:
        """Answer a unary call with a message that was compressed with `encoding`, gzip or deflate."""

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send one message of a streaming answer."""

    def send_encoded(self, parts: Sequence[Buffer], encoding: bytes, *, is_compressed: bool) -> None:
        """Send one message of a streaming answer whose messages may be compressed with `encoding`."""

    def finish(self, status: int, message: str = "", trailers: Headers = ()) -> None:
        """End the call with a gRPC status; without an earlier `send` it is a trailers-only answer."""

    def reserve_bytes(self, size: int) -> bool:
        """Count `size` more bytes for the call until it ends; False when the server has no room for them."""

    def release_bytes(self, size: int) -> None:
        """Count `size` bytes less; what is left is released when the call ends."""

    def hold(self) -> None:
        """Hand over no more messages of a streaming call; the peer may soon send no more either (flow control).

        From then on `GrpcService.stream_writable` is called whenever bytes have left.
        """

    def release(self) -> None:
        """Go on handing over messages: at once those that wait, until `hold` is called again."""


class GrpcService(Protocol):
    """What the HTTP/2 transport calls. `call` objects are its own `GrpcCall`s."""

    def unary(self, call: GrpcCall, message: Buffer) -> None:
        """Handle a complete unary call."""

    def refusal(self, path: str) -> InferError | None:
        """Return why calls to `path` are refused before any message is read; None when they are answered."""

    def message_began(self, call: GrpcCall, beginning: Buffer) -> None:
        """Finish a unary call whose large message has begun, when its beginning is reason enough to refuse it."""

    def is_streaming(self, path: str) -> bool:
        """Tell whether messages of calls to `path` are handed over one by one."""

    def stream_message(self, call: GrpcCall, message: Buffer) -> None:
        """Handle one message of a streaming call."""

    def stream_half_closed(self, call: GrpcCall) -> None:
        """The peer has sent its last message of a streaming call."""

    def stream_writable(self, call: GrpcCall) -> None:
        """Bytes have left towards the peer of a call that is held; `queued_bytes` tells how many wait still."""

    def stream_draining(self, call: GrpcCall) -> None:
        """The server is about to end: finish a streaming call as soon as what it began is answered."""


class HttpContextLayer:
    """An exchange that stands before another one and passes everything on; what differs is overridden."""

    __slots__ = ("_exchange", "arrival_ns", "body", "headers", "method", "path")

    def __init__(self, exchange: HttpContext) -> None:
        self._exchange = exchange
        self.method = exchange.method
        self.path = exchange.path
        self.headers = exchange.headers
        self.body = exchange.body
        self.arrival_ns = exchange.arrival_ns

    @property
    def client(self) -> object:
        """The connection that it came on."""
        return self._exchange.client

    @property
    def on_disconnect(self) -> OnCancel | None:
        """What is called when the peer goes away."""
        return self._exchange.on_disconnect

    @on_disconnect.setter
    def on_disconnect(self, callback: OnCancel | None) -> None:
        self._exchange.on_disconnect = callback

    @property
    def on_pause(self) -> Callable[[bool], object] | None:
        """What is called when the peer does not take a streamed answer, and when it does again."""
        return self._exchange.on_pause

    @on_pause.setter
    def on_pause(self, callback: Callable[[bool], object] | None) -> None:
        self._exchange.on_pause = callback

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Answer with a complete body."""
        self._exchange.respond(status, headers, parts)

    def start_stream(self, status: int, headers: Headers) -> None:
        """Begin an answer whose length is not known."""
        self._exchange.start_stream(status, headers)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send a piece of a streamed answer."""
        self._exchange.send(parts)

    def end(self) -> None:
        """End a streamed answer."""
        self._exchange.end()

    def reserve_bytes(self, size: int) -> bool:
        """Count more bytes for the request until it is answered; False when the server has no room for them."""
        return self._exchange.reserve_bytes(size)

    def release_bytes(self, size: int) -> None:
        """Count fewer bytes for the request."""
        self._exchange.release_bytes(size)


EARLY_REFUSAL_BYTES = 64 * 1024
"""Smaller bodies over HTTP/1.1 are read in any case: their connection can then be used again."""


class UnreadRequest:
    """An `HttpContext` without a body, which keeps its answer for the transport."""

    __slots__ = ("answer", "arrival_ns", "headers", "method", "on_disconnect", "on_pause", "path")

    body: Buffer = b""
    client: object = None

    def __init__(self, method: str, path: str, headers: Mapping[bytes, bytes], arrival_ns: int) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.arrival_ns = arrival_ns
        self.on_disconnect: OnCancel | None = None
        self.on_pause: Callable[[bool], object] | None = None
        self.answer: tuple[int, Headers, Sequence[Buffer]] | None = None
        """Status, fields and body of the refusal; None while there is no reason for one."""

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Keep the answer."""
        if self.answer is None:
            self.answer = (status, headers, parts)

    def start_stream(self, status: int, headers: Headers) -> None:
        """Refuse: refusals are not streamed."""
        raise AssertionError("a request without its body is not answered with a stream")

    def send(self, parts: Sequence[Buffer]) -> None:
        """Refuse: refusals are not streamed."""
        raise AssertionError("a request without its body is not answered with a stream")

    def end(self) -> None:
        """Refuse: refusals are not streamed."""
        raise AssertionError("a request without its body is not answered with a stream")

    def reserve_bytes(self, size: int) -> bool:
        """Nothing is buffered that could count."""
        return True

    def release_bytes(self, size: int) -> None:
        """Nothing is buffered that could count."""


Refuse = Callable[[HttpContext], object]
"""Answers an exchange without a body when its head is reason enough to refuse it."""


def announced_bytes(headers: Mapping[bytes, bytes]) -> int:
    """Return the Content-Length of a request, -1 when it has none."""
    text = headers.get(b"content-length", b"")
    return int(text) if text.isdigit() and len(text) < 20 else -1
