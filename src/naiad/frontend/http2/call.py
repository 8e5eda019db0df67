"""A gRPC call over HTTP/2: the object of its stream, which the service responds to.

`CallPlan` holds the decisions made from request headers: REST or gRPC, rejected or not, unary or streaming, timeout,
compression. `PausedBody` holds what a paused call has received until the service accepts messages again.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from naiad.core.errors import Rejection, excerpt
from naiad.core.tensor import Buffer
from naiad.frontend.access import AccessRule, category_of_call
from naiad.frontend.context import CancelReason, GrpcService
from naiad.frontend.http2.endpoint import RestHeaders
from naiad.frontend.refusal import note_invalid, note_refused_call
from naiad.frontend.web_pages import WebPageRule
from naiad.protocol.status import status_of
from naiad.telemetry.logs.access import AccessEntry
from naiad.telemetry.metrics.responses import grpc_responses, http_responses, rejections
from naiad.telemetry.server_timing import TIMING_FIELD, TIMING_VALUE, RequestTiming
from naiad.wire.grpc import (
    COMPRESSED_HEADER_BLOCKS,
    HEADER_BLOCK,
    OK_TRAILER_BLOCK,
    PREFIX,
    PREFIX_BYTES,
    CompressedMessage,
    GrpcError,
    GrpcStatus,
    MessageAssembler,
    encode_trailers,
    parse_timeout_ns,
    window_bits,
)
from naiad.wire.header_fields import Headers
from naiad.wire.http1 import HttpError
from naiad.wire.http2.headers import RequestHead, encode_fields, is_grpc_content_type
from naiad.wire.http2.limits import INT32_MAX
from naiad.wire.http2.output import Http2Output
from naiad.wire.http2.stream import Stream

if TYPE_CHECKING:
    from naiad.frontend.context import OnCancel
    from naiad.wire.grpc import CompressedMessage
    from naiad.wire.http2.headers import Fields

_CHUNK_BYTES = 64 * 1024
_TIMING_TRAILER = b"server-timing"


class PausedBody:
    """Complete messages first, then the bytes after them. Bounded by the flow-control window of the stream."""

    __slots__ = ("_chunks", "end_trailers", "messages", "unread_bytes")

    def __init__(self) -> None:
        self.messages: deque[Buffer | CompressedMessage] = deque()
        """Messages from the piece of the body during which the call was paused."""
        self._chunks: deque[bytearray] = deque()
        self.unread_bytes = 0
        """Bytes that are not cut into messages yet."""
        self.end_trailers: Fields | None = None
        """Set when the peer has ended its side."""

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


_NOT_GRPC_TEXT = b"gRPC calls have the content-type application/grpc. REST is served on the HTTP port.\n"
_NOT_GRPC_BLOCK = encode_fields(
    (
        (b":status", b"415"),
        (b"content-type", b"text/plain"),
        (b"content-length", str(len(_NOT_GRPC_TEXT)).encode()),
    )
)
_CALL_PATHS = ("/inference.", "/grpc.")
"""Paths with these prefixes are gRPC."""
_NOT_POST_BLOCK = encode_fields(((b":status", b"405"), (b"allow", b"POST")))


class RejectedBy(NamedTuple):
    """Why requests are rejected by their header fields."""

    status: GrpcStatus | int
    """A gRPC status, or the status of HTTP."""
    message: str
    key: str = ""
    """The name of the client's API key."""


_NO_REJECTION = RejectedBy(GrpcStatus.OK, "")


class CallPlan:
    """What the request headers determine about a call; computed once per header block, because blocks repeat."""

    __slots__ = (
        "count_rejection",
        "encoding",
        "has_settings",
        "is_streaming",
        "is_timed",
        "is_unary",
        "rejected_by",
        "rejection_block",
        "rejection_text",
        "rest",
        "timeout_ns",
    )

    def __init__(
        self,
        *,
        is_streaming: bool = False,
        timeout_ns: int = 0,
        encoding: bytes | None = None,
        is_timed: bool = False,
    ) -> None:
        self.is_timed = is_timed
        self.has_settings = bool(timeout_ns) or is_timed
        """Each call has a deadline, or gets its timing."""
        self.is_streaming = is_streaming
        self.is_unary = not is_streaming
        """One message is expected, and the headers are valid."""
        self.timeout_ns = timeout_ns
        """0 for none."""
        self.encoding = encoding
        self.rejection_block: bytes | None = None
        """The header block of every response to these request headers."""
        self.rejection_text = b""
        self.count_rejection: Callable[[], None] = _count_nothing
        """Counts one of these responses."""
        self.rejected_by = _NO_REJECTION
        """Status, message and key's name, for the log."""
        self.rest: RestHeaders | None = None
        """Set if the requests are not gRPC."""

    @classmethod
    def rejection(cls, block: bytes, text: bytes = b"", *, count: Callable[[], None], by: "RejectedBy") -> "CallPlan":
        """Return the plan for requests that are rejected without their body."""
        plan = cls()
        plan.rejected_by = by
        plan.count_rejection = count
        plan.is_unary = False
        plan.rejection_block = block
        plan.rejection_text = text
        return plan


