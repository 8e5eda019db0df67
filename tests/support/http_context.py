"""An `HttpContext` whose complete response is kept, for tests of routes without a transport."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from naiad.core.tensor import Buffer
from naiad.frontend.router import Router
from naiad.telemetry.server_timing import RequestTiming
from naiad.wire.header_fields import Headers

if TYPE_CHECKING:
    from naiad.frontend.context import OnCancel


class KeptResponse(NamedTuple):
    """A response."""

    status: int
    body: bytes
    headers: Headers = ()


class KeptContext:
    """A request whose response is the result of `answered`; made on a running event loop."""

    query = ""
    unread_bytes = 0
    key_name = ""

    def __init__(self, method: str, path: str, body: Buffer = b"") -> None:
        self.method = method
        self.path = path
        self.headers: Mapping[bytes, bytes] = {}
        self.body: Buffer = body
        self.client: object = self
        self.arrival_ns = 1
        self.on_disconnect: OnCancel | None = None
        self.on_pause: Callable[[bool], object] | None = None
        self.answered: asyncio.Future[KeptResponse] = asyncio.get_running_loop().create_future()

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Keep the response."""
        self.answered.set_result(KeptResponse(status, b"".join(parts), headers))

    def start_stream(self, status: int, headers: Headers) -> None:
        """Raise: the tests ask for nothing that is streamed."""
        raise AssertionError("the response is a stream")

    def send(self, parts: Sequence[Buffer]) -> None:
        """Raise: the tests ask for nothing that is streamed."""
        raise AssertionError("the response is a stream")

    def end(self) -> None:
        """Raise: the tests ask for nothing that is streamed."""
        raise AssertionError("the response is a stream")

    def reserve_bytes(self, size: int) -> bool:
        """Accept: nothing counts the bytes."""
        return True

    def release_bytes(self, size: int) -> None:
        """Do nothing: nothing counts the bytes."""

    def note_control(self) -> None:
        """Do nothing: there is no access log."""

    def start_timing(self) -> RequestTiming:
        """Return a timing that nothing reads."""
        return RequestTiming(self.arrival_ns)


async def response_of(router: Router, method: str, path: str, body: bytes = b"") -> KeptResponse:
    """Send a request to a router and return the response."""
    made = KeptContext(method, path, body)
    router.handle(made)
    return await made.answered
