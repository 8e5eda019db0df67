"""The requests of one HTTP/2 connection: frames become calls, DATA becomes messages for the service.

While too many request bytes wait for responses, the peer gets no flow-control window for more bodies. While too many
response bytes wait for the peer's windows, its complete requests wait. Reading continues in both cases, because the
frames that end the wait (WINDOW_UPDATE, RST_STREAM) arrive on the same connection.

Compressed messages that take long are decompressed on another thread; the messages of a call stay in order.
"""

import functools
import logging
import time
from collections.abc import Callable
from typing import Any

from naiad.core.errors import excerpt
from naiad.core.request_limits import UNCOUNTED_BYTES
from naiad.core.tensor import Buffer
from naiad.frontend.connections.body_reservation import BudgetExceededError
from naiad.frontend.context import EARLY_REJECTION_BYTES, CancelReason
from naiad.frontend.http2.call import CallPlan, Http2Call, PausedBody, RestContext, make_plan
from naiad.frontend.http2.endpoint import Http2Endpoint, RestHeaders
from naiad.frontend.http2.responses import SMALL_MESSAGE_BYTES, Http2Responses
from naiad.frontend.http2.rest_context import Http2Context
from naiad.frontend.http2.time_limits import DeadlineTimer
from naiad.telemetry.server_timing import RequestTiming
from naiad.wire.grpc import PREFIX, PREFIX_BYTES, CompressedMessage, GrpcError, GrpcStatus, MessageAssembler
from naiad.wire.http1 import HttpError
from naiad.wire.http2.frames import Http2Code
from naiad.wire.http2.headers import Fields, RequestHead
from naiad.wire.http2.server import ServerConnection

_log = logging.getLogger(__name__)


def _decompress(call: Http2Call, message: CompressedMessage) -> Buffer:
    # The loop sets this flag when the call ends, which stops the work.
    return b"" if call.is_local_closed else message.decompress()


_now_ns = time.monotonic_ns
_unpack_prefix = PREFIX.unpack_from

_ORDINARY_RESETS = frozenset((Http2Code.NO_ERROR, Http2Code.CANCEL))
"""Error codes with which a peer says that it does not need the response."""
_CODES = frozenset(Http2Code)