def _count_nothing() -> None:
    """Replaces the count of a plan that rejects nothing."""


def _count_http(status: int) -> None:
    http_responses[status] += 1


def _count_grpc(status: int) -> None:
    grpc_responses[status] += 1


def _count_unauthorized(status: int) -> None:
    _count_grpc(status)
    rejections.count(Rejection.UNAUTHORIZED)


def _grpc_rejection(status: int, message: str, count: Callable[[int], None] = _count_grpc, key: str = "") -> CallPlan:
    block = encode_trailers(status, message, is_only=True)
    by = RejectedBy(GrpcStatus(status), message, key)
    return CallPlan.rejection(block, count=partial(count, status), by=by)


def make_plan(
    head: RequestHead,
    service: GrpcService,
    rule: AccessRule | None = None,
    pages: WebPageRule | None = None,
    *,
    serves_rest: bool = False,
) -> CallPlan:
    """Return the plan for all requests with the headers `head`.

    `rule` decides which gRPC calls are served, `pages` which requests of web pages are.
    """
    if not is_grpc_content_type(head.field(b"content-type")):
        if serves_rest and not head.path.startswith(_CALL_PATHS):
            return _rest_plan(head, pages)
        text = b"" if head.method == "HEAD" else _NOT_GRPC_TEXT
        by = RejectedBy(415, "not gRPC, and REST is served on another port")
        return CallPlan.rejection(_NOT_GRPC_BLOCK, text, count=partial(_count_http, 415), by=by)
    if head.method != "POST":
        by = RejectedBy(405, "gRPC takes POST")
        return CallPlan.rejection(_NOT_POST_BLOCK, count=partial(_count_http, 405), by=by)
    rejected = _call_of_page(head, pages) or _rejected_call(head, service, rule)
    if rejected is not None:
        return rejected
    timeout = head.field(b"grpc-timeout")
    encoding = head.field(b"grpc-encoding")
    try:
        window_bits(encoding)
        timeout_ns = 0 if timeout is None else parse_timeout_ns(timeout)
    except GrpcError as error:
        return _grpc_rejection(error.status, error.message)
    is_streaming = service.is_streaming(head.path)
    return CallPlan(
        is_streaming=is_streaming,
        timeout_ns=timeout_ns,
        encoding=encoding,
        is_timed=not is_streaming and head.field(TIMING_FIELD) == TIMING_VALUE,
    )


def _call_of_page(head: RequestHead, pages: WebPageRule | None) -> CallPlan | None:
    """Return the plan of calls that a foreign web page seems to make, otherwise None."""
    try:
        if pages is not None:
            pages.check_call(head.path, head.authority, head.field)
    except HttpError as error:
        return _grpc_rejection(GrpcStatus.PERMISSION_DENIED, error.message, _count_unauthorized)
    return None


def _rejected_call(head: RequestHead, service: GrpcService, rule: AccessRule | None) -> CallPlan | None:
    """Return the plan of calls that are rejected without looking at their messages, otherwise None."""
    rejection = None if rule is None else rule.rejection(category_of_call(head.path), head.field)
    if rejection is not None:
        return _grpc_rejection(rejection.grpc_status, rejection.message, _count_unauthorized, rejection.key)
    unknown = service.rejection(head.path)
    return None if unknown is None else _grpc_rejection(status_of(unknown).grpc, unknown.message)


def _rest_plan(head: RequestHead, pages: WebPageRule | None) -> CallPlan:
    plan = CallPlan()
    plan.is_unary = False
    plan.rest = RestHeaders(head, pages)
    return plan


_log = logging.getLogger(__name__)
_pack_prefix = PREFIX.pack


class RestContext(Protocol):
    """A REST request on a stream, as the transport uses it."""

    @property
    def received_bytes(self) -> int:
        """Number of received bytes of the body."""

    def receive(self, data: memoryview) -> None:
        """Receive a piece of the body. Raises HttpError."""

    def dispatch(self, arrival_ns: int) -> None:
        """Pass the complete request to its route."""

    def reject(self, status: int, message: str, headers: Headers = ()) -> None:
        """Respond with an error of the transport; `headers` are additional fields."""

    def writable(self) -> None:
        """Handle progress towards the peer, after `watch_writable`."""


