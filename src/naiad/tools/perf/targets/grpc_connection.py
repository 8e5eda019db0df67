"""A connection that carries gRPC calls (HTTP/2), unary ones or streams."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from naiad.client.connecting import ConnectionFailedError
from naiad.core.tensor import Buffer
from naiad.protocol.status import code_of_grpc
from naiad.tools.perf.exchange import SentRequest
from naiad.tools.perf.targets.connections import TargetConnection
from naiad.wire.grpc import PREFIX, PREFIX_BYTES, CompressedMessage, GrpcError, MessageAssembler, call_status
from naiad.wire.http2.client import ClientConnection, ClientStream
from naiad.wire.http2.frames import Http2Code, Http2Error
from naiad.wire.http2.headers import Fields, ResponseHead, is_grpc_content_type
from naiad.wire.http2.limits import Http2Limits

if TYPE_CHECKING:
    from naiad.tools.perf.targets.connections import SocketTarget

LIMITS = Http2Limits()
_NAMES = {int(code): code.name for code in Http2Code}
_KINDS = {
    int(Http2Code.CANCEL): "cancelled",
    int(Http2Code.ENHANCE_YOUR_CALM): "unavailable",
    int(Http2Code.REFUSED_STREAM): "unavailable",
}
"""What a reset of a call means; `internal` for the rest (gRPC's PROTOCOL-HTTP2)."""


class Call(ClientStream):
    """A call; `connection` has the time of what it receives."""

    __slots__ = ("assembler", "connection", "is_grpc")

    def __init__(self, connection: "GrpcConnection") -> None:
        super().__init__()
        self.connection = connection
        self.is_grpc = True
        self.assembler: MessageAssembler | None = None
        """Of messages that do not come whole, or are compressed."""

    @property
    def outstanding(self) -> Iterable[SentRequest]:
        """The requests that it carries."""
        raise NotImplementedError

    def message_received(self, message: Buffer) -> None:
        """Take a message of the response."""
        raise NotImplementedError

    def ended(self, kind: str, text: str, trailers: Fields = ()) -> None:
        """The call has ended: a kind of failure and its text, or "" for success."""
        raise NotImplementedError

    def expire(self, before_ns: int, message: str) -> None:
        """Fail the requests that have started before `before_ns`."""
        raise NotImplementedError


class GrpcConnection(TargetConnection):
    """One connection; the sink of its `ClientConnection`."""

    def __init__(self, target: "SocketTarget[Any]") -> None:
        super().__init__(target)
        self.http2: ClientConnection[Call] = ClientConnection(self, LIMITS)
        self.now_ns = 0
        """When the data that is being handled had arrived."""
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._unsent: list[tuple[Call, SentRequest]] = []
        self._flushes_later = False
        self._plain_head: ResponseHead | None = None
        self._ok_trailers: Fields | None = None

    @property
    def can_open(self) -> bool:
        """Whether it takes one more call."""
        return self.transport is not None and self.http2.can_open

    @property
    def outstanding(self) -> Iterator[SentRequest]:
        """The requests that it carries."""
        for call in self.http2.streams.values():
            yield from call.outstanding

    async def wait_ready(self) -> None:
        """Wait for the server's SETTINGS, which limit the calls."""
        await self._ready

    def send_soon(self, call: Call, exchange: SentRequest) -> None:
        """Write once for all requests that begin while data is handled, or else in this turn of the loop."""
        self._unsent.append((call, exchange))
        if not self._flushes_later:
            self._flushes_later = True
            self._loop.call_soon(self._flush)

    def expire(self, before_ns: int, message: str) -> None:
        """Fail the requests that have started before `before_ns`."""
        for call in list(self.http2.streams.values()):
            call.expire(before_ns, message)
        self._flush()
        if self.http2.is_retired:
            self._retire()

    def cancel(self, call: Call) -> None:
        """Reset a call."""
        self.http2.cancel(call)

    def fail_outstanding(self, kind: str, message: str) -> None:
        """Fail all requests."""
        self.http2.close()
        calls = list(self.http2.streams.values())
        self.http2.streams.clear()
        for call in calls:
            call.ended(kind, message)

    def _retire(self) -> None:
        self._target.retire(self)
        if next(iter(self.outstanding), None) is None:
            self.abort()

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface."""
        super().connection_made(transport)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Take received bytes and send what they give rise to."""
        # hot: bench/micro_perf.py
        self.now_ns = time.monotonic_ns()
        has_flush, self._flushes_later = self._flushes_later, True
        try:
            self.http2.receive_data(data, self.now_ns)
        except Http2Error as error:
            self._flush()
            self.abort(f"the connection ended with an HTTP/2 error: {error}")
            return
        self._flushes_later = has_flush
        if not self._ready.done() and self.http2.is_set_up:
            self._ready.set_result(None)
        if self.http2.output.frames:
            self._flush()
        if self.http2.is_going_away:
            self._retire()

    def pause_writing(self) -> None:
        """The socket is full: bodies wait."""
        self.http2.output.is_paused = True

    def resume_writing(self) -> None:
        """Send what has waited."""
        self.http2.output.is_paused = False
        self.http2.output.pump()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the requests; the target opens another connection."""
        if not self._ready.done():
            why = self.lost_reason or "the server closed the connection before its SETTINGS"
            self._ready.set_exception(ConnectionFailedError(why))
            self._ready.exception()  # Nothing may wait for it.
        super().connection_lost(exc)

    def _flush(self) -> None:
        self._flushes_later = False
        output = self.http2.output
        while self.transport is not None and output.frames:
            pieces = output.take()
            if len(pieces) == 1:
                self.write(pieces[0])
            else:
                self.transport.writelines(pieces)
            output.pump()
        if self._unsent:
            now_ns = time.monotonic_ns()
            unsent, self._unsent = self._unsent, []
            for call, exchange in unsent:
                if call.queue is None:
                    exchange.sent_ns = now_ns
                else:
                    self._unsent.append((call, exchange))  # A window of the server is closed.

    # Calls of the sink.

    def headers_received(self, stream: Call) -> None:
        """Prepare for messages."""
        if stream.head is self._plain_head:
            return
        stream.is_grpc = is_grpc_content_type(stream.head.field(b"content-type"))
        if stream.is_grpc and stream.head.status == 200 and stream.head.field(b"grpc-status") is None:
            self._plain_head = stream.head

    def body_received(self, stream: Call, data: memoryview) -> None:
        """Take a piece of a message."""
        # hot: bench/micro_perf.py
        if not stream.is_grpc:
            return
        try:
            if stream.assembler is None:
                size = len(data) - PREFIX_BYTES
                if size >= 0 and PREFIX.unpack_from(data) == (0, size):
                    stream.message_received(data[PREFIX_BYTES:])
                    return
                stream.assembler = MessageAssembler(LIMITS.message_bytes, stream.head.field(b"grpc-encoding"))
            for message in stream.assembler.feed(data):
                stream.message_received(message.decompress() if isinstance(message, CompressedMessage) else message)
        except GrpcError as error:
            self.cancel(stream)
            stream.ended(code_of_grpc(error.status).name.lower(), error.message)

    def end_received(self, stream: Call, trailers: Fields) -> None:
        """End a call with its status."""
        self.has_served = True
        if trailers is self._ok_trailers and stream.head is self._plain_head:
            stream.ended("", "", trailers)
            return
        status, text = call_status(stream.head.status, stream.head.fields, trailers)
        if not status and trailers == ((b"grpc-status", b"0"),):
            self._ok_trailers = trailers
        stream.ended(code_of_grpc(status).name.lower() if status else "", text, trailers)

    def stream_reset(self, stream: Call, code: int) -> None:
        """The server has reset the call."""
        if code == Http2Code.REFUSED_STREAM:
            text = "the server refused the call before it began"
        else:
            text = f"the server reset the call: {_NAMES.get(code, code)}"
        stream.ended(_KINDS.get(code, "internal"), text)

    def stream_broken(self, stream: Call, code: int) -> None:
        """The response broke a rule of HTTP/2."""
        stream.ended("internal", f"the response is malformed: {_NAMES.get(code, code)}")

    def goaway_received(self, code: int) -> None:
        """The server takes no new calls; `data_received` has the target open another connection for them."""
