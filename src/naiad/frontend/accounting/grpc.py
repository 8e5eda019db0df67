"""Accounts of gRPC calls: a call that counts its responses, and a layer between transport and service."""

from collections.abc import Sequence
from typing import Protocol, cast

from naiad.core.errors import InferError, Rejection, unavailable
from naiad.core.tensor import Buffer
from naiad.frontend.access.refusal import note_refused_call
from naiad.frontend.accounting.exchange import Accounting, Exchange
from naiad.frontend.accounting.key_usage import Exceeded
from naiad.frontend.context import CancelReason, GrpcCall, GrpcService
from naiad.frontend.http2.call import Http2Call
from naiad.frontend.http2.flow import Http2Flow
from naiad.frontend.http2.plan import CallPlan
from naiad.operations.inference import INFER
from naiad.operations.operation import grpc_path
from naiad.protocol.grpc.infer import read_beginning
from naiad.telemetry.logs.access_log import AccessEntry, AccessLog
from naiad.telemetry.metrics.response_metrics import rejections
from naiad.wire.grpc import GrpcStatus
from naiad.wire.header_fields import Headers
from naiad.wire.http2.headers import RequestHead

_INFER = grpc_path(INFER)
_LOOKED_AT_BYTES = 1024
_REQUEST_ID = b"triton-request-id"


class AccountedCall(Http2Call):
    """A call that accounts for its responses."""

    __slots__ = ("exchange",)

    log: AccessLog | None = None
    """Set in a subclass of each server."""

    def __init__(self, flow: Http2Flow, stream_id: int, head: RequestHead, receive_window: int) -> None:
        Http2Call.__init__(self, flow, stream_id, head, receive_window)
        self.exchange: Exchange | None = None
        """None until a message has arrived, and for REST."""

    @property
    def key_name(self) -> str:
        """The name of the client's API key; empty without one."""
        return "" if self.exchange is None else self.exchange.entry.key

    def note_control(self, target: str) -> None:
        """Note that the call changes the model or region `target`: it is always logged."""
        if self.exchange is not None:
            self.exchange.is_control = True
            self.exchange.entry.model = target

    def respond(self, parts: Sequence[Buffer]) -> None:
        """Respond to a unary call: headers, one message, status OK."""
        Http2Call.respond(self, parts)
        self._count(sum(map(len, parts)))
        self._end(GrpcStatus.OK)

    def respond_compressed(self, message: bytes, encoding: bytes) -> None:
        """Respond to a unary call with a compressed message."""
        Http2Call.respond_compressed(self, message, encoding)
        self._count(len(message))
        self._end(GrpcStatus.OK)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send one message of a streaming response."""
        self._count(sum(map(len, parts)))
        Http2Call.send(self, parts)

    def send_encoded(self, parts: Sequence[Buffer], encoding: bytes, *, is_compressed: bool) -> None:
        """Send one message of a streaming response whose messages may be compressed."""
        self._count(sum(map(len, parts)))
        Http2Call.send_encoded(self, parts, encoding, is_compressed=is_compressed)

    def finish(self, status: int, message: str = "", trailers: Headers = ()) -> None:
        """End the call with a gRPC status."""
        Http2Call.finish(self, status, message, trailers)
        if self.exchange is not None:
            for name, value in trailers:
                if name == _REQUEST_ID:
                    self.exchange.entry.request_id = value.decode("latin-1")
        self._end(status)

    def cancel(self, why: CancelReason) -> None:
        """Notify the service, once, that the call needs no response."""
        Http2Call.cancel(self, why)
        if why is not CancelReason.DEADLINE:  # which finishes the call
            self._end(GrpcStatus.CANCELLED)

    def note_rejection(self, plan: CallPlan) -> AccessEntry:
        """Log a call that is refused by its header fields, also in the access log."""
        entry = Http2Call.note_rejection(self, plan)
        if self.log is not None:
            self.log.write(entry)
        return entry

    def _count(self, size: int) -> None:
        if self.exchange is not None:
            self.exchange.send(size)

    def _end(self, status: int) -> None:
        if self.exchange is not None:
            self.exchange.finish(GrpcStatus(status).name)


class RefusingService(GrpcService, Protocol):
    """A service whose streams can answer a message with an error."""

    def refuse_message(self, call: GrpcCall, message: Buffer, error: InferError) -> None:
        """Answer a message of a streaming call with an error; the call goes on."""


class AccountedService:
    """Wraps a service; implements `frontend.context.GrpcService`."""

    def __init__(self, accounting: Accounting, service: RefusingService) -> None:
        self._accounting = accounting
        self._service = service
        self.rejection = service.rejection
        self.message_began = service.message_began
        self.is_streaming = service.is_streaming
        self.stream_half_closed = service.stream_half_closed
        self.stream_writable = service.stream_writable
        self.stream_draining = service.stream_draining

    def unary(self, call: GrpcCall, message: Buffer) -> None:
        """Account for a call and pass it on, or refuse it because its key has reached a limit."""
        exceeded = self._begin(call, message)
        if exceeded is None:
            self._service.unary(call, message)
        else:
            _refuse(call, exceeded)

    def stream_message(self, call: GrpcCall, message: Buffer) -> None:
        """Count a message and pass it on, or answer it with an error because its key has reached a limit."""
        exchange = cast("AccountedCall", call).exchange
        if exchange is None:
            exceeded = self._begin(call, message)
            if exceeded is None:
                self._service.stream_message(call, message)
            else:
                _refuse(call, exceeded)
            return
        exceeded = exchange.receive_more(len(message))
        if exceeded is None:
            self._service.stream_message(call, message)
        else:
            # The other requests of the stream go on.
            self._service.refuse_message(call, message, unavailable(exceeded.message, Rejection.KEY_LIMIT))

    def _begin(self, call: GrpcCall, message: Buffer) -> Exceeded | None:
        accounted = cast("AccountedCall", call)
        entry = AccessEntry(protocol="gRPC", path=call.path.partition("?")[0], status=0, bytes_in=len(message))
        credentials = accounted.head.field(b"authorization")
        accounted.exchange = exchange = self._accounting.open(entry, call.client, credentials, call.arrival_ns)
        if exchange.is_sampled and call.path.startswith(_INFER):
            _name(entry, message)
        return exchange.begin()


def _name(entry: AccessEntry, message: Buffer) -> None:
    """Add model, version and id of a request."""
    known = read_beginning(message[:_LOOKED_AT_BYTES])
    if known is not None:
        entry.model, entry.version, entry.request_id = known


def _refuse(call: GrpcCall, exceeded: Exceeded) -> None:
    rejections.count(Rejection.KEY_LIMIT)
    status = GrpcStatus.RESOURCE_EXHAUSTED
    key = cast("AccountedCall", call).key_name
    note_refused_call(call.path.partition("?")[0], status.name, exceeded.message, call.client, key)
    seconds = exceeded.retry_after_s
    trailers = ((b"retry-after", b"%d" % seconds), (b"grpc-retry-pushback-ms", b"%d" % (seconds * 1000)))
    call.finish(status, exceeded.message, trailers)


def call_type_of(accounting: Accounting) -> type[AccountedCall]:
    """Return the class of the calls of a server."""
    return type("AccountedCall", (AccountedCall,), {"__slots__": (), "log": accounting.log})
