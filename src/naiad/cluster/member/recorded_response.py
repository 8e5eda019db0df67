"""Control calls that came to another process: carried out here, their answers kept instead of sent."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from naiad.cluster.messages import GrpcCall, HttpCall, Outcome
from naiad.core.tensor import Buffer
from naiad.wire.header_fields import Headers

if TYPE_CHECKING:
    from naiad.frontend.context import OnCancel


class RecordedHttpContext:
    """An `HttpContext` whose answer is awaited here."""

    def __init__(self, call: HttpCall) -> None:
        self.method = call.method
        self.path = call.path
        self.headers: Mapping[bytes, bytes] = dict(call.headers)
        self.body: Buffer = call.body
        self.client: object = self
        self.arrival_ns = time.monotonic_ns()
        self.on_disconnect: OnCancel | None = None
        self.on_pause: Callable[[bool], object] | None = None
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._started: tuple[int, Headers] = (200, ())
        self._pieces: list[bytes] = []

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Keep the answer."""
        if not self.outcome.done():
            body = b"".join(parts)
            self.outcome.set_result(Outcome(200 <= status < 300, status, body, tuple(headers)))

    def start_stream(self, status: int, headers: Headers) -> None:
        """Begin an answer in pieces."""
        self._started = (status, headers)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Keep a piece."""
        self._pieces += map(bytes, parts)

    def end(self) -> None:
        """Keep the answer that the pieces make."""
        self.respond(*self._started, self._pieces)

    def reserve_bytes(self, size: int) -> bool:
        """The bytes of the call are counted where it came from."""
        return True

    def release_bytes(self, size: int) -> None:
        """The bytes of the call are counted where it came from."""


class RecordedGrpcCall:
    """A unary `GrpcCall` whose answer is awaited here."""

    deadline_ns = 0

    def __init__(self, call: GrpcCall) -> None:
        self.path = call.path
        self.metadata = call.metadata
        self.client: object = self
        self.arrival_ns = time.monotonic_ns()
        self.on_cancel: OnCancel | None = None
        self.context: object | None = None
        self.queued_bytes = 0
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._pieces: list[bytes] = []

    def respond(self, parts: Sequence[Buffer]) -> None:
        """Keep the answer."""
        self.send(parts)
        self.finish(0)

    def respond_compressed(self, message: bytes, encoding: bytes) -> None:
        """Refuse: a control call's answer is compressed on its way to the client, not here."""
        raise AssertionError("answers of control calls are plain")

    def send_encoded(self, parts: Sequence[Buffer], encoding: bytes, *, is_compressed: bool) -> None:
        """Refuse: no control call is answered with a stream."""
        raise AssertionError("answers of control calls are no streams")

    def send(self, parts: Sequence[Buffer]) -> None:
        """Keep a message."""
        self._pieces += map(bytes, parts)

    def finish(self, status: int, message: str = "", trailers: Headers = ()) -> None:
        """Keep the status."""
        if not self.outcome.done():
            body = b"".join(self._pieces)
            self.outcome.set_result(Outcome(status == 0, status, body, tuple(trailers), message))

    def pause(self) -> None:
        """Nothing flows here that could be held."""

    def reserve_bytes(self, size: int) -> bool:
        """The bytes of the call are counted where it came from."""
        return True

    def release_bytes(self, size: int) -> None:
        """The bytes of the call are counted where it came from."""

    def resume(self) -> None:
        """Nothing flows here that could be held."""
