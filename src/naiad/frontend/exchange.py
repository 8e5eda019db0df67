"""What routes see of a transport: an HTTP exchange and a gRPC call, whatever carries them.

Routes run on the event loop and must not block. Each exchange or call is answered exactly once; answering after the
peer has gone is allowed and does nothing. Writes are gathered: a transport keeps what is answered during one loop
callback and writes it with one system call per connection.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from naiad.core.errors import InferError
from naiad.core.tensor import Buffer
from naiad.frontend.departure import Departure
from naiad.wire.header_fields import Headers

OnDeparture = Callable[[Departure], object]


class HttpExchange(Protocol):
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
    on_disconnect: OnDeparture | None
    """Set by the route: called when the peer goes away, or its deadline passes, before the answer."""
    on_congestion: Callable[[bool], object] | None
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
    on_cancel: OnDeparture | None
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
