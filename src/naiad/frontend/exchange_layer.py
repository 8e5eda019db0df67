"""What stands between a route and the exchange that it answers."""

from collections.abc import Callable, Sequence

from naiad.core.tensor import Buffer
from naiad.frontend.exchange import HttpExchange, OnDeparture
from naiad.wire.header_fields import Headers


class ExchangeLayer:
    """An exchange that stands before another one and passes everything on; what differs is overridden."""

    __slots__ = ("_exchange", "arrival_ns", "body", "headers", "method", "path")

    def __init__(self, exchange: HttpExchange) -> None:
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
    def on_disconnect(self) -> OnDeparture | None:
        """What is called when the peer goes away."""
        return self._exchange.on_disconnect

    @on_disconnect.setter
    def on_disconnect(self, callback: OnDeparture | None) -> None:
        self._exchange.on_disconnect = callback

    @property
    def on_congestion(self) -> Callable[[bool], object] | None:
        """What is called when the peer does not take a streamed answer, and when it does again."""
        return self._exchange.on_congestion

    @on_congestion.setter
    def on_congestion(self, callback: Callable[[bool], object] | None) -> None:
        self._exchange.on_congestion = callback

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
