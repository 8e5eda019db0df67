"""A gRPC call over HTTP/2: the stream's object, which the service answers.

What a held call has received and not handed over: it waits until the service takes messages again.

What the head of a request decides: REST or gRPC, refused or not, unary or streaming, timeout, compression.
"""

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from naiad.core.errors import excerpt
from naiad.core.tensor import Buffer
from naiad.frontend.access import AccessRule, category_of_call
from naiad.frontend.exchange import CancelReason, GrpcService
from naiad.frontend.http2.rest_head import RestHead
from naiad.protocol.status import status_of
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
    from naiad.frontend.exchange import OnCancel
    from naiad.wire.grpc import CompressedMessage
    from naiad.wire.http2.headers import Fields

_CHUNK_BYTES = 64 * 1024


class PausedBody:
    """Complete messages first, then the bytes that came after them. Bounded by the stream's window."""

    __slots__ = ("_chunks", "end_trailers", "messages", "unread_bytes")

    def __init__(self) -> None:
        self.messages: deque[Buffer | CompressedMessage] = deque()
        """Cut out of the piece of the body during which the call was held."""
        self._chunks: deque[bytearray] = deque()
        self.unread_bytes = 0
        """Bytes that are not cut into messages yet."""
        self.end_trailers: Fields | None = None
        """Set when the peer has ended its side."""

    def append(self, data: memoryview) -> None:
        """Keep a copy of received bytes."""
        # Small pieces share a chunk: a peer may send its window byte by byte.
        if self._chunks and len(self._chunks[-1]) < _CHUNK_BYTES:
            self._chunks[-1].extend(data)
        else:
            self._chunks.append(bytearray(data))
        self.unread_bytes += len(data)

    def take_chunk(self) -> memoryview:
        """Return the oldest bytes; there are some when `unread_bytes` says so."""
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
"""Whoever asks for these means gRPC."""
_NOT_POST_BLOCK = encode_fields(((b":status", b"405"), (b"allow", b"POST")))


class CallPlan:
    """What a request's head says about its calls; derived once per head, since heads repeat."""

    __slots__ = ("encoding", "is_streaming", "is_unary", "refusal_block", "refusal_text", "rest", "timeout_ns")

    def __init__(self, *, is_streaming: bool = False, timeout_ns: int = 0, encoding: bytes | None = None) -> None:
        self.is_streaming = is_streaming
        self.is_unary = not is_streaming
        """One message is expected, and nothing is wrong with the head."""
        self.timeout_ns = timeout_ns
        """0 for none."""
        self.encoding = encoding
        self.refusal_block: bytes | None = None
        """The header block that answers every request with this head."""
        self.refusal_text = b""
        self.rest: RestHead | None = None
        """Set when the requests are not gRPC."""

    @classmethod
    def refusal(cls, block: bytes, text: bytes = b"") -> "CallPlan":
        """Return the plan of a head that is answered without its body."""
        plan = cls()
        plan.is_unary = False
        plan.refusal_block = block
        plan.refusal_text = text
        return plan


def make_plan(
    head: RequestHead, service: GrpcService, rule: AccessRule | None = None, *, serves_rest: bool = False
) -> CallPlan:
    """Return the plan of all requests with `head`; `rule` decides which gRPC calls are answered."""
    if not is_grpc_content_type(head.field(b"content-type")):
        if serves_rest and not head.path.startswith(_CALL_PATHS):
            return _rest_plan(head)
        return CallPlan.refusal(_NOT_GRPC_BLOCK, b"" if head.method == "HEAD" else _NOT_GRPC_TEXT)
    if head.method != "POST":
        return CallPlan.refusal(_NOT_POST_BLOCK)
    refused = _refused_call(head, service, rule)
    if refused is not None:
        return CallPlan.refusal(encode_trailers(*refused, is_only=True))
    timeout = head.field(b"grpc-timeout")
    encoding = head.field(b"grpc-encoding")
    try:
        window_bits(encoding)
        timeout_ns = 0 if timeout is None else parse_timeout_ns(timeout)
    except GrpcError as error:
        return CallPlan.refusal(encode_trailers(error.status, error.message, is_only=True))
    return CallPlan(is_streaming=service.is_streaming(head.path), timeout_ns=timeout_ns, encoding=encoding)


