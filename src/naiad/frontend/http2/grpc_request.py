"""The request side of a gRPC call: its messages, as they arrive piece by piece.

A streaming call gets each message as it completes, a unary call its only one with the end of the body. While a
streaming call is paused, because its service asks for it or because a message is being decompressed, flow control
stops its peer. What arrives until then waits in a `PausedBody`.

Compressed messages that take long are decompressed on another thread; the messages of a call stay in order.
"""

import logging
import time
from collections import deque
from functools import partial
from typing import Any

from naiad.core.errors import excerpt
from naiad.core.tensor import Buffer
from naiad.frontend.access.refusal import note_refused_call
from naiad.frontend.connections.body_reservation import BudgetExceededError
from naiad.frontend.context import EARLY_REJECTION_BYTES
from naiad.frontend.http2.call import Http2Call
from naiad.frontend.http2.endpoint import Http2Endpoint
from naiad.wire.grpc import CompressedMessage, GrpcError, GrpcStatus, MessageAssembler
from naiad.wire.http1 import HttpError

SMALL_MESSAGE_BYTES = 64 * 1024
"""Messages up to this size are delivered at once if they arrive in one piece."""

_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns
_CHUNK_BYTES = 64 * 1024


class PausedBody:
    """Complete messages first, then the bytes after them. Bounded by the flow-control window of the stream."""

    __slots__ = ("_chunks", "has_end", "messages", "unread_bytes")

    def __init__(self) -> None:
        self.messages: deque[Buffer | CompressedMessage] = deque()
        """Messages from the piece of the body during which the call was paused."""
        self._chunks: deque[bytearray] = deque()
        self.unread_bytes = 0
        """Bytes that are not cut into messages yet."""
        self.has_end = False
        """The peer has ended its side."""

    def append(self, data: memoryview) -> None:
        """Append a copy of received bytes."""
        # Small pieces share a chunk: a peer may send its window byte by byte.
        if self._chunks and len(self._chunks[-1]) < _CHUNK_BYTES:
            self._chunks[-1].extend(data)
        else:
            self._chunks.append(bytearray(data))
        self.unread_bytes += len(data)

    def take_chunk(self) -> memoryview:
        """Return the oldest bytes; only valid if `unread_bytes` is positive."""
        chunk = self._chunks.popleft()
        self.unread_bytes -= len(chunk)
        return memoryview(chunk)


