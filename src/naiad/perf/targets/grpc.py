"""Unary gRPC calls, several on a connection."""

from collections.abc import Iterable

from naiad.perf.exchange import Exchange
from naiad.perf.targets.ending import TIMEOUT, fail
from naiad.perf.targets.grpc_connection import Call
from naiad.perf.targets.grpc_target import GrpcTarget, PreparedMessage, SendingConnection, keep_body
from naiad.wire.grpc import GrpcError, GrpcStatus
from naiad.wire.http2.headers import Fields
from naiad.wire.http2.stream import Payload


class UnaryCall(Call):
    """A request and its response."""

    __slots__ = ("exchange", "message")

    connection: "UnaryConnection"

    def __init__(self, connection: "UnaryConnection", exchange: Exchange) -> None:
        super().__init__(connection)
        self.exchange = exchange
        self.message: Payload | None = None

    @property
    def outstanding(self) -> Iterable[Exchange]:
        """The request."""
        return (self.exchange,)

    def message_received(self, message: Payload) -> None:
        """Take the response. Raises GrpcError for a second one."""
        if self.message is not None:
            raise GrpcError(GrpcStatus.INTERNAL, "the server sent more than one message")
        self.message = message

    def ended(self, kind: str, text: str, trailers: Fields = ()) -> None:
        """End the request."""
        # hot: bench/micro_perf.py
        exchange, connection = self.exchange, self.connection
        if exchange.wants_timing:
            exchange.timing = timing_of(self, trailers)
        connection.freed()
        if kind:
            fail(exchange, kind, text)
        elif self.message is None:
            fail(exchange, "internal", "the server ended the call without a complete message")
        else:
            exchange.first_ns = exchange.end_ns = connection.now_ns
            exchange.responses = 1
            if exchange.wants_body:
                keep_body(exchange, self.message)
            exchange.on_end(exchange)

    def expire(self, before_ns: int, message: str) -> None:
        """Cancel the call if it has started before `before_ns`."""
        if self.exchange.start_ns < before_ns:
            self.connection.cancel(self)
            self.ended(TIMEOUT, message)


def timing_of(call: Call, trailers: Fields) -> str:
    """Return the server's times from the fields of a response; "" for none."""
    for name, value in (*trailers, *call.head.fields):
        if name == b"server-timing":
            return value.decode("latin-1")
    return ""


class UnaryConnection(SendingConnection):
    """A connection of unary calls."""

    def send(self, prepared: PreparedMessage, exchange: Exchange) -> None:
        """Send a request; the connection can open a stream."""
        target = self._target
        call = UnaryCall(self, exchange)
        self.http2.open(call, target.timing_block if exchange.wants_timing else target.block)
        self.http2.output.send_body(call, prepared.varied(exchange))
        self.send_soon(call, exchange)

    def freed(self) -> None:
        """A call has ended: requests that wait for a stream are sent."""
        self._target.freed()


class UnaryTarget(GrpcTarget[UnaryConnection]):
    """A server behind gRPC, called with `ModelInfer`."""

    _METHOD = "ModelInfer"

    def _make(self) -> UnaryConnection:
        return UnaryConnection(self)
