"""gRPC calls over HTTP/2: they share one connection; another is opened when the server's stream limit is reached."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import NamedTuple

from naiad.client.connecting import ClientClosedError, ConnectionFailedError, Connector, NotConnectedError
from naiad.client.transport.grpc_connection import CallRefusedError, ClientCall, GrpcConnection
from naiad.core.errors import InferError, internal
from naiad.core.tensor import Buffer
from naiad.wire.grpc import GrpcError, GrpcStatus, frame_message
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.headers import Fields

MAX_UNREAD_BYTES = 8 << 20
"""Of a stream: reading its connection pauses while more wait for the caller."""


class CallResponse(NamedTuple):
    """The response to a call that has ended with status OK."""

    message: Buffer
    fields: Fields
    """Initial and trailing metadata, with the fields of gRPC itself."""


class AwaitedCall(ClientCall):
    """A unary call, whose result a coroutine awaits."""

    __slots__ = ("message", "result")

    def __init__(self, result: "asyncio.Future[CallResponse]") -> None:
        ClientCall.__init__(self)
        self.result = result
        self.message: Buffer | None = None

    def message_received(self, message: Buffer) -> None:
        """Keep the message. Raises GrpcError for a second one."""
        if self.message is not None:
            raise GrpcError(GrpcStatus.INTERNAL, "the server sent more than one message")
        self.message = message

    def ended(self, error: InferError | None, trailers: Fields = ()) -> None:
        """Set the result: the message, or the error that the server ended the call with."""
        if self.result.done():
            return
        if error is None and self.message is None:
            error = internal("the server ended the call without a complete message")
        if error is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(CallResponse(self.message or b"", (*self.head.fields, *trailers)))


class AwaitedStream(AwaitedCall):
    """A call with one request message and any number of response messages.

    `result` is done when the call has ended; its message is empty.
    """

    __slots__ = ("changed", "connection", "messages", "unread_bytes")

    def __init__(self, result: "asyncio.Future[CallResponse]", connection: "Http2ClientProtocol") -> None:
        AwaitedCall.__init__(self, result)
        self.connection = connection
        self.messages: deque[Buffer] = deque()
        """Received, not yet read."""
        self.unread_bytes = 0
        self.changed = asyncio.Event()
        result.add_done_callback(lambda _: self.changed.set())

    def message_received(self, message: Buffer) -> None:
        """Keep a message until it is read."""
        self.messages.append(message)
        self.unread_bytes += len(message)
        self.changed.set()
        self.connection.control_reading(self.unread_bytes)

    def ended(self, error: InferError | None, trailers: Fields = ()) -> None:
        """Set the result, after which the messages that are not yet read follow still."""
        self.message = b""
        AwaitedCall.ended(self, error, trailers)


class Http2ClientProtocol(GrpcConnection[AwaitedCall]):
    """A connection whose calls are awaited."""

    def __init__(self, limits: Http2Limits, on_free: Callable[[], None]) -> None:
        """`on_free` is called whenever a call has ended, and when the connection is lost."""
        super().__init__(limits)
        self._on_free = on_free
        self._is_reading = True
        self._max_unread_bytes = MAX_UNREAD_BYTES

    @property
    def is_open(self) -> bool:
        """Whether it is connected."""
        return self.transport is not None

    @property
    def is_retired(self) -> bool:
        """Whether it takes no new calls: the server goes away. Open calls continue."""
        return self.http2.is_retired

    def retire(self) -> None:
        """Take no new calls; close when the present ones have ended."""
        self.http2.is_going_away = True
        self._retire()

    async def call(self, header_block: bytes, message: Sequence[Buffer]) -> CallResponse:
        """Send a call and return its response; a caller that is cancelled resets the stream.

        Raises InferError; CallRefusedError when the call may be sent again.
        """
        body = frame_message(message)  # it may raise, and a call without its message would stay open
        call = AwaitedCall(self._loop.create_future())
        self._send(call, header_block, body)
        try:
            return await call.result
        finally:
            if not call.is_remote_closed:
                self.cancel(call)
                self._flush_soon()
            self._on_free()
            if self.is_retired:
                self._retire()

    async def stream(
        self, header_block: bytes, message: Sequence[Buffer], max_unread_bytes: int = MAX_UNREAD_BYTES
    ) -> AsyncGenerator[Buffer, None]:
        """Send a call and yield its response messages; it must be the only call of the connection.

        Reading the socket pauses while more bytes of messages are unread. Raises InferError.
        """
        self._max_unread_bytes = max_unread_bytes
        body = frame_message(message)
        call = AwaitedStream(self._loop.create_future(), self)
        self._send(call, header_block, body)
        try:
            while not call.result.done() or call.messages:
                if not call.messages:
                    call.changed.clear()
                    await call.changed.wait()
                    continue
                received = call.messages.popleft()
                call.unread_bytes -= len(received)
                self.control_reading(call.unread_bytes)
                yield received
            call.result.result()
        finally:
            if not call.result.done():
                call.result.cancel()
            self.abort()

    def _send(self, call: AwaitedCall, header_block: bytes, body: Sequence[Buffer]) -> None:
        self.http2.open(call, header_block)
        self.http2.output.send_body(call, body)
        self._flush_soon()

    def control_reading(self, unread_bytes: int) -> None:
        """Pause or resume reading, by the size of the unread messages."""
        if self.transport is None or self._is_reading == (unread_bytes <= self._max_unread_bytes):
            return
        self._is_reading = not self._is_reading
        (self.transport.resume_reading if self._is_reading else self.transport.pause_reading)()

    def _end_calls(self, why: str) -> None:
        super()._end_calls(why)
        self._on_free()


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
        self._failure_count = 0
        """Number of connections that could not be opened: calls that waited meanwhile fail too, and at once."""
        self._failure = ""

    async def call(self, header_block: bytes, message: Sequence[Buffer]) -> CallResponse:
        """Send a call and return its response; once more if the server refused it unprocessed. Raises InferError."""
        began = self._closed_count
        connection = self._find() or await self._wait(began)
        try:
            return await connection.call(header_block, message)
        except CallRefusedError:
            connection = self._find() or await self._wait(began)
            return await connection.call(header_block, message)

    async def stream(
        self, header_block: bytes, message: Sequence[Buffer], max_unread_bytes: int = MAX_UNREAD_BYTES
    ) -> AsyncGenerator[Buffer, None]:
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
            async with contextlib.aclosing(connection.stream(header_block, message, max_unread_bytes)) as messages:
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

    def renew(self) -> None:
        """Open new connections for further calls: nothing may arrive over the present ones any more."""
        for connection in self._connections:
            connection.retire()

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
        failures = self._failure_count
        async with self._waiting:
            while began == self._closed_count:
                connection = self._first_free()
                if connection is not None:
                    return connection
                self._connections = [each for each in self._connections if each.is_open]
                if sum(not each.is_retired for each in self._connections) < self._max_connections:
                    if failures != self._failure_count:
                        raise NotConnectedError(self._failure)
                    opened = await self._open_noted()
                    if began != self._closed_count:
                        opened.abort()
                        break
                    self._connections.append(opened)
                    continue
                self._freed.clear()
                await self._freed.wait()
            raise ClientClosedError

    async def _open_noted(self) -> Http2ClientProtocol:
        try:
            return await self._open()
        except NotConnectedError as error:
            self._failure_count, self._failure = self._failure_count + 1, error.message
            raise

    async def _open(self) -> Http2ClientProtocol:
        protocol = await self._connector.open(lambda: Http2ClientProtocol(self._limits, self._freed.set))
        try:
            async with asyncio.timeout(self._connector.timeout_s):
                await protocol.ready
        except TimeoutError:
            protocol.abort()
            raise NotConnectedError(
                f"{self._connector.address.url} sent no HTTP/2 SETTINGS within {self._connector.timeout_s:g} s"
            ) from None
        except ConnectionFailedError as error:  # before a call could be sent
            protocol.abort()
            raise NotConnectedError(error.message) from None
        except BaseException:
            protocol.abort()
            raise
        return protocol
