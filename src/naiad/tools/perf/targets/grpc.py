"""Requests over gRPC: messages and the choice of a connection, which streams share, and unary calls."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from naiad.client.connecting import ServerAddress
from naiad.core.errors import InferError
from naiad.core.tensor import Buffer
from naiad.protocol.grpc.client import RepeatedRequest, decode_response, identity_fields
from naiad.tools.perf.perf_exchange import Prepared, RequestTemplate, SentRequest
from naiad.tools.perf.perf_plan import ServerTarget
from naiad.tools.perf.targets.connections import SocketTarget
from naiad.tools.perf.targets.ending import TIMEOUT, WRONG_ANSWER, fail
from naiad.tools.perf.targets.grpc_connection import TargetCall, TargetGrpcConnection, kind_of
from naiad.wire.compression import WINDOW_BITS, compress
from naiad.wire.grpc import PREFIX, GrpcError, GrpcStatus, request_fields
from naiad.wire.http2.headers import Field, Fields, encode_fields

_SERVICE = "/inference.GRPCInferenceService/"
_TIMING_BLOCK = encode_fields(((b"x-naiad-timing", b"1"),))
_REQUESTS_PER_CONNECTION = 6
"""As Triton's client library shares a channel, so that figures compare."""
_MAX_CONNECTIONS = 64


class PreparedMessage:
    """A message as bytes: whole with its prefix, and in the parts around what varies."""

    __slots__ = ("_bits", "_request", "whole")

    def __init__(self, compression: str, template: RequestTemplate) -> None:
        self._bits = WINDOW_BITS[compression.encode()] if compression != "none" else 0
        self._request = RepeatedRequest(template.header, template.data)
        self.whole: Sequence[Buffer] = self._encode(b"")
        """A message without id and sequence."""

    def varied(self, exchange: SentRequest) -> Sequence[Buffer]:
        """Return the message with the variation of `exchange`."""
        if not exchange.request_id and not exchange.sequence_id:
            return self.whole
        return self._encode(
            identity_fields(
                exchange.request_id,
                exchange.sequence_id,
                starts_sequence=exchange.sequence_start,
                ends_sequence=exchange.sequence_end,
            )
        )

    def _encode(self, fields: bytes) -> Sequence[Buffer]:
        request = self._request
        if self._bits:
            message = compress((request.head, fields, request.rest, *request.large), self._bits)
            return (PREFIX.pack(1, len(message)) + message,)
        prefix = PREFIX.pack(0, request.byte_size + len(fields))
        return (b"%b%b%b%b" % (prefix, request.head, fields, request.rest), *request.large)


class SendingConnection(TargetGrpcConnection):
    """A connection that sends requests."""

    def __init__(self, target: "GrpcTarget[Any]") -> None:
        super().__init__(target)
        self.target = target

    def send(self, prepared: PreparedMessage, exchange: SentRequest) -> None:
        """Send a request; the connection can open a stream."""
        raise NotImplementedError


K = TypeVar("K", bound=SendingConnection)