def _refused_call(head: RequestHead, service: GrpcService, rule: AccessRule | None) -> tuple[int, str] | None:
    """Return status and message for calls that are refused whatever their messages say."""
    refusal = None if rule is None else rule.refusal(category_of_call(head.path), head.field)
    if refusal is not None:
        return refusal.grpc_status, refusal.message
    unknown = service.refusal(head.path)
    return None if unknown is None else (status_of(unknown.code).grpc, unknown.message)


def _rest_plan(head: RequestHead) -> CallPlan:
    plan = CallPlan()
    plan.is_unary = False
    try:
        plan.rest = RestHead(head)
    except HttpError as error:
        text = b"" if head.method == "HEAD" else error.message.encode() + b"\n"
        fields = ((b":status", b"%d" % error.status), (b"content-type", b"text/plain"))
        return CallPlan.refusal(encode_fields(fields), text)
    return plan


_log = logging.getLogger(__name__)
_pack_prefix = PREFIX.pack


class RestContext(Protocol):
    """What the transport does with a call that is no gRPC call but a request to REST."""

    @property
    def received_bytes(self) -> int:
        """How much of the body has arrived."""

    def receive(self, data: memoryview) -> None:
        """Take a piece of the body. Raises HttpError."""

    def dispatch(self, arrival_ns: int) -> None:
        """Hand the complete request over."""

    def refuse(self, status: int, message: str, headers: Headers = ()) -> None:
        """Answer with an error of the transport's own; `headers` are fields beside those of every refusal."""

    def writable(self) -> None:
        """Bytes have left; `watch_writable` asked to be told."""


class CallOwner(Protocol):
    """The answering side of a call's connection."""

    output: Http2Output
    is_dirty: bool
    max_queued_bytes: int

    def mark_dirty(self) -> None:
        """See that `output` is written soon."""

    def release(self, call: "Http2Call") -> None:
        """The call no longer holds its message."""

    def reserve_bytes(self, call: "Http2Call", size: int) -> bool:
        """Count more bytes for a call; False when the server has no room for them."""

    def release_bytes(self, call: "Http2Call", size: int) -> None:
        """Count fewer bytes for a call."""

    def abort(self, call: "Http2Call") -> None:
        """End a call whose peer does not take its answers."""

    def hold_messages(self, call: "Http2Call") -> None:
        """Hand over no more messages of a call."""

    def release_messages(self, call: "Http2Call") -> None:
        """Hand over the messages of a call that wait."""

    def watch_writable(self, call: "Http2Call") -> None:
        """Tell a call's `exchange` whenever bytes have left."""

    def unwatch_writable(self, call: "Http2Call") -> None:
        """No longer."""


