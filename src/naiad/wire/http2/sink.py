"""What a connection reports to its owner: the sinks of both roles."""

from typing import Protocol, TypeVar

from naiad.wire.http2.headers import Fields, RequestHead
from naiad.wire.http2.stream_state import Stream

S = TypeVar("S", bound=Stream)
S_contra = TypeVar("S_contra", bound=Stream, contravariant=True)


class Http2Sink(Protocol[S_contra]):
    """Receives what the peer does. Streams are of the sink's own class."""

    def body_received(self, stream: S_contra, data: memoryview) -> None:
        """Take a non-empty piece of a body; a view on the received bytes, which stay as they are."""

    def end_received(self, stream: S_contra, trailers: Fields) -> None:
        """The peer's message is complete."""

    def stream_reset(self, stream: S_contra, code: int) -> None:
        """The peer has reset the stream before its end."""

    def stream_broken(self, stream: S_contra, code: int) -> None:
        """The stream was reset before its end because of an error of the peer."""

    def goaway_received(self, code: int) -> None:
        """The peer wants no new streams; open ones continue."""


class ServerSink(Http2Sink[S], Protocol[S]):
    """Receives the requests of a client."""

    def new_stream(self, stream_id: int, head: RequestHead, receive_window: int) -> S:
        """Make the object of a new stream."""

    def request_received(self, stream: S, body: memoryview) -> None:
        """Take a whole request that came in one piece; stands for `headers_received` to `end_received`."""

    def headers_received(self, stream: S) -> None:
        """Take the head of a request."""


class ClientSink(Http2Sink[S_contra], Protocol[S_contra]):
    """Receives the responses of a server."""

    def headers_received(self, stream: S_contra) -> None:
        """Take the head of a response: `stream.head`. Interim responses (1xx) are not reported."""
