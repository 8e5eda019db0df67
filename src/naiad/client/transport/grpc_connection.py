"""An HTTP/2 connection that carries gRPC calls: the asyncio protocol of the client and of the load generator.

Theory of operation. The connection is the sink of its `ClientConnection`, which makes responses of frames. A call is
the object of its stream. It gets each message of its response (`message_received`) and, once, its end (`ended`).
Derived connections open calls on `http2`, put requests into its output, and flush: everything that begins in one turn
of the event loop, or while received data is handled, leaves with one write.

Most responses look the same: a head without a status, one message in one DATA frame, trailers with status OK. The
last head and trailers of this kind are kept. The decoder returns the same objects for the same bytes, so that for
later responses a comparison of identities replaces the search in their fields.
"""

import abc
import asyncio
import time
from typing import Generic, TypeVar, cast

from naiad.client.connecting import ConnectionFailedError
from naiad.core.errors import ErrorCode, InferError, internal
from naiad.core.tensor import Buffer
from naiad.protocol.status_table import NOT_BEGUN, code_of_grpc
from naiad.wire.grpc import PREFIX, PREFIX_BYTES, CompressedMessage, GrpcError, MessageAssembler, call_status
from naiad.wire.http2.client_connection import ClientConnection, ClientStream
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frames import Http2Code, Http2Error
from naiad.wire.http2.headers import Fields, ResponseHead, is_grpc_content_type

_NAMES = {int(code): code.name for code in Http2Code}
_CODES = {int(Http2Code.CANCEL): ErrorCode.CANCELLED, int(Http2Code.ENHANCE_YOUR_CALM): ErrorCode.UNAVAILABLE}
"""What a reset of a call means; INTERNAL for the rest (gRPC's PROTOCOL-HTTP2)."""
_OK_TRAILERS: Fields = ((b"grpc-status", b"0"),)


class CallRefusedError(ConnectionFailedError):
    """The server has not processed the call; it may be sent again."""

    has_begun = False


class ClientCall(ClientStream, abc.ABC):
    """A call on a connection; derived classes take what its response brings."""

    __slots__ = ("assembler", "is_grpc")

    def __init__(self) -> None:
        ClientStream.__init__(self)
        self.is_grpc = True
        """The response is gRPC."""
        self.assembler: MessageAssembler | None = None
        """Of messages that do not come whole, or are compressed."""

    @abc.abstractmethod
    def message_received(self, message: Buffer) -> None:
        """Take a message of the response. Raises GrpcError for one that the call must not have."""

    @abc.abstractmethod
    def ended(self, error: InferError | None, trailers: Fields = ()) -> None:
        """Handle the end of the call; `error` is None for status OK."""


C = TypeVar("C", bound=ClientCall)


