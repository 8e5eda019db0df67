"""Requests over `ModelStreamInfer`: a bidirectional stream on each connection, which several requests share."""

from collections.abc import Iterable
from copy import copy
from dataclasses import replace

from naiad.core.errors import InferError, internal
from naiad.core.tensor import Buffer
from naiad.protocol.grpc.client import StreamResponse, read_stream_response
from naiad.tools.perf.perf_exchange import RequestTemplate, SentRequest
from naiad.tools.perf.targets.ending import TIMEOUT, WRONG_ANSWER, count_response, fail, finish
from naiad.tools.perf.targets.grpc import GrpcTarget, PreparedMessage, SendingConnection, keep_body
from naiad.tools.perf.targets.grpc_connection import TargetCall, kind_of
from naiad.wire.grpc import GrpcError, GrpcStatus
from naiad.wire.http2.headers import Fields

_MOST_EXPIRED = 100_000
"""Requests that were given up on a stream and are remembered."""
_MIXER, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


class StreamCall(TargetCall):
    """A stream and the requests on it, by id."""

    __slots__ = ("connection", "expired", "has_ids", "has_single", "knows_all", "pending")

    def __init__(self, connection: "StreamConnection") -> None:
        super().__init__()
        self.connection = connection
        self.pending: dict[str, SentRequest] = {}
        """In the order in which they were sent."""
        self.expired: set[str] = set()
        """Those that were given up, whose responses may come yet."""
        self.has_single = True
        """All requests have exactly one response each."""
        self.has_ids = False
        """The server has returned an id: a response without one belongs to no request."""
        self.knows_all = True
        """What is neither pending nor expired has got its final response, or was never sent."""

    @property
    def outstanding(self) -> Iterable[SentRequest]:
        """The requests without a final response."""
        return self.pending.values()

    def message_received(self, message: Buffer) -> None:
        """Take a response to one of the requests. Raises GrpcError for a malformed one."""
        # hot: bench/micro_perf.py
        try:
            response = read_stream_response(message)
        except InferError as error:
            raise GrpcError(GrpcStatus.INTERNAL, error.message) from None
        self.connection.has_served = True
        self.connection.http2.message_count += 1
        pending = self.pending
        request_id = response.request_id
        if request_id:
            self.has_ids = True
        elif pending and (response.error or not self.has_ids):
            request_id = next(iter(pending))  # The server returns no ids: responses are in the order of requests.
        exchange = pending.get(request_id)
        if exchange is None:
            self._take_other(request_id, response)
            return
        if not response.is_empty:
            self._take(exchange, response)
        if response.is_final:
            del pending[request_id]
            finish(exchange, self.connection.now_ns)

    def _take_other(self, request_id: str, response: StreamResponse) -> None:
        """Take a response to no request that waits for one. Raises GrpcError if it is one that must not come.

        After the error of a decoupled model an empty response may still mark the end.
        """
        if request_id in self.expired:
            if response.is_final:
                self.expired.discard(request_id)
        elif self.knows_all and (self.has_single or not response.is_empty):
            what = "too many responses"
            if request_id:
                what = f"a second response to '{request_id}', or one to no request"
                what += "" if self.has_single else ", after the final response; its end must be marked"
            elif self.has_ids:
                what = "a response without an id, after responses with one"
            raise GrpcError(GrpcStatus.INTERNAL, f"the server sent {what}")

    def _take(self, exchange: SentRequest, response: StreamResponse) -> None:
        if response.error:
            # Triton: a stream carries the texts of errors, and no codes.
            exchange.failure = exchange.failure or "unknown"
            exchange.failure_message = exchange.failure_message or response.error
            return
        count_response(exchange, self.connection.now_ns)
        if exchange.responses > 1 and exchange.right_answers.is_single:
            exchange.failure = WRONG_ANSWER
            exchange.failure_message = f"{exchange.responses} responses of a model that sends one to each request"
        elif exchange.keeps(len(response.response)):
            keep_body(exchange, response.response)

    def ended(self, error: InferError | None, trailers: Fields = ()) -> None:
        """Fail the requests: a stream that ends takes them with it."""
        if self.head.status:
            self.connection.has_served = True
        self.connection.stream_ended(self)
        error = error or internal("the server ended the stream before its response")
        pending, self.pending = self.pending, {}
        for exchange in pending.values():
            fail(exchange, kind_of(error), error.message)

    def expire(self, before_ns: int, message: str) -> None:
        """Fail the requests that have started before `before_ns`; the stream goes on."""
        late = [key for key, exchange in self.pending.items() if exchange.start_ns < before_ns]
        if len(self.expired) + len(late) > _MOST_EXPIRED:
            self.expired.clear()
            self.knows_all = False
        else:
            self.expired.update(late)
        for key in late:
            fail(self.pending.pop(key), TIMEOUT, message)


class StreamConnection(SendingConnection):
    """A connection with a stream, which is opened with the first request and again when it ends."""

    _stream: StreamCall | None = None
    _next_id = 0

    @property
    def can_open(self) -> bool:
        """Whether it takes a request."""
        return self._stream is not None or super().can_open

    def send(self, prepared: PreparedMessage, exchange: SentRequest) -> None:
        """Send a request on the stream."""
        stream = self._stream
        if stream is None:
            stream = self._stream = StreamCall(self)
            self.http2.open(stream, self.target.block)
        if not exchange.request_id or exchange.request_id in stream.pending:
            self._next_id += 1
            exchange.request_id += f"#{self._next_id}"
        stream.pending[exchange.request_id] = exchange
        stream.has_single = stream.has_single and exchange.right_answers.is_single
        self.http2.output.send_data(stream, prepared.varied(exchange))
        self.send_soon(stream, exchange)

    def stream_ended(self, stream: StreamCall) -> None:
        """Open another stream with the next request."""
        if self._stream is stream:
            self._stream = None


class StreamTarget(GrpcTarget[StreamConnection]):
    """A server behind gRPC, called with `ModelStreamInfer`."""

    _METHOD = "ModelStreamInfer"

    def prepare(self, template: RequestTemplate) -> PreparedMessage:
        """Encode a template. Raises InferError(INVALID_ARG) for one that gRPC cannot carry."""
        header = copy(template.header)
        header.wants_empty_final = True  # Without it the end of a decoupled model's responses is not known.
        return super().prepare(replace(template, header=header))

    def _position(self, exchange: SentRequest) -> int:
        # All requests of a sequence are on one stream, which keeps their order. Ids are often multiples of a number.
        if exchange.sequence_id:
            return (exchange.sequence_id * _MIXER & _MASK) >> 32
        return super()._position(exchange)

    def _make(self) -> StreamConnection:
        return StreamConnection(self)