class GrpcRequest:
    """The messages of one call; implements `frontend.http2.call.RequestSide`.

    It refers to no call, so that a call and its request are no reference cycle.
    """

    __slots__ = (
        "_assembler",
        "_is_decompressing",
        "_message",
        "_paused",
        "_run_in_thread",
        "_service",
        "received_bytes",
    )

    def __init__(self, endpoint: Http2Endpoint[Any], encoding: bytes | None) -> None:
        limits = endpoint.limits
        self._service = endpoint.service
        self._run_in_thread = endpoint.run_in_thread
        self._assembler = MessageAssembler(
            limits.message_bytes,
            encoding,
            max_decompressed_bytes=limits.decompressed_bytes,
            max_ratio=limits.decompression_ratio,
        )
        self._message: Buffer | CompressedMessage | None = None
        """The message of a unary call, until it is delivered."""
        self._is_decompressing = False
        self._paused: PausedBody | None = None
        """What waits while the call is paused; kept for the next pause."""
        self.received_bytes = 0

    # --- messages -----------------------------------------------------------------------------------------------

    def receive(self, call: Http2Call, data: memoryview) -> None:
        """Collect messages; a streaming call gets each as it completes. Raises GrpcError."""
        self.received_bytes += len(data)
        if call.is_held:
            paused = self._paused_body()
            paused.append(data)
            call.collect(self._assembler.pending_bytes + paused.unread_bytes)
        else:
            self._feed(call, data)

    def _feed(self, call: Http2Call, data: memoryview) -> None:
        """Cut messages from the data and deliver them. Raises GrpcError."""
        for message in self._assembler.feed(data):
            self._take_message(call, message)
        if call.is_local_closed:
            return
        complete_bytes = 0 if self._message is None else len(self._message)
        unread_bytes = 0 if self._paused is None else self._paused.unread_bytes
        call.collect(self._assembler.pending_bytes + complete_bytes + unread_bytes)
        if not call.is_streaming and self.received_bytes - len(data) <= EARLY_REJECTION_BYTES < self.received_bytes:
            self._service.message_began(call, self._assembler.beginning())

    def _take_message(self, call: Http2Call, message: Buffer | CompressedMessage) -> None:
        if call.is_local_closed:
            return
        if not call.is_streaming:
            if self._message is not None:
                raise GrpcError(GrpcStatus.UNIMPLEMENTED, "a unary call takes one request message, got more")
            self._message = message
            return
        call.flow.connection.message_count += 1
        if call.is_held:
            self._paused_body().messages.append(message)
        elif isinstance(message, CompressedMessage):
            self._decompress(call, message)
        else:
            call.arrival_ns = call.flow.arrival_ns
            try:
                self._service.stream_message(call, message)
            except Exception:
                call.fail()

    def complete(self, call: Http2Call) -> None:
        """Deliver the rest: the message of a unary call, the half-close of a streaming one. Raises GrpcError."""
        if call.is_held:
            self._paused_body().has_end = True
            return
        self._assembler.finish()
        if not call.is_streaming and self._message is None:
            raise GrpcError(GrpcStatus.UNIMPLEMENTED, "a unary call needs one request message, got none")
        call.arrival_ns = call.flow.arrival_ns
        call.collect(0)
        message, self._message = self._message, None
        if isinstance(message, CompressedMessage):
            call.count(len(message))
            self._decompress(call, message)
        elif message is not None:
            self._deliver_soon(call, message)
        else:
            try:
                self._service.stream_half_closed(call)
            except Exception:
                call.fail()

    def _deliver_soon(self, call: Http2Call, message: Buffer) -> None:
        """Deliver the message of a unary call, now or when the peer reads responses. Raises GrpcError."""
        call.release()  # of its compressed form
        call.count(len(message))
        if call.flow.is_full and len(message) <= SMALL_MESSAGE_BYTES:
            message = bytes(message)  # A small message is a view of everything that was received with it.
        self._message = message
        call.flow.serve(call)

    def deliver(self, call: Http2Call) -> None:
        """Pass the message of a unary call to the service."""
        message, self._message = self._message, None
        if message is None or isinstance(message, CompressedMessage):
            return
        try:
            self._service.unary(call, message)
        except Exception:
            call.fail()

    def is_amid_message(self, call: Http2Call) -> bool:
        """Return whether the peer owes the rest of a message."""
        return not call.is_streaming or self._assembler.pending_bytes > 0

    # --- compressed messages ----------------------------------------------------------------------------------------

    def _decompress(self, call: Http2Call, message: CompressedMessage) -> None:
        """Deliver a message once it is decompressed, one at a time; a streaming call is paused meanwhile.

        Raises GrpcError if the server has no room for it.
        """
        reserved_bytes = message.most_plain_bytes
        if not call.reserve_bytes(reserved_bytes):
            raise BudgetExceededError
        self._is_decompressing = True
        if call.is_streaming:
            call.hold()
        self._run_in_thread(
            partial(_plain_form, call, message),
            partial(self._decompressed, call, reserved_bytes),
            partial(self._decompression_failed, call),
        )

    def _decompressed(self, call: Http2Call, reserved_bytes: int, plain: Buffer) -> None:
        self._is_decompressing = False
        if call.is_local_closed:
            return  # cancelled, or past its deadline
        # The service counts the messages of a stream itself, while their requests are open.
        call.release_bytes(reserved_bytes if call.is_streaming else reserved_bytes - len(plain))
        if call.is_streaming:
            self._paused_body().messages.appendleft(plain)
            if not call.is_paused_by_service:
                self.resume(call)
            return
        try:
            self._deliver_soon(call, plain)
        except GrpcError as error:
            call.reject_request(error)

    def _decompression_failed(self, call: Http2Call, error: Exception) -> None:
        self._is_decompressing = False
        if not isinstance(error, GrpcError):
            _log.error("decompressing a message of gRPC call %s failed", excerpt(call.path), exc_info=error)
            error = GrpcError(GrpcStatus.INTERNAL, "internal error; see the server log")
        if not call.is_local_closed:
            call.reject_request(error)

    # --- pauses -----------------------------------------------------------------------------------------------------

    def _paused_body(self) -> PausedBody:
        if self._paused is None:
            self._paused = PausedBody()
        return self._paused

    def resume(self, call: Http2Call) -> None:
        """Deliver the waiting messages until the call is paused again, or its waiting message is decompressed."""
        if self._is_decompressing or not call.is_held:
            return
        flow, paused = call.flow, self._paused_body()
        call.is_held = False
        flow.unwatch(call)
        flow.arrival_ns = _now_ns()
        try:
            while paused.messages and not call.is_held and not call.is_local_closed:
                self._take_message(call, paused.messages.popleft())
            while paused.unread_bytes and not call.is_held and not call.is_local_closed:
                self._feed(call, paused.take_chunk())
            if call.is_held or call.is_local_closed:
                return
            flow.connection.release(call)
            if not flow.is_dirty:
                flow.mark_dirty()
            if paused.has_end:
                paused.has_end = False
                self.complete(call)
        except GrpcError as error:
            call.reject_request(error)

    def writable(self, call: Http2Call) -> None:
        """Notify the service of a paused call that bytes were sent."""
        try:
            self._service.stream_writable(call)
        except Exception:
            call.fail()

    # --- rejection --------------------------------------------------------------------------------------------------

    def refuse(self, call: Http2Call, error: GrpcError | HttpError) -> None:
        """End the call with the error; a full server refuses calls without a line for each."""
        if not isinstance(error, BudgetExceededError):
            path = call.path.partition("?")[0]
            note_refused_call(path, GrpcStatus(error.status).name, error.message, call.client)
        call.finish(error.status, error.message)


def _plain_form(call: Http2Call, message: CompressedMessage) -> Buffer:
    # The loop sets this flag when the call ends, which stops the work.
    return b"" if call.is_local_closed else message.decompress()