class GrpcConnection(asyncio.Protocol, Generic[C]):
    """One connection; the sink of its `ClientConnection`."""

    def __init__(self, limits: Http2Limits) -> None:
        self._max_message_bytes = limits.message_bytes
        self.http2: ClientConnection[C] = ClientConnection(self, limits)
        self.transport: asyncio.Transport | None = None
        self.now_ns = 0
        """When the data that is being handled had arrived."""
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        """Done with the server's SETTINGS, which limit the calls."""
        self._flushes_later = False
        self._plain_head: ResponseHead | None = None
        self._ok_trailers: Fields | None = None

    @property
    def can_open(self) -> bool:
        """Whether it takes one more call."""
        return self.transport is not None and self.http2.can_open

    def abort(self) -> None:
        """Close the connection at once; its calls end."""
        if self.transport is not None:
            self.transport.abort()

    def cancel(self, call: C) -> None:
        """Reset a call whose response is not wanted; it hears no more of it."""
        self.http2.cancel(call)

    # --- callbacks of asyncio ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface."""
        self.transport = cast("asyncio.Transport", transport)
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
            self._fail(f"the connection ended with an HTTP/2 error: {error}")
            return
        self._flushes_later = has_flush
        if not self.ready.done() and self.http2.is_set_up:
            self.ready.set_result(None)
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
        """End all calls."""
        self.transport = None
        self._fail(f"the connection was lost: {exc}" if exc else "the connection was closed before the response")

    # --- writing and ending -----------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        """Write once for all calls that begin while data is handled, or else in this turn of the loop."""
        if not self._flushes_later:
            self._flushes_later = True
            self._loop.call_soon(self._flush)

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

    def write(self, data: Buffer) -> None:
        """Send bytes."""
        assert self.transport is not None
        self.transport.write(data)

    def _fail(self, why: str) -> None:
        """Close after an error of the connection, or after its end; all calls end with it."""
        self._end_calls(why)
        if self.transport is not None:
            self.transport.close()

    def _end_calls(self, why: str) -> None:
        self.http2.close()
        if not self.ready.done():
            self.ready.set_exception(ConnectionFailedError(why))
            self.ready.exception()  # Nothing may wait for it.
        calls = list(self.http2.streams.values())
        self.http2.streams.clear()
        for call in calls:
            call.ended(ConnectionFailedError(why))

    def _retire(self) -> None:
        """Close when no call is left: the connection takes no new ones."""
        if not self.http2.streams:
            self.abort()

    # --- the sink of the connection ---------------------------------------------------------------------------------

    def headers_received(self, stream: C) -> None:
        """Prepare for messages."""
        if stream.head is self._plain_head:
            return
        stream.is_grpc = is_grpc_content_type(stream.head.field(b"content-type"))
        if stream.is_grpc and stream.head.status == 200 and stream.head.field(b"grpc-status") is None:
            self._plain_head = stream.head

    def body_received(self, stream: C, data: memoryview) -> None:
        """Take a piece of a message."""
        # hot: bench/micro_perf.py
        if not stream.is_grpc:
            return
        try:
            if stream.assembler is None:
                size = len(data) - PREFIX_BYTES
                if 0 <= size <= self._max_message_bytes and PREFIX.unpack_from(data) == (0, size):
                    stream.message_received(data[PREFIX_BYTES:])
                    return
                stream.assembler = MessageAssembler(self._max_message_bytes, stream.head.field(b"grpc-encoding"))
            for message in stream.assembler.feed(data):
                stream.message_received(message.decompress() if isinstance(message, CompressedMessage) else message)
        except GrpcError as error:
            self.cancel(stream)
            stream.ended(InferError(code_of_grpc(error.status), error.message))

    def end_received(self, stream: C, trailers: Fields) -> None:
        """End a call with its status."""
        if trailers is self._ok_trailers and stream.head is self._plain_head:
            stream.ended(None, trailers)
            return
        status, text = call_status(stream.head.status, stream.head.fields, trailers)
        if not status and trailers == _OK_TRAILERS:
            self._ok_trailers = trailers
        stream.ended(_failure(status, text, (*stream.head.fields, *trailers)) if status else None, trailers)

    def stream_reset(self, stream: C, code: int) -> None:
        """End a call that the server has reset."""
        if code == Http2Code.REFUSED_STREAM:
            stream.ended(CallRefusedError("the server refused the call before it began"))
        else:
            name = _NAMES.get(code, str(code))
            stream.ended(InferError(_CODES.get(code, ErrorCode.INTERNAL), f"the server reset the call: {name}"))

    def stream_broken(self, stream: C, code: int) -> None:
        """End a call whose response broke a rule of HTTP/2."""
        stream.ended(internal(f"the response is malformed: {_NAMES.get(code, code)}"))

    def goaway_received(self, code: int) -> None:
        """Do nothing yet: the rest of the received data may end further calls before the connection retires."""


def _failure(status: int, text: str, fields: Fields) -> InferError:
    """Return the error that the server ended a call with."""
    error = InferError(code_of_grpc(status), text)
    if error.code is ErrorCode.UNAVAILABLE and any(name == NOT_BEGUN for name, _ in fields):
        error.has_begun = False
    return error