class GrpcTarget(SocketTarget[K], Generic[K]):
    """A server behind gRPC."""

    _METHOD: ClassVar[str]

    def __init__(self, service: ServerTarget, connections: int = 0) -> None:
        """Use a number of connections; 0 for one for every six requests that are outstanding at once.

        Raises InferError(INVALID_ARG) for an address, metadata or a TLS file that is wrong.
        """
        super().__init__(service, is_grpc=True)
        self._count = connections
        self._positions: dict[int, int] = {}
        """Slots in the order of their first use: each keeps its connection, so that requests leave in groups."""
        self.block = _call_block(self._METHOD, service, self._address, self._headers)
        """The header block of a call."""
        self.timing_block = self.block + _TIMING_BLOCK
        """That of a call that asks for the server's times."""

    def prepare(self, template: RequestTemplate) -> PreparedMessage:
        """Encode a template. Raises InferError(INVALID_ARG) for one that gRPC cannot carry."""
        return PreparedMessage(self._service.compression, template)

    def send(self, prepared: Prepared, exchange: SentRequest) -> None:
        """Send a request over the connection of its slot, or one that has room."""
        # hot: bench/micro_perf.py
        assert isinstance(prepared, PreparedMessage)
        exchange.start_ns = time.monotonic_ns()
        connections = self._connections
        if connections:
            connection = connections[self._position(exchange) % len(connections)]
            if connection.can_open:
                connection.send(prepared, exchange)
                return
            for connection in connections:
                if connection.can_open:
                    connection.send(prepared, exchange)
                    return
            self._widen()
        self._enqueue(prepared, exchange)

    def freed(self) -> None:
        """A call has ended: send requests that wait for a stream."""
        if self._waiting:
            self._send_waiting()

    def _position(self, exchange: SentRequest) -> int:
        position = self._positions.get(exchange.slot)
        if position is None:
            position = self._positions[exchange.slot] = len(self._positions)
        return position

    def _widen(self) -> None:
        """Have one more connection opened: the streams of all are in use."""
        if len(self._connections) == self._wanted < _MAX_CONNECTIONS:
            self._wanted += 1
            self.repair()

    def _connection_count(self, outstanding: int) -> int:
        return self._count or min(-(-outstanding // _REQUESTS_PER_CONNECTION), _MAX_CONNECTIONS)

    def _use(self, opened: Sequence[K]) -> None:
        if self._waiting:
            self._send_waiting()

    def _send_waiting(self) -> None:
        for connection in self._connections:
            while self._waiting and connection.can_open:
                connection.send(*self._waiting.popleft())


def keep_body(exchange: SentRequest, message: Buffer) -> None:
    """Decode a response into `exchange.body`."""
    try:
        request_id, response = decode_response(message)
    except InferError as error:
        exchange.failure = WRONG_ANSWER
        exchange.failure_message = f"the response cannot be decoded: {error}"
        return
    if exchange.is_answered_by(response.header.model_name, request_id):
        exchange.body = [*(exchange.body or ()), (response.header.outputs, response.data)]


def _call_block(method: str, service: ServerTarget, address: ServerAddress, metadata: Sequence[Field]) -> bytes:
    """Return the header block of a call."""
    fields = [(name.lower(), value) for name, value in metadata]
    if service.compression != "none":
        fields.append((b"grpc-encoding", service.compression.encode()))
    scheme = "https" if address.uses_tls else "http"
    return encode_fields(request_fields(_SERVICE + method, address.authority, scheme, fields))


# --- unary calls --------------------------------------------------------------------------------------------------


class UnaryCall(TargetCall):
    """A request and its response."""

    __slots__ = ("connection", "exchange", "message")

    def __init__(self, connection: "UnaryConnection", exchange: SentRequest) -> None:
        TargetCall.__init__(self)
        self.connection = connection
        self.exchange = exchange
        self.message: Buffer | None = None

    @property
    def outstanding(self) -> Iterable[SentRequest]:
        """The request."""
        return (self.exchange,)

    def message_received(self, message: Buffer) -> None:
        """Take the response. Raises GrpcError for a second one."""
        if self.message is not None:
            raise GrpcError(GrpcStatus.INTERNAL, "the server sent more than one message")
        self.message = message

    def ended(self, error: InferError | None, trailers: Fields = ()) -> None:
        """End the request."""
        # hot: bench/micro_perf.py
        exchange, connection = self.exchange, self.connection
        if self.head.status:
            connection.has_served = True
        if exchange.wants_timing:
            exchange.timing = timing_of(self, trailers)
        connection.target.freed()
        if error is not None:
            fail(exchange, kind_of(error), error.message)
        elif self.message is None:
            fail(exchange, "internal", "the server ended the call without a complete message")
        else:
            exchange.first_ns = exchange.end_ns = connection.now_ns
            exchange.responses = 1
            if exchange.keeps(len(self.message)):
                keep_body(exchange, self.message)
            exchange.on_end(exchange)

    def expire(self, before_ns: int, message: str) -> None:
        """Cancel the call if it has started before `before_ns`."""
        if self.exchange.start_ns < before_ns:
            self.connection.cancel(self)
            self.connection.target.freed()
            fail(self.exchange, TIMEOUT, message)


def timing_of(call: TargetCall, trailers: Fields) -> str:
    """Return the server's times from the fields of a response; "" for none."""
    for name, value in (*trailers, *call.head.fields):
        if name == b"server-timing":
            return value.decode("latin-1")
    return ""


class UnaryConnection(SendingConnection):
    """A connection of unary calls."""

    def send(self, prepared: PreparedMessage, exchange: SentRequest) -> None:
        """Send a request; the connection can open a stream."""
        target = self.target
        call = UnaryCall(self, exchange)
        self.http2.open(call, target.timing_block if exchange.wants_timing else target.block)
        self.http2.output.send_body(call, prepared.varied(exchange))
        self.send_soon(call, exchange)


class UnaryTarget(GrpcTarget[UnaryConnection]):
    """A server behind gRPC, called with `ModelInfer`."""

    _METHOD = "ModelInfer"

    def _make(self) -> UnaryConnection:
        return UnaryConnection(self)
