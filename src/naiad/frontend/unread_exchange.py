"""A request whose body has not come: it can be refused by its head, and then nothing of the body is buffered.

A transport asks once the head of a request with a large body is complete (`Refuse`). The same routes decide that
handle whole requests, in the same order, so that a refusal does not depend on when it is found.
"""

from collections.abc import Callable, Mapping, Sequence

from naiad.core.tensor import Buffer
from naiad.frontend.exchange import HttpExchange, OnDeparture
from naiad.wire.header_fields import Headers

EARLY_REFUSAL_BYTES = 64 * 1024
"""Smaller bodies over HTTP/1.1 are read in any case: their connection can then be used again."""


class UnreadExchange:
    """An `HttpExchange` without a body, which keeps its answer for the transport."""

    __slots__ = ("answer", "arrival_ns", "headers", "method", "on_congestion", "on_disconnect", "path")

    body: Buffer = b""
    client: object = None

    def __init__(self, method: str, path: str, headers: Mapping[bytes, bytes], arrival_ns: int) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.arrival_ns = arrival_ns
        self.on_disconnect: OnDeparture | None = None
        self.on_congestion: Callable[[bool], object] | None = None
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


Refuse = Callable[[HttpExchange], object]
"""Answers an exchange without a body when its head is reason enough to refuse it."""


def announced_bytes(headers: Mapping[bytes, bytes]) -> int:
    """Return the Content-Length of a request, -1 when it has none."""
    text = headers.get(b"content-length", b"")
    return int(text) if text.isdigit() and len(text) < 20 else -1
