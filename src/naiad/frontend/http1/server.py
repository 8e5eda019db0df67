"""The HTTP/1.1 server on an event loop: makes connections, and drains them."""

import time

from naiad.frontend.http1.connection import Http1Connection
from naiad.frontend.http1.endpoint import Http1Endpoint


class Http1Server(Http1Endpoint):
    """The connections of one endpoint. `protocol` is the factory for `loop.create_server`."""

    def protocol(self) -> Http1Connection:
        """Return the protocol of a new connection."""
        return Http1Connection(self)

    def announce_drain(self) -> None:
        """Add `Connection: close` to the responses of requests in flight."""
        self.is_draining = True
        self.last_arrival_ns = time.monotonic_ns()

    def drain(self) -> None:
        """Close busy connections after their last response, with `Connection: close`; keep serving idle ones until
        `finish`.

        The caller must have stopped listening.
        """
        self.announce_drain()

    def finish(self) -> None:
        """Close all connections: idle ones soon, busy ones after their last response. Follows `drain`."""
        self.is_finishing = True
        self.sweep(time.monotonic_ns())
