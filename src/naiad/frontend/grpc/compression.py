"""Compressed responses of gRPC inference (--grpc-infer-response-compression-level)."""

import functools
import logging
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from naiad.core.errors import InferError, excerpt, internal
from naiad.core.tensor import Buffer
from naiad.frontend import failed_requests
from naiad.frontend.context import CancelReason, GrpcCall
from naiad.frontend.long_work.thread_pool import RunInThread
from naiad.protocol.status_table import status_of
from naiad.wire.compression import MAX_INLINE_BYTES, WINDOW_BITS, compress
from naiad.wire.grpc import ENCODINGS, GrpcStatus
from naiad.wire.header_fields import Headers

_log = logging.getLogger(__name__)

LEVELS = {"low": 1, "medium": 6, "high": 9}
"""Name of the flag to zlib's level."""
_ACCEPTS = b"grpc-accept-encoding"
_MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Limit of the messages of one stream that wait for compression."""
_MIN_RESPONSE_BYTES = 256
"""Smaller messages are sent uncompressed: compression would take longer and save no packets."""


class Sender(Protocol):
    """Destination of the messages of a streaming response: a call, or a layer in front of it."""

    @property
    def queued_bytes(self) -> int:
        """Bytes of the response that the peer has not read yet."""

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send one message."""

    def finish(self, status: int, message: str = "", trailers: Headers = ()) -> None:
        """End the call with a gRPC status."""


class GrpcCompression:
    """Sends compressed responses to clients that accept them."""

    def __init__(self, level: int, run_in_thread: RunInThread) -> None:
        self._level = level
        self._run_in_thread = run_in_thread

    def respond(self, call: GrpcCall, parts: Sequence[Buffer]) -> None:
        """Respond to a call; a large message is compressed on another thread."""
        size = sum(map(len, parts))
        encoding = accepted_encoding(call) if size >= _MIN_RESPONSE_BYTES else None
        if encoding is None:
            call.respond(parts)
            return
        work = functools.partial(compress, parts, WINDOW_BITS[encoding], self._level)
        if size <= MAX_INLINE_BYTES:
            call.respond_compressed(work(), encoding)
        else:
            self._run_in_thread(work, functools.partial(_respond, call, encoding), functools.partial(_failed, call))

    def sender(self, call: GrpcCall) -> Sender:
        """Return the destination of streamed response messages: a compression layer, or the call itself."""
        encoding = accepted_encoding(call)
        return call if encoding is None else StreamCompression(call, encoding, self._level, self._run_in_thread)


class StreamCompression:
    """Compresses the messages of one streaming response in order. Implements `Sender`.

    Small messages are compressed at once. Large ones are compressed on another thread, one at a time; the messages
    and the final status behind them wait.
    """

    __slots__ = ("_call", "_encoding", "_end", "_is_busy", "_level", "_run_in_thread", "_waiting", "_waiting_bytes")

    def __init__(self, call: GrpcCall, encoding: bytes, level: int, run_in_thread: RunInThread) -> None:
        self._call = call
        self._encoding = encoding
        self._level = level
        self._run_in_thread = run_in_thread
        self._waiting: deque[Sequence[Buffer]] = deque()
        self._waiting_bytes = 0
        self._is_busy = False
        """Whether another thread is compressing a message."""
        self._end: tuple[int, str, Headers] | None = None

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for compression or for the peer."""
        return self._waiting_bytes + self._call.queued_bytes

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send one message. The call ends with an error if messages arrive much faster than compression."""
        if self._end is not None:
            return
        if self._waiting_bytes > _MAX_WAITING_BYTES:
            text = "responses arrive faster than they can be compressed"
            self._abort(GrpcStatus.RESOURCE_EXHAUSTED, text, CancelReason.DROPPED)
            return
        if self._is_busy:
            self._waiting.append(parts)
            self._waiting_bytes += sum(map(len, parts))
        else:
            self._begin(parts)

    def finish(self, status: int, message: str = "", trailers: Headers = ()) -> None:
        """End the call once everything is sent."""
        if self._is_busy:
            self._end = self._end or (status, message, trailers)
        else:
            self._call.finish(status, message, trailers)

    def _begin(self, parts: Sequence[Buffer]) -> None:
        size = sum(map(len, parts))
        if size < _MIN_RESPONSE_BYTES:
            self._call.send_encoded(parts, self._encoding, is_compressed=False)
            return
        work = functools.partial(compress, parts, WINDOW_BITS[self._encoding], self._level)
        if size <= MAX_INLINE_BYTES:
            self._call.send_encoded((work(),), self._encoding, is_compressed=True)
            return
        self._is_busy = True
        self._waiting_bytes += size
        self._run_in_thread(work, functools.partial(self._go_on, size), self._failed)

    def _go_on(self, size: int, message: bytes) -> None:
        self._is_busy = False
        self._waiting_bytes -= size
        self._call.send_encoded((message,), self._encoding, is_compressed=True)
        while self._waiting and not self._is_busy:
            parts = self._waiting.popleft()
            self._waiting_bytes -= sum(map(len, parts))
            self._begin(parts)
        if self._end is not None and not self._is_busy:
            self._call.finish(*self._end)

    def _failed(self, error: Exception) -> None:
        reason = _log_failure(self._call, error)
        self._abort(status_of(reason).grpc, reason.message, CancelReason.FAILED)

    def _abort(self, status: int, message: str, why: CancelReason) -> None:
        """End the call now, and cancel its open requests."""
        call = self._call
        self._end = (status, message, ())
        self._waiting.clear()
        call.finish(*self._end)
        if call.on_cancel is not None:
            call.on_cancel(why)


def _respond(call: GrpcCall, encoding: bytes, message: bytes) -> None:
    call.respond_compressed(message, encoding)


def _failed(call: GrpcCall, error: Exception) -> None:
    failed_requests.finish(call, _log_failure(call, error))


def _log_failure(call: GrpcCall, error: Exception) -> InferError:
    """Log a failed compression, and return the error for the client."""
    _log.error("compressing a response of %s failed", excerpt(call.path), exc_info=error)
    return internal(f"internal error in {excerpt(call.path)}; see the server log")


def accepted_encoding(call: GrpcCall) -> bytes | None:
    """Return the encoding for the response messages of a call, None for none."""
    for name, value in call.metadata:
        if name == _ACCEPTS:
            accepted = [entry.strip() for entry in value.split(b",")]
            return next((encoding for encoding in ENCODINGS if encoding in accepted), None)
    return None
