"""A call on a stream of an HTTP/2 connection: the object that the service or the route responds to.

A call refers to the flow of its connection, into which it writes, and to its request side, which collects what
arrives in several pieces: `grpc_request` for messages of gRPC, `rest_context` for REST. A small unary request that
arrives in one piece has no request side.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

from naiad.core.errors import Rejection, excerpt
from naiad.core.limits.request_limits import UNCOUNTED_BYTES
from naiad.core.tensor import Buffer
from naiad.frontend.access.refusal import note_invalid, note_refused_call
from naiad.frontend.connections.body_reservation import BudgetExceededError
from naiad.frontend.context import CancelReason, OnCancel
from naiad.frontend.http2.flow import Http2Flow
from naiad.frontend.http2.plan import CallPlan
from naiad.telemetry.logs.access_log import AccessEntry
from naiad.telemetry.metrics.response_metrics import grpc_responses, rejection_of_status, rejections
from naiad.telemetry.server_timing import RequestTiming
from naiad.wire.grpc import (
    COMPRESSED_HEADER_BLOCKS,
    HEADER_BLOCK,
    OK_TRAILER_BLOCK,
    PREFIX,
    PREFIX_BYTES,
    GrpcError,
    GrpcStatus,
    encode_trailers,
)
from naiad.wire.header_fields import Headers
from naiad.wire.http1 import HttpError
from naiad.wire.http2.connection_limits import INT32_MAX
from naiad.wire.http2.frames import Http2Code
from naiad.wire.http2.headers import RequestHead, is_grpc_content_type
from naiad.wire.http2.stream_state import Stream

_log = logging.getLogger(__name__)
_pack_prefix = PREFIX.pack
_TIMING_TRAILER = b"server-timing"


class RequestSide(Protocol):
    """The request of a call that arrives piece by piece; each method takes its call."""

    @property
    def received_bytes(self) -> int:
        """Number of received bytes of the body."""

    def receive(self, call: "Http2Call", data: memoryview) -> None:
        """Receive a piece of the body. Raises GrpcError or HttpError for one that must be rejected."""

    def complete(self, call: "Http2Call") -> None:
        """Handle the end of the body. Raises GrpcError or HttpError."""

    def is_amid_message(self, call: "Http2Call") -> bool:
        """Return whether the peer owes more bytes."""

    def deliver(self, call: "Http2Call") -> None:
        """Pass the complete request to the service or the route."""

    def resume(self, call: "Http2Call") -> None:
        """Deliver what has arrived while the call was paused."""

    def writable(self, call: "Http2Call") -> None:
        """Handle progress towards the peer."""

    def refuse(self, call: "Http2Call", error: GrpcError | HttpError) -> None:
        """Respond with an error of the transport, and log it."""


class Http2Call(Stream):
    """One call; implements `frontend.context.GrpcCall`."""

    __slots__ = (
        "arrival_ns",
        "collected_bytes",
        "context",
        "deadline_ns",
        "flow",
        "has_sent_headers",
        "is_paused_by_service",
        "is_streaming",
        "metadata",
        "on_cancel",
        "path",
        "request",
        "reserved_bytes",
        "timing",
    )

    head: RequestHead

    def __init__(self, flow: Http2Flow, stream_id: int, head: RequestHead, receive_window: int) -> None:
        Stream.__init__(self, stream_id, head, receive_window)
        self.flow = flow
        self.path = head.path
        self.metadata: Headers = head.fields
        self.arrival_ns = flow.arrival_ns
        self.deadline_ns = 0
        self.timing: RequestTiming | None = None
        self.on_cancel: OnCancel | None = None
        self.has_sent_headers = False
        self.request: RequestSide | None = None
        """What has arrived of the request; None for one that came in one piece, and for an ended call."""
        self.reserved_bytes = 0
        """Reserved bytes of its messages until its response; 0 for tiny messages."""
        self.collected_bytes = 0
        """Counted bytes of its incomplete request."""
        self.is_streaming = False
        self.is_paused_by_service = False
        self.context: object | None = None

    @property
    def client(self) -> object:
        """The connection of the call."""
        return self.flow

    # --- responses of the service -----------------------------------------------------------------------------------

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
        flow = self.flow
        flow.output.send_answer(
            self,
            HEADER_BLOCK,
            (_pack_prefix(0, size), *parts),
            size + PREFIX_BYTES,
            OK_TRAILER_BLOCK if self.timing is None else _timed_trailers(self.timing),
        )
        if self.reserved_bytes:
            self.release()
        if not flow.is_dirty:
            flow.mark_dirty()

    def respond_compressed(self, message: bytes, encoding: bytes) -> None:
        """Respond to a unary call with a compressed message; `encoding` is one of `wire.grpc.ENCODINGS`."""
        if self.is_local_closed:
            return
        grpc_responses[0] += 1
        block = COMPRESSED_HEADER_BLOCKS[encoding]
        prefix = _pack_prefix(1, len(message))
        trailers = OK_TRAILER_BLOCK if self.timing is None else _timed_trailers(self.timing)
        self.flow.output.send_answer(self, block, (prefix, message), len(message) + PREFIX_BYTES, trailers)
        if self.reserved_bytes:
            self.release()
        if not self.flow.is_dirty:
            self.flow.mark_dirty()

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
        if self.queued_bytes > self.flow.max_queued_bytes:
            self.abort()
            return
        size = 0
        for part in parts:
            size += len(part)
        if size > INT32_MAX:
            self.finish(GrpcStatus.INVALID_ARGUMENT, _too_large(size))
            return
        output = self.flow.output
        if not self.has_sent_headers:
            self.has_sent_headers = True
            output.send_headers(self, header_block)
        output.send_data(self, (_pack_prefix(flag, size), *parts))
        if not self.flow.is_dirty:
            self.flow.mark_dirty()

    def finish(self, status: int, message: str = "", trailers: Headers = ()) -> None:
        """End the call with a gRPC status; without an earlier `send` the response is trailers-only."""
        if self.is_local_closed:
            return
        grpc_responses[status] += 1
        if self.timing is not None:
            trailers = (*trailers, (_TIMING_TRAILER, self.timing.value()))
        flow = self.flow
        if self.has_sent_headers:
            flow.output.send_end(self, encode_trailers(status, message, trailers))
        else:
            block = encode_trailers(status, message, trailers, is_only=True)
            flow.output.send_headers(self, block, ends_stream=True)
        if self.reserved_bytes or self.collected_bytes:
            self.release()
        if not flow.is_dirty:
            flow.mark_dirty()

    # --- the request ------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pause a streaming call, so that flow control stops its peer."""
        if not self.is_local_closed:
            self.is_paused_by_service = True
            self.hold()

    def resume(self) -> None:
        """Resume a streaming call and deliver its waiting messages."""
        self.is_paused_by_service = False
        if self.request is not None:
            self.request.resume(self)

    def hold(self) -> None:
        """Give the peer no more window for this call, and look at it whenever bytes were sent."""
        self.flow.connection.hold(self)
        self.flow.watch(self)

    def deliver(self) -> None:
        """Pass the complete request to the service or the route."""
        if self.request is not None:
            self.request.deliver(self)

    def writable(self) -> None:
        """Bytes were sent."""
        if self.request is not None:
            self.request.writable(self)

    def collect(self, size: int) -> None:
        """Count `size` bytes of the incomplete request. Raises GrpcError if there is no room for them."""
        self.flow.collect(size - self.collected_bytes)
        self.collected_bytes = size

    def count(self, size: int) -> None:
        """Count a complete message that is not tiny until the response. Raises GrpcError if there is no room."""
        if size > UNCOUNTED_BYTES and not self.reserve_bytes(size):
            raise BudgetExceededError

    def reserve_bytes(self, size: int) -> bool:
        """Reserve more bytes for the call until it ends; return False if the server has no room for them."""
        if self.is_local_closed:
            return True  # The bytes of an ended call would never be released, and its result has no receiver.
        if not self.flow.reserve(size):
            return False
        self.reserved_bytes += size
        return True

    def release_bytes(self, size: int) -> None:
        """Release bytes of the call; the rest is released when it ends."""
        size = min(size, self.reserved_bytes)
        self.reserved_bytes -= size
        self.flow.release(size)

    def release(self) -> None:
        """Release all bytes of the call."""
        if self.collected_bytes:
            self.collect(0)
        self.release_bytes(self.reserved_bytes)

    # --- the end without a response of the service ------------------------------------------------------------------

    def reject(self, plan: CallPlan) -> None:
        """Respond with the plan's rejection."""
        plan.count_rejection()
        self.note_rejection(plan)
        output = self.flow.output
        if not (self.is_remote_closed or is_grpc_content_type(self.head.field(b"content-type"))):
            output.drop_body(self)
        if plan.rejection_block is not None:
            output.send_headers(self, plan.rejection_block, ends_stream=not plan.rejection_text)
        if plan.rejection_text:
            output.send_data(self, (plan.rejection_text,))
            output.send_end(self)
        if not self.flow.is_dirty:
            self.flow.mark_dirty()

    def note_rejection(self, plan: CallPlan) -> AccessEntry:
        """Log that the call is refused by its header fields; return the entry."""
        status, message, key = plan.rejected_by
        path = self.path.partition("?")[0]
        if isinstance(status, GrpcStatus):
            return note_refused_call(path, status.name, message, self.flow, key)
        return note_invalid(self.head.method, path, status, message, self.flow)

    def fail(self) -> None:
        """End the call after an exception: a defect of the service fails one call, not the connection."""
        _log.exception("gRPC call %s failed", self.path)
        self.finish(GrpcStatus.INTERNAL, f"internal error in {excerpt(self.path)}; see the server log")

    def reject_request(self, error: GrpcError | HttpError) -> None:
        """Reject a request that is not valid, too large or too slow."""
        rejections.count(_rejection_of(error))
        if self.request is not None:
            self.request.refuse(self, error)
        self.drop(CancelReason.REJECTED)

    def expire(self) -> None:
        """End the call because its deadline has passed."""
        # The service first: it knows the request's id, which belongs in the trailers.
        self.drop(CancelReason.DEADLINE)
        self.finish(GrpcStatus.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def abort(self) -> None:
        """End the call because its peer does not read its responses."""
        # gRPC clients report this code as RESOURCE_EXHAUSTED.
        self.flow.output.reset(self, Http2Code.ENHANCE_YOUR_CALM)
        self.abandon(CancelReason.DROPPED)
        if not self.flow.is_dirty:
            self.flow.mark_dirty()

    def abandon(self, why: CancelReason) -> None:
        """Discard the state of the call, which has no peer any more, and notify the service."""
        self.drop(why)
        self.release()

    def drop(self, why: CancelReason) -> None:
        """Discard the request of a call that is finished here, and notify the service."""
        self.flow.waiting.pop(self, None)
        self.collect(0)
        self.cancel(why)
        # The call may be in a reference cycle, collected much later.
        self.request = None

    def cancel(self, why: CancelReason) -> None:
        """Notify the service, once, that the call needs no response."""
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is None:
            return
        try:
            on_cancel(why)
        except Exception:
            _log.exception("cancelling gRPC call %s failed", self.path)


def _rejection_of(error: GrpcError | HttpError) -> Rejection:
    if isinstance(error, BudgetExceededError):
        return Rejection.MEMORY
    if isinstance(error, HttpError):
        return rejection_of_status(error.status)
    return Rejection.TIMEOUT if error.status == GrpcStatus.DEADLINE_EXCEEDED else Rejection.INVALID


def _timed_trailers(timing: RequestTiming) -> bytes:
    return encode_trailers(GrpcStatus.OK, fields=((_TIMING_TRAILER, timing.value()),))


def _too_large(size: int) -> str:
    return f"response of {size} bytes exceeds the gRPC byte size limit of {INT32_MAX}"
