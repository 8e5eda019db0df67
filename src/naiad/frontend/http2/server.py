"""The HTTP/2 server on an event loop, gRPC and REST: makes connections, and drains them."""

from naiad.frontend.http2.connection import Http2Protocol
from naiad.frontend.http2.endpoint import Http2Endpoint


class Http2Server(Http2Endpoint[Http2Protocol]):
    """The connections of one endpoint. `protocol` is the factory for `loop.create_server`."""

    def protocol(self) -> Http2Protocol:
        """Return the protocol of a new connection."""
        return Http2Protocol(self)

    def announce_drain(self) -> None:
        """Do nothing yet: after GOAWAY clients would reconnect while this server still listens."""

    def drain(self) -> None:
        """End every connection: send GOAWAY now, close after the last response.

        The caller must have stopped listening.
        """
        self.is_draining = True
        for connection in list(self.connections):
            connection.drain()

    def finish(self) -> None:
        """Do nothing: `drain` has sent GOAWAY on idle connections as well."""

    def rule_changed(self) -> None:
        """Check access again for all further requests."""
        for connection in self.connections:
            connection.forget_plans()