class CallOwner(Protocol):
    """The response side of the connection of a call."""

    output: Http2Output
    is_dirty: bool
    max_queued_bytes: int
    pause_messages: "Callable[[Http2Call], object]"
    resume_messages: "Callable[[Http2Call], object]"

    def mark_dirty(self) -> None:
        """Schedule a write of `output`."""

    def release(self, call: "Http2Call") -> None:
        """Release the bytes of the message of a call."""

    def reserve_bytes(self, call: "Http2Call", size: int) -> bool:
        """Reserve more bytes for a call; return False if the server has no room for them."""

    def release_bytes(self, call: "Http2Call", size: int) -> None:
        """Release bytes of a call."""

    def abort(self, call: "Http2Call") -> None:
        """End a call whose peer does not read its responses."""

    def watch_writable(self, call: "Http2Call") -> None:
        """Call `writable` of the call's REST context, or the service, whenever bytes were sent."""

    def unwatch_writable(self, call: "Http2Call") -> None:
        """Stop calling `writable`."""


class Http2Call(Stream):
    """One call; implements `frontend.context.GrpcCall`."""

    __slots__ = (
        "arrival_ns",
        "assembler",
        "body_bytes",
        "collected_bytes",
        "context",
        "deadline_ns",
        "has_sent_headers",
        "is_decompressing",
        "is_paused_by_service",
        "is_streaming",
        "message",
        "metadata",
        "on_cancel",
        "owner",
        "path",
        "paused_body",
        "reserved_bytes",
        "rest_context",
        "timing",
    )

    head: RequestHead

    def __init__(
        self,
        owner: CallOwner,
        stream_id: int,
        head: RequestHead,
        receive_window: int,
    ) -> None:
        Stream.__init__(self, stream_id, head, receive_window)
        self.owner = owner
        self.path = head.path
        self.metadata: Headers = head.fields
        self.arrival_ns = 0
        self.deadline_ns = 0
        self.timing: RequestTiming | None = None
        self.on_cancel: OnCancel | None = None
        self.has_sent_headers = False
        self.reserved_bytes = 0
        """Reserved bytes of its messages until its response; 0 for tiny messages."""
        # The rest is used only by requests that arrive in several pieces.
        self.rest_context: RestContext | None = None
        """The request as REST routes see it; None for a gRPC call."""
        self.assembler: MessageAssembler | None = None
        self.message: Buffer | CompressedMessage | None = None
        self.is_streaming = False
        self.is_decompressing = False
        self.is_paused_by_service = False
        self.context: object | None = None
        self.paused_body: PausedBody | None = None
        """What waits while the call is paused; kept for the next pause."""
        self.collected_bytes = 0
        self.body_bytes = 0
        """Number of received bytes of the body."""

    @property
    def client(self) -> object:
        """The connection of the call."""
        return self.owner

    def respond(self, parts: Sequence[Buffer]) -> None:
        """Respond to a unary call: headers, one message, status OK."""
        # hot: bench/micro_http2.py
        if self.is_local_closed:
            return
        size = 0
        for part in parts:
            size += len(part)
        if size > INT32_MAX:
            self.finish(GrpcStatus.INVALID_ARGUMENT, _too_large(size))
            return
        grpc_responses[0] += 1
        owner = self.owner
        owner.output.send_answer(
            self,
            HEADER_BLOCK,
            (_pack_prefix(0, size), *parts),
            size + PREFIX_BYTES,
            OK_TRAILER_BLOCK if self.timing is None else _timed_trailers(self.timing),
        )
        if self.reserved_bytes:
            owner.release(self)
        if not owner.is_dirty:
            owner.mark_dirty()

    def respond_compressed(self, message: bytes, encoding: bytes) -> None:
        """Respond to a unary call with a compressed message; `encoding` is one of `wire.grpc.ENCODINGS`."""
        if self.is_local_closed:
            return
        grpc_responses[0] += 1
        block = COMPRESSED_HEADER_BLOCKS[encoding]
        prefix = _pack_prefix(1, len(message))
        trailers = OK_TRAILER_BLOCK if self.timing is None else _timed_trailers(self.timing)
        self.owner.output.send_answer(self, block, (prefix, message), len(message) + PREFIX_BYTES, trailers)
        if self.reserved_bytes:
            self.owner.release(self)
        if not self.owner.is_dirty:
            self.owner.mark_dirty()

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send one message of a streaming response.

        `queued_bytes` is the number of bytes that wait for the peer. Above the limit of the connection the call is
        reset, which its client sees as RESOURCE_EXHAUSTED, and `on_cancel` is called.
        """
        self._send(parts, HEADER_BLOCK, 0)

    def send_encoded(self, parts: Sequence[Buffer], encoding: bytes, *, is_compressed: bool) -> None:
        """Send one message of a streaming response whose messages may be compressed with `encoding`."""
        self._send(parts, COMPRESSED_HEADER_BLOCKS[encoding], 1 if is_compressed else 0)

    def _send(self, parts: Sequence[Buffer], header_block: bytes, flag: int) -> None:
        if self.is_local_closed:
            return
        if self.queued_bytes > self.owner.max_queued_bytes:
            self.owner.abort(self)
            return
        size = 0
        for part in parts:
            size += len(part)
        if size > INT32_MAX:
            self.finish(GrpcStatus.INVALID_ARGUMENT, _too_large(size))
            return
        output = self.owner.output
        if not self.has_sent_headers:
            self.has_sent_headers = True
            output.send_headers(self, header_block)
        output.send_data(self, (_pack_prefix(flag, size), *parts))
        if not self.owner.is_dirty:
            self.owner.mark_dirty()

    def finish(self, status: int, message: str = "", trailers: Headers = ()) -> None:
        """End the call with a gRPC status; without an earlier `send` the response is trailers-only."""
        if self.is_local_closed:
            return
        grpc_responses[status] += 1
        if self.timing is not None:
            trailers = (*trailers, (_TIMING_TRAILER, self.timing.value()))
        owner = self.owner
        if self.has_sent_headers:
            owner.output.send_end(self, encode_trailers(status, message, trailers))
        else:
            block = encode_trailers(status, message, trailers, is_only=True)
            owner.output.send_headers(self, block, ends_stream=True)
        if self.reserved_bytes or self.collected_bytes:
            owner.release(self)
        if not owner.is_dirty:
            owner.mark_dirty()

    def reserve_bytes(self, size: int) -> bool:
        """Reserve more bytes for the call until it ends; return False if the server has no room for them."""
        # The bytes of an ended call would never be released, and its result has no receiver.
        return self.is_local_closed or self.owner.reserve_bytes(self, size)

    def release_bytes(self, size: int) -> None:
        """Release bytes of the call; the rest is released when it ends."""
        self.owner.release_bytes(self, size)

    def pause(self) -> None:
        """Pause a streaming call, so that flow control stops its peer."""
        if not self.is_local_closed:
            self.is_paused_by_service = True
            self.owner.pause_messages(self)

    def resume(self) -> None:
        """Resume a streaming call and deliver its waiting messages."""
        self.is_paused_by_service = False
        if not self.is_decompressing:
            self.owner.resume_messages(self)

    def reject(self, plan: CallPlan) -> None:
        """Respond with the plan's rejection."""
        plan.count_rejection()
        self.note_rejection(plan)
        output = self.owner.output
        if not (self.is_remote_closed or is_grpc_content_type(self.head.field(b"content-type"))):
            output.drop_body(self)
        if plan.rejection_block is not None:
            output.send_headers(self, plan.rejection_block, ends_stream=not plan.rejection_text)
        if plan.rejection_text:
            output.send_data(self, (plan.rejection_text,))
            output.send_end(self)
        if not self.owner.is_dirty:
            self.owner.mark_dirty()

    def note_rejection(self, plan: CallPlan) -> AccessEntry:
        """Log that the call is refused by its header fields; return the entry."""
        status, message, key = plan.rejected_by
        path = self.path.partition("?")[0]
        if isinstance(status, GrpcStatus):
            return note_refused_call(path, status.name, message, self.owner, key)
        return note_invalid(self.head.method, path, status, message, self.owner)

    def fail(self) -> None:
        """End the call after an exception: a defect of the service fails one call, not the connection."""
        _log.exception("gRPC call %s failed", self.path)
        self.finish(GrpcStatus.INTERNAL, f"internal error in {excerpt(self.path)}; see the server log")

    def forget_request(self) -> None:
        """Free the received part of the request: the call may be in a reference cycle, collected much later."""
        self.assembler = self.message = self.paused_body = self.rest_context = None

    def cancel(self, why: CancelReason) -> None:
        """Notify the service, once, that the call needs no response."""
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is None:
            return
        try:
            on_cancel(why)
        except Exception:
            _log.exception("cancelling gRPC call %s failed", self.path)


def _timed_trailers(timing: RequestTiming) -> bytes:
    return encode_trailers(GrpcStatus.OK, fields=((_TIMING_TRAILER, timing.value()),))


def _too_large(size: int) -> str:
    return f"response of {size} bytes exceeds the gRPC byte size limit of {INT32_MAX}"