class Http2Receiving:
    """The sink of a `ServerConnection`, which it creates, together with the response side."""

    def __init__(self, server: Http2Endpoint[Any], flush: Callable[[], object]) -> None:
        """`flush` writes the output of the connection."""
        self._server = server
        self._service = server.service
        self._rest = server.rest
        self._limits = server.limits
        self._max_message_bytes = server.limits.message_bytes
        self._max_queued_bytes = server.limits.queued_bytes
        self.connection: ServerConnection[Http2Call] = ServerConnection(self, server.limits)
        self.responses = Http2Responses(
            server.service,
            server.limits,
            self.connection,
            self.pause_messages,
            self.resume_messages,
            flush,
            functools.partial(server.flush_soon, flush),
            server.budget,
        )
        self.new_stream = functools.partial(server.call_type or Http2Call, self.responses)
        """Creates the call of a new stream from its id, its head and its receive window."""
        self._output = self.connection.output
        self.arrival_ns = 0
        """Arrival time of the bytes being processed; set by the owner before it passes them to the connection."""
        self._has_found_fault = False
        self._deadlines = DeadlineTimer(server.loop, self.open_calls, self.responses.expire, _now_ns)

    def open_calls(self) -> list[Http2Call]:
        """Return the calls that have not ended."""
        return list(self.connection.streams.values())

    def close(self) -> None:
        """Cancel all calls of a lost connection.

        The parts of a connection refer to each other. These references are cleared, so that a connection and its
        undelivered responses are freed at once instead of with the next full collection.
        """
        self._deadlines.close()
        self.responses.cancel_all(self.open_calls())
        self.connection.lose()

    # --- the sink of the connection -----------------------------------------------------------------------------

    def request_received(self, call: Http2Call, body: memoryview) -> None:
        """Deliver a request that arrived in one piece; all but plain unary requests take the slow path."""
        # hot: bench/micro_http2.py
        call.arrival_ns = self.arrival_ns
        plan: CallPlan = call.head.memo or self._make_plan(call.head)
        size = len(body) - PREFIX_BYTES
        if plan.is_unary and 0 <= size <= SMALL_MESSAGE_BYTES and self._output.queued_bytes <= self._max_queued_bytes:
            flag, length = _unpack_prefix(body)
            if (
                flag == 0
                and length == size
                and size <= self._max_message_bytes
                and (size <= UNCOUNTED_BYTES or self.responses.reserve_bytes(call, size))
            ):
                if plan.has_settings:
                    self._apply(plan, call)
                try:
                    self._service.unary(call, body[PREFIX_BYTES:])
                except Exception:
                    call.fail()
                return
        self.headers_received(call)
        if body:
            self.body_received(call, body)
        if not call.is_local_closed:
            self.end_received(call, ())

    def headers_received(self, call: Http2Call) -> None:
        """Start a call whose messages arrive piece by piece."""
        call.arrival_ns = self.arrival_ns
        plan: CallPlan = call.head.memo or self._make_plan(call.head)
        if plan.rejection_block is not None:
            call.reject(plan)
            return
        if plan.rest is not None:
            self._start_rest(call, plan.rest)
            return
        call.is_streaming = plan.is_streaming
        call.assembler = MessageAssembler(
            self._max_message_bytes,
            plan.encoding,
            max_decompressed_bytes=self._limits.decompressed_bytes,
            max_ratio=self._limits.decompression_ratio,
        )
        if plan.has_settings:
            self._apply(plan, call)

    def body_received(self, call: Http2Call, data: memoryview) -> None:
        """Collect messages; a streaming call gets each as it completes."""
        if call.rest_context is not None:
            self._receive_rest(call, call.rest_context, data)
            return
        if call.assembler is None or call.is_local_closed:
            return
        call.body_bytes += len(data)
        try:
            if call.is_held and call.paused_body is not None:
                call.paused_body.append(data)
                self.responses.collect(call, call.assembler.pending_bytes + call.paused_body.unread_bytes)
                return
            self._feed(call, call.assembler, data)
        except GrpcError as error:
            self.responses.reject(call, error)

    def end_received(self, call: Http2Call, trailers: Fields) -> None:
        """Deliver the rest: the message of a unary call, the half-close of a streaming one."""
        if call.rest_context is not None:
            self._end_rest(call, call.rest_context)
            return
        if call.assembler is None or call.is_local_closed:
            return
        if call.is_held and call.paused_body is not None:
            call.paused_body.end_trailers = trailers
            return
        try:
            call.assembler.finish()
            if not call.is_streaming and call.message is None:
                raise GrpcError(GrpcStatus.UNIMPLEMENTED, "a unary call needs one request message, got none")
        except GrpcError as error:
            self.responses.reject(call, error)
            return
        call.arrival_ns = self.arrival_ns
        self.responses.collect(call, 0)
        message, call.message = call.message, None
        if isinstance(message, CompressedMessage):
            if self._has_room_for(call, len(message)):
                self._start_decompressing(call, message)
        elif message is not None:
            self._unary_message(call, message)
        else:
            try:
                self._service.stream_half_closed(call)
            except Exception:
                call.fail()

    def _has_room_for(self, call: Http2Call, size: int) -> bool:
        """Reserve a complete message; return False if there is no room, and reject the call."""
        try:
            self.responses.count(call, size)
        except GrpcError as error:
            self.responses.reject(call, error)
            return False
        return True

    def stream_reset(self, call: Http2Call, code: int) -> None:
        """Notify the service that the client needs no response."""
        if code not in _ORDINARY_RESETS and not self._has_found_fault:
            # The peer rejects the response, and its application may never see the reason. Log it once per connection,
            # to bound the log.
            self._has_found_fault = True
            name = Http2Code(code).name if code in _CODES else f"error code {code}"
            _log.warning("the client reset its call of %s with %s", excerpt(call.path), name)
        self.responses.cancel_call(call, CancelReason.CANCELLED)

    def stream_broken(self, call: Http2Call, code: int) -> None:
        """Notify the service that the response cannot be delivered."""
        self.responses.cancel_call(call, CancelReason.REJECTED)

    def goaway_received(self, code: int) -> None:
        """Close after the responses to open calls."""
        self.connection.finish_drain()

    # --- messages -----------------------------------------------------------------------------------------------

    def _make_plan(self, head: RequestHead) -> CallPlan:
        server = self._server
        plan = make_plan(head, self._service, server.rule, server.pages, serves_rest=server.rest is not None)
        head.memo = plan
        return plan

    def _apply(self, plan: CallPlan, call: Http2Call) -> None:
        if plan.is_timed:
            call.timing = RequestTiming(call.arrival_ns)
        if plan.timeout_ns:
            call.deadline_ns = self.arrival_ns + plan.timeout_ns
            self._deadlines.watch(call.deadline_ns, self.arrival_ns)

    def _feed(self, call: Http2Call, assembler: MessageAssembler, data: memoryview) -> None:
        """Cut messages from the data and deliver them. Raises GrpcError."""
        for message in assembler.feed(data):
            self._take_message(call, message)
        if call.assembler is not None and not call.is_local_closed:
            complete_bytes = 0 if call.message is None else len(call.message)
            unread_bytes = 0 if call.paused_body is None else call.paused_body.unread_bytes
            self.responses.collect(call, assembler.pending_bytes + complete_bytes + unread_bytes)
            if not call.is_streaming and call.body_bytes - len(data) <= EARLY_REJECTION_BYTES < call.body_bytes:
                self._service.message_began(call, assembler.beginning())

    def _take_message(self, call: Http2Call, message: Buffer | CompressedMessage) -> None:
        if call.is_local_closed:
            return
        if not call.is_streaming:
            if call.message is not None:
                raise GrpcError(GrpcStatus.UNIMPLEMENTED, "a unary call takes one request message, got more")
            call.message = message
            return
        self.connection.message_count += 1
        if call.is_held and call.paused_body is not None:
            call.paused_body.messages.append(message)
        elif isinstance(message, CompressedMessage):
            self._start_decompressing(call, message)
        else:
            call.arrival_ns = self.arrival_ns
            try:
                self._service.stream_message(call, message)
            except Exception:
                call.fail()

    def _unary_message(self, call: Http2Call, message: Buffer) -> None:
        """Deliver the message of a unary call."""
        self.responses.release(call)  # of its compressed form
        if self._has_room_for(call, len(message)):
            self.responses.serve(call, message)

    def _start_decompressing(self, call: Http2Call, message: CompressedMessage) -> None:
        """Deliver a message once it is decompressed, one at a time; a streaming call is paused meanwhile.

        The call is rejected if the server has no room for it.
        """
        reserved_bytes = message.most_plain_bytes
        if not call.reserve_bytes(reserved_bytes):
            self.responses.reject(call, BudgetExceededError())
            return
        call.is_decompressing = True
        if call.is_streaming:
            self.pause_messages(call)
        self._server.run_in_thread(
            functools.partial(_decompress, call, message),
            functools.partial(self._decompressed, call, reserved_bytes),
            functools.partial(self._decompression_failed, call),
        )

    def _decompressed(self, call: Http2Call, reserved_bytes: int, plain: Buffer) -> None:
        call.is_decompressing = False
        if call.is_local_closed:
            return  # cancelled, or past its deadline
        # The service counts the messages of a stream itself, while their requests are open.
        call.release_bytes(reserved_bytes if call.is_streaming else reserved_bytes - len(plain))
        if not call.is_streaming:
            self._unary_message(call, plain)
        elif call.paused_body is not None:
            call.paused_body.messages.appendleft(plain)
            if not call.is_paused_by_service:
                self.resume_messages(call)

    def _decompression_failed(self, call: Http2Call, error: Exception) -> None:
        call.is_decompressing = False
        if not isinstance(error, GrpcError):
            _log.error("decompressing a message of gRPC call %s failed", excerpt(call.path), exc_info=error)
            error = GrpcError(GrpcStatus.INTERNAL, "internal error; see the server log")
        self.responses.reject(call, error)

    # --- paused streaming calls -------------------------------------------------------------------------------------

    def pause_messages(self, call: Http2Call) -> None:
        """Pause the messages of a call, and give its peer no more window."""
        if call.paused_body is None:
            call.paused_body = PausedBody()
        self.responses.watch_writable(call)
        self.connection.hold(call)

    def resume_messages(self, call: Http2Call) -> None:
        """Resume a call: deliver its waiting messages until it is paused again."""
        paused, assembler = call.paused_body, call.assembler
        if paused is None or assembler is None or not call.is_held:
            return
        call.is_held = False
        self.responses.unwatch_writable(call)
        self.arrival_ns = _now_ns()
        try:
            while paused.messages and not call.is_held and not call.is_local_closed:
                self._take_message(call, paused.messages.popleft())
            while paused.unread_bytes and not call.is_held and not call.is_local_closed:
                self._feed(call, assembler, paused.take_chunk())
        except GrpcError as error:
            self.responses.reject(call, error)
        if call.is_held or call.is_local_closed:
            return
        self.connection.release(call)
        if not self.responses.is_dirty:
            self.responses.mark_dirty()
        trailers, paused.end_trailers = paused.end_trailers, None
        if trailers is not None:
            self.end_received(call, trailers)

    # --- REST ---------------------------------------------------------------------------------------------------

    def _start_rest(self, call: Http2Call, head: RestHeaders) -> None:
        assert self._rest is not None  # or the plan would have rejected it
        call.rest_context = context = Http2Context(call, head, self._rest)
        try:
            context.begin(self._server.budget)
        except HttpError as error:
            self.responses.reject(call, error)

    def _receive_rest(self, call: Http2Call, context: RestContext, data: memoryview) -> None:
        call.body_bytes += len(data)
        try:
            context.receive(data)
            # Beginning with the answer, which may come amid the body, nothing of it is kept.
            self.responses.collect(call, 0 if call.rest_context is None else context.received_bytes)
        except (HttpError, GrpcError) as error:
            self.responses.reject(call, error)

    def _end_rest(self, call: Http2Call, context: RestContext) -> None:
        self.responses.collect(call, 0)
        if self._has_room_for(call, context.received_bytes):
            call.arrival_ns = self.arrival_ns
            self.responses.serve_rest(call)
