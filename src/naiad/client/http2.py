"""gRPC calls over HTTP/2: they share one connection; another is opened when the server's stream limit is reached."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import NamedTuple, cast

from naiad.client.connecting import ClientClosedError, ConnectionFailedError, Connector
from naiad.core.errors import ErrorCode, InferError, internal
from naiad.core.tensor import Buffer
from naiad.protocol.status import code_of_grpc
from naiad.wire.grpc import CompressedMessage, GrpcError, GrpcStatus, MessageAssembler, call_status, frame_message
from naiad.wire.http2.client import ClientConnection, ClientStream
from naiad.wire.http2.frames import Http2Code, Http2Error
from naiad.wire.http2.headers import Fields, is_grpc_content_type
from naiad.wire.http2.limits import Http2Limits

_MAX_UNREAD_BYTES = 8 << 20
_NAMES = {int(code): code.name for code in Http2Code}
_CODES = {int(Http2Code.CANCEL): ErrorCode.CANCELLED, int(Http2Code.ENHANCE_YOUR_CALM): ErrorCode.UNAVAILABLE}
"""What a reset of a call means; INTERNAL for the rest (gRPC's PROTOCOL-HTTP2)."""


class CallRefusedError(ConnectionFailedError):
    """The server has not processed the call; it may be sent again."""


class CallResponse(NamedTuple):
    """The response to a call that has ended with status OK."""

    message: Buffer
    fields: Fields
    """Initial and trailing metadata, with the fields of gRPC itself."""


class Call(ClientStream):
    """A unary call."""

    __slots__ = ("assembler", "message", "result")

    def __init__(self, result: "asyncio.Future[CallResponse]") -> None:
        super().__init__()
        self.result = result
        self.assembler: MessageAssembler | None = None
        """None while the response is not gRPC."""
        self.message: Buffer | None = None


class StreamCall(Call):
    """A call with one request message and any number of response messages.

    `result` is done when the call has ended; its message is empty.
    """

    __slots__ = ("changed", "messages", "unread_bytes")

    def __init__(self, result: "asyncio.Future[CallResponse]") -> None:
        super().__init__(result)
        self.messages: deque[Buffer] = deque()
        """Received, not yet read."""
        self.unread_bytes = 0
        self.changed = asyncio.Event()
        result.add_done_callback(lambda _: self.changed.set())


class Http2ClientProtocol(asyncio.Protocol):
    """One connection; the sink of its `ClientConnection`."""

    def __init__(self, limits: Http2Limits, on_free: Callable[[], None]) -> None:
        self._limits = limits
        self._on_free = on_free
        self._connection: ClientConnection[Call] = ClientConnection(self, limits)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._has_flush = False
        self._is_reading = True
        self.ready: asyncio.Future[None] = self._loop.create_future()
        """Done with the server's SETTINGS, which limit the streams."""

    @property
    def can_open(self) -> bool:
        """Whether it takes one more call."""
        return self._transport is not None and self._connection.can_open

    @property
    def is_open(self) -> bool:
        """Whether it is connected."""
        return self._transport is not None

    @property
    def is_retired(self) -> bool:
        """Whether it takes no new calls: the server goes away. Open calls continue."""
        return self._connection.is_retired

    async def call(self, header_block: bytes, message: Sequence[Buffer]) -> CallResponse:
        """Send a call and return its response; a caller that is cancelled resets the stream.

        Raises InferError; CallRefusedError when the call may be sent again.
        """
        body = frame_message(message)  # it may raise, and a call without its message would stay open
        call = Call(self._loop.create_future())
        self._connection.open(call, header_block)
        self._connection.output.send_body(call, body)
        self._flush_soon()
        try:
            return await call.result
        finally:
            if not call.is_remote_closed:
                self._connection.cancel(call)
                self._flush_soon()
            self._on_free()
            if self.is_retired and not self._connection.streams:
                self.abort()

    async def stream(self, header_block: bytes, message: Sequence[Buffer]) -> AsyncGenerator[Buffer, None]:
        """Send a call and yield its response messages; it must be the only call of the connection.

        Reading the socket pauses while 8 MiB of messages are unread. Raises InferError.
        """
        body = frame_message(message)
        call = StreamCall(self._loop.create_future())
        self._connection.open(call, header_block)
        self._connection.output.send_body(call, body)
        self._flush_soon()
        try:
            while not call.result.done() or call.messages:
                if not call.messages:
                    call.changed.clear()
                    await call.changed.wait()
                    continue
                received = call.messages.popleft()
                call.unread_bytes -= len(received)
                self._control_reading(call)
                yield received
            call.result.result()
        finally:
            if not call.result.done():
                call.result.cancel()
            self.abort()

    def _control_reading(self, call: StreamCall) -> None:
        """Pause or resume reading, by the size of the unread messages."""
        if self._transport is None or self._is_reading == (call.unread_bytes <= _MAX_UNREAD_BYTES):
            return
        self._is_reading = not self._is_reading
        (self._transport.resume_reading if self._is_reading else self._transport.pause_reading)()

    def abort(self) -> None:
        """Close the connection; the server cancels its calls."""
        if self._transport is not None:
            self._transport.abort()

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface."""
        self._transport = cast("asyncio.Transport", transport)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Take received bytes and send what they give rise to."""
        try:
            self._connection.receive_data(data, time.monotonic_ns())
        except Http2Error as error:
            self._flush()
            self._fail(f"the connection ended with an HTTP/2 error: {error}")
            return
        if not self.ready.done() and self._connection.is_set_up:
            self.ready.set_result(None)
        if self._connection.output.frames:
            self._flush_soon()

    def pause_writing(self) -> None:
        """The socket is full: bodies wait."""
        self._connection.output.is_paused = True

    def resume_writing(self) -> None:
        """Send what has waited."""
        self._connection.output.is_paused = False
        self._connection.output.pump()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """All calls fail."""
        self._transport = None
        self._fail(f"the connection was lost: {exc}" if exc else "the connection was closed before the response")

    def _fail(self, why: str) -> None:
        self._connection.close()
        if not self.ready.done():
            self.ready.set_exception(ConnectionFailedError(why))
        for call in list(self._connection.streams.values()):
            self._end(call, ConnectionFailedError(why))
        self._connection.streams.clear()
        self._on_free()
        if self._transport is not None:
            self._transport.close()

    def _flush_soon(self) -> None:
        """Write once for all calls that begin in this turn of the loop."""
        if not self._has_flush:
            self._has_flush = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._has_flush = False
        output, transport = self._connection.output, self._transport
        while transport is not None and output.frames:
            transport.writelines(output.take())
            output.pump()

    # Calls of the sink.

    def headers_received(self, stream: Call) -> None:
        """Prepare for the message."""
        if is_grpc_content_type(stream.head.field(b"content-type")):
            try:
                stream.assembler = MessageAssembler(self._limits.message_bytes, stream.head.field(b"grpc-encoding"))
            except GrpcError as error:
                self._break(stream, error)

    def body_received(self, stream: Call, data: memoryview) -> None:
        """Take a piece of the message."""
        if stream.assembler is None:
            return
        try:
            for each in stream.assembler.feed(data):
                message = each.decompress() if isinstance(each, CompressedMessage) else each
                if isinstance(stream, StreamCall):
                    self._stream_message_received(stream, message)
                elif stream.message is not None:
                    raise GrpcError(GrpcStatus.INTERNAL, "the server sent more than one message")
                else:
                    stream.message = message
        except GrpcError as error:
            self._break(stream, error)

    def _stream_message_received(self, stream: StreamCall, message: Buffer) -> None:
        stream.messages.append(message)
        stream.unread_bytes += len(message)
        stream.changed.set()
        self._control_reading(stream)

    def end_received(self, stream: Call, trailers: Fields) -> None:
        """Return the message, or the error that the server ended the call with."""
        status, text = call_status(stream.head.status, stream.head.fields, trailers)
        if status:
            self._end(stream, InferError(code_of_grpc(status), text))
        elif stream.message is None and not isinstance(stream, StreamCall):
            self._end(stream, internal("the server ended the call without a complete message"))
        elif not stream.result.done():
            stream.result.set_result(CallResponse(stream.message or b"", (*stream.head.fields, *trailers)))

    def stream_reset(self, stream: Call, code: int) -> None:
        """The server has reset the call."""
        if code == Http2Code.REFUSED_STREAM:
            self._end(stream, CallRefusedError("the server refused the call before it began"))
        else:
            name = _NAMES.get(code, str(code))
            self._end(stream, InferError(_CODES.get(code, ErrorCode.INTERNAL), f"the server reset the call: {name}"))

    def stream_broken(self, stream: Call, code: int) -> None:
        """The response broke a rule of HTTP/2."""
        self._end(stream, internal(f"the response is malformed: {_NAMES.get(code, code)}"))

    def goaway_received(self, code: int) -> None:
        """The server takes no new calls; the pool opens another connection for them."""

    def _break(self, call: Call, error: GrpcError) -> None:
        self._end(call, InferError(code_of_grpc(error.status), error.message))
        self._connection.cancel(call)

    def _end(self, call: Call, error: InferError) -> None:
        if not call.result.done():
            call.result.set_exception(error)


class Http2Pool:
    """Usually one connection; at most `max_connections`. Further calls wait for a stream."""

    def __init__(self, connector: Connector, max_connections: int, limits: Http2Limits) -> None:
        self._connector = connector
        self._limits = limits
        self._max_connections = max_connections
        self._connections: list[Http2ClientProtocol] = []
        self._streaming: set[Http2ClientProtocol] = set()
        self._waiting = asyncio.Lock()
        self._freed = asyncio.Event()
        self._closed_count = 0
        """Number of calls of `close`: calls that began before fail."""

    async def call(self, header_block: bytes, message: Sequence[Buffer]) -> CallResponse:
        """Send a call and return its response; once more if the server refused it unprocessed. Raises InferError."""
        began = self._closed_count
        connection = self._find() or await self._wait(began)
        try:
            return await connection.call(header_block, message)
        except CallRefusedError:
            connection = self._find() or await self._wait(began)
            return await connection.call(header_block, message)

    async def stream(self, header_block: bytes, message: Sequence[Buffer]) -> AsyncGenerator[Buffer, None]:
        """Send a call and yield its response messages. Raises InferError.

        It has a connection of its own: a caller that reads slowly delays no other call.
        """
        began = self._closed_count
        connection = await self._open()
        if began != self._closed_count:
            connection.abort()
            raise ClientClosedError
        self._streaming.add(connection)
        try:
            async with contextlib.aclosing(connection.stream(header_block, message)) as messages:
                async for each in messages:
                    yield each
        finally:
            self._streaming.discard(connection)

    def close(self) -> None:
        """Close all connections; open calls, and calls that wait, fail."""
        self._closed_count += 1
        self._freed.set()
        for connection in (*self._connections, *self._streaming):
            connection.abort()
        self._connections.clear()

    def _find(self) -> Http2ClientProtocol | None:
        if self._waiting.locked():
            return None  # Earlier calls wait for a stream.
        return self._first_free()

    def _first_free(self) -> Http2ClientProtocol | None:
        for connection in self._connections:
            if connection.can_open:
                return connection
        return None

    async def _wait(self, began: int) -> Http2ClientProtocol:
        async with self._waiting:
            while began == self._closed_count:
                connection = self._first_free()
                if connection is not None:
                    return connection
                self._connections = [each for each in self._connections if each.is_open]
                if sum(not each.is_retired for each in self._connections) < self._max_connections:
                    opened = await self._open()
                    if began != self._closed_count:
                        opened.abort()
                        break
                    self._connections.append(opened)
                    continue
                self._freed.clear()
                await self._freed.wait()
            raise ClientClosedError

    async def _open(self) -> Http2ClientProtocol:
        protocol = await self._connector.open(lambda: Http2ClientProtocol(self._limits, self._freed.set))
        try:
            async with asyncio.timeout(self._connector.timeout_s):
                await protocol.ready
        except TimeoutError:
            protocol.abort()
            raise ConnectionFailedError(
                f"{self._connector.address.url} sent no HTTP/2 SETTINGS within {self._connector.timeout_s:g} s"
            ) from None
        except BaseException:
            protocol.abort()
            raise
        return protocol