class Http2Call(Stream):
    """One call; implements `frontend.exchange.GrpcCall`."""

    __slots__ = (
        "arrival_ns",
        "assembler",
        "body_bytes",
        "collected_bytes",
        "context",
        "deadline_ns",
        "exchange",
        "has_sent_headers",
        "held_body",
        "held_bytes",
        "is_decompressing",
        "is_held_by_service",
        "is_streaming",
        "message",
        "metadata",
        "on_cancel",
        "owner",
        "path",
    )

    head: RequestHead

    def __init__(
        self,
        owner: CallOwner,
        stream_id: int,
        head: RequestHead,
        receive_window: int,
        arrival_ns: int,
    ) -> None:
        Stream.__init__(self, stream_id, head, receive_window)
        self.owner = owner
        self.path = head.path
        self.metadata: Headers = head.fields
        self.arrival_ns = arrival_ns
        self.deadline_ns = 0
        self.on_cancel: OnCancel | None = None
        self.has_sent_headers = False
        self.held_bytes = 0
        """Bytes of its messages that are reserved until it is answered; 0 for tiny ones."""
        # The rest is used only by requests that did not come in one piece.
        self.exchange: RestContext | None = None
        """The request as REST routes see it; None for a gRPC call."""
        self.assembler: MessageAssembler | None = None
        self.message: Buffer | CompressedMessage | None = None
        self.is_streaming = False
        self.is_decompressing = False
        self.is_held_by_service = False
        self.context: object | None = None
        self.held_body: PausedBody | None = None
        """What waits while the call is held; kept for the next time."""
        self.collected_bytes = 0
        self.body_bytes = 0
        """How much of the body has come."""

    @property
    def client(self) -> object:
        """The connection that it came on."""
        return self.owner

    def respond(self, parts: Sequence[Buffer]) -> None:
        """Answer a unary call: headers, one message, status OK."""
        # hot: bench/micro_http2.py
        if self.is_local_closed:
            return
        size = 0
        for part in parts:
            size += len(part)
        if size > INT32_MAX:
            self.finish(GrpcStatus.INVALID_ARGUMENT, _too_large(size))
            return
        owner = self.owner
        owner.output.send_answer(
            self, HEADER_BLOCK, (_pack_prefix(0, size), *parts), size + PREFIX_BYTES, OK_TRAILER_BLOCK
        )
        if self.held_bytes:
            owner.release(self)
        if not owner.is_dirty:
            owner.mark_dirty()

    def respond_compressed(self, message: bytes, encoding: bytes) -> None:
        """Answer a unary call with a message that was compressed; `encoding` is one of `wire.grpc.ENCODINGS`."""
        if self.is_local_closed:
            return
        block = COMPRESSED_HEADER_BLOCKS[encoding]
        prefix = _pack_prefix(1, len(message))
        self.owner.output.send_answer(self, block, (prefix, message), len(message) + PREFIX_BYTES, OK_TRAILER_BLOCK)
        if self.held_bytes:
            self.owner.release(self)
        if not self.owner.is_dirty:
            self.owner.mark_dirty()

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send one message of a streaming answer.

        `queued_bytes` tells how much of earlier messages waits for the peer. A call whose peer lets more than the
        connection's limit wait is reset, which its client sees as RESOURCE_EXHAUSTED, and `on_cancel` is called.
        """
        self._send(parts, HEADER_BLOCK, 0)

    def send_encoded(self, parts: Sequence[Buffer], encoding: bytes, *, is_compressed: bool) -> None:
        """Send one message of a streaming answer whose messages may be compressed with `encoding`."""
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
        """End the call with a gRPC status; without an earlier `send` it is a trailers-only answer."""
        if self.is_local_closed:
            return
        owner = self.owner
        if self.has_sent_headers:
            owner.output.send_end(self, encode_trailers(status, message, trailers))
        else:
            block = encode_trailers(status, message, trailers, is_only=True)
            owner.output.send_headers(self, block, ends_stream=True)
        if self.held_bytes or self.collected_bytes:
            owner.release(self)
        if not owner.is_dirty:
            owner.mark_dirty()

    def reserve_bytes(self, size: int) -> bool:
        """Count more bytes for the call until it ends; False when the server has no room for them."""
        # Nothing would release the bytes of a call that has ended, and its outcome goes nowhere.
        return self.is_local_closed or self.owner.reserve_bytes(self, size)

    def release_bytes(self, size: int) -> None:
        """Count fewer bytes for the call; what is left is released when it ends."""
        self.owner.release_bytes(self, size)

    def hold(self) -> None:
        """Hand over no more messages of a streaming call, and let flow control stop its peer."""
        if not self.is_local_closed:
            self.is_held_by_service = True
            self.owner.hold_messages(self)

    def release(self) -> None:
        """Go on handing over messages, at once those that wait."""
        self.is_held_by_service = False
        if not self.is_decompressing:
            self.owner.release_messages(self)

    def refuse(self, plan: CallPlan) -> None:
        """Answer with the plan's refusal."""
        output = self.owner.output
        if plan.refusal_block is not None:
            output.send_headers(self, plan.refusal_block, ends_stream=not plan.refusal_text)
        if plan.refusal_text:
            output.send_data(self, (plan.refusal_text,))
            output.send_end(self)
        if not self.owner.is_dirty:
            self.owner.mark_dirty()

    def fail(self) -> None:
        """End the call after an exception: a defect of the service costs its peer one call, not the connection."""
        _log.exception("gRPC call %s failed", self.path)
        self.finish(GrpcStatus.INTERNAL, f"internal error of the server in {excerpt(self.path)}; its log says more")

    def forget_request(self) -> None:
        """Free what has come of the request: the call may be in a reference cycle, which is collected much later."""
        self.assembler = self.message = self.held_body = self.exchange = None

    def cancel(self, why: CancelReason) -> None:
        """Tell the service, once, that nobody waits for its answer."""
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is None:
            return
        try:
            on_cancel(why)
        except Exception:
            _log.exception("cancelling gRPC call %s failed", self.path)


def _too_large(size: int) -> str:
    return f"response of {size} bytes exceeds the gRPC byte size limit of {INT32_MAX}"
