"""Control calls of another process: executed here, with responses recorded instead of sent."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from naiad.cluster.messages import ControlOutcome, GrpcControlCall, HttpControlCall
from naiad.core.tensor import Buffer
from naiad.telemetry.server_timing import RequestTiming
from naiad.wire.header_fields import Headers

if TYPE_CHECKING:
    from naiad.frontend.context import OnCancel


class RecordedHttpContext:
    """An `HttpContext` with a recorded response."""

    is_forwarded = True
    """The process of the client has logged the call."""
    query = ""
    unread_bytes = 0

    def __init__(self, call: HttpControlCall) -> None:
        self.method = call.method
        self.path = call.path
        self.headers: Mapping[bytes, bytes] = dict(call.headers)
        self.body: Buffer = call.body
        self.client: object = self
        self.arrival_ns = time.monotonic_ns()
        self.on_disconnect: OnCancel | None = None
        self.on_pause: Callable[[bool], object] | None = None
        self.outcome: asyncio.Future[ControlOutcome] = asyncio.get_running_loop().create_future()
        self._started: tuple[int, Headers] = (200, ())
        self._pieces: list[bytes] = []

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Record the response."""
        if not self.outcome.done():
            body = b"".join(parts)
            self.outcome.set_result(ControlOutcome(200 <= status < 300, status, body, tuple(headers)))

    def start_stream(self, status: int, headers: Headers) -> None:
        """Begin a response in pieces."""
        self._started = (status, headers)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Record a piece."""
        self._pieces += map(bytes, parts)

    def end(self) -> None:
        """Complete the response from its pieces."""
        self.respond(*self._started, self._pieces)

    def reserve_bytes(self, size: int) -> bool:
        """Accept: the process of the client counts the bytes of the call."""
        return True

    def release_bytes(self, size: int) -> None:
        """Do nothing: the process of the client counts the bytes of the call."""

    def start_timing(self) -> RequestTiming:
        """Return a timing that the response does not carry: control calls have none."""
        return RequestTiming(self.arrival_ns)


class RecordedGrpcCall:
    """A unary `GrpcControlCall` with a recorded response."""

    deadline_ns = 0
    timing: RequestTiming | None = None

    def __init__(self, call: GrpcControlCall) -> None:
        self.path = call.path
        self.metadata = call.metadata
        self.client: object = self
        self.arrival_ns = time.monotonic_ns()
        self.on_cancel: OnCancel | None = None
        self.context: object | None = None
        self.queued_bytes = 0
        self.outcome: asyncio.Future[ControlOutcome] = asyncio.get_running_loop().create_future()
        self._pieces: list[bytes] = []

    def respond(self, parts: Sequence[Buffer]) -> None:
        """Record the response."""
        self.send(parts)
        self.finish(0)

    def respond_compressed(self, message: bytes, encoding: bytes) -> None:
        """Raise: the process of the client compresses the responses of control calls."""
        raise AssertionError("responses of control calls are not compressed")

    def send_encoded(self, parts: Sequence[Buffer], encoding: bytes, *, is_compressed: bool) -> None:
        """Raise: no control call has a streamed response."""
        raise AssertionError("responses of control calls are not streams")

    def send(self, parts: Sequence[Buffer]) -> None:
        """Record a message."""
        self._pieces += map(bytes, parts)

    def finish(self, status: int, message: str = "", trailers: Headers = ()) -> None:
        """Record the status."""
        if not self.outcome.done():
            body = b"".join(self._pieces)
            self.outcome.set_result(ControlOutcome(status == 0, status, body, tuple(trailers), message))

    def pause(self) -> None:
        """Do nothing: there is no stream to pause."""

    def reserve_bytes(self, size: int) -> bool:
        """Accept: the process of the client counts the bytes of the call."""
        return True

    def release_bytes(self, size: int) -> None:
        """Do nothing: the process of the client counts the bytes of the call."""

    def resume(self) -> None:
        """Do nothing: there is no stream to resume."""
