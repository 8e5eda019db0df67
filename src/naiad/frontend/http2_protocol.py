"""One HTTP/2 connection on an event loop, gRPC and REST: the asyncio protocol around `wire.http2`.

What is answered during one callback of the loop leaves with one write. Reading pauses while the peer's socket does
not take our answers. While too many bytes of requests wait for theirs the peer gets no window for more bodies; while
too many bytes of answers wait for the peer's windows its requests wait. In both cases reading goes on: what ends the
wait, windows and resets, comes the same way.
"""

import asyncio
import logging
import random
import socket
import time
from typing import Protocol, cast

from naiad.core.ports import Loop
from naiad.core.tensor import Buffer
from naiad.frontend.access import AccessRule
from naiad.frontend.departure import Departure
from naiad.frontend.exchange import GrpcService
from naiad.frontend.http1_head import HttpError
from naiad.frontend.http2_call import Http2Call, RestExchange
from naiad.frontend.http2_clock import Http2Clock
from naiad.frontend.http2_deadline import DeadlineTimer
from naiad.frontend.http2_decompression import Decompression
from naiad.frontend.http2_exchange import Http2Exchange
from naiad.frontend.http2_hold import HeldBody
from naiad.frontend.http2_plan import CallPlan, make_plan
from naiad.frontend.http2_rest import RestHead, RestSide
from naiad.frontend.side_threads import RunAside
from naiad.wire.grpc import PREFIX, PREFIX_BYTES, CompressedMessage, GrpcError, GrpcStatus, MessageAssembler
from naiad.wire.http2 import Http2Connection
from naiad.wire.http2_frames import Http2Code, Http2Error
from naiad.wire.http2_headers import Fields, RequestHead
from naiad.wire.keepalive import Keepalive, KeepaliveStep
from naiad.wire.limits import Http2Limits

_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns
_unpack_prefix = PREFIX.unpack_from

_HTTP_STATUS = {GrpcStatus.DEADLINE_EXCEEDED: 408, GrpcStatus.RESOURCE_EXHAUSTED: 413}
"""Of what the transport itself refuses."""
_HELD_MESSAGE_BYTES = 64 * 1024
"""Smaller messages are not counted while they wait: the number of streams bounds them."""
_ORDINARY_RESETS = frozenset((Http2Code.NO_ERROR, Http2Code.CANCEL))
"""With these a peer tells that it does not want the answer."""
_CODES = frozenset(Http2Code)
_MUCH_BYTES = 64 * 1024
_LONG_NS = 2_000_000
"""A peer that sends more than this at once, and keeps the loop for longer than that, lets others pass."""
_HTTP1_TEXT = b"This port speaks gRPC (HTTP/2). REST is served on the HTTP port (--http-port, 8000 by default).\n"
_HTTP1_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
    % (len(_HTTP1_TEXT), _HTTP1_TEXT)
)


class ConnectionOwner(Protocol):
    """The server of a connection."""

    service: GrpcService
    limits: Http2Limits
    loop: Loop
    is_draining: bool
    rule: AccessRule | None
    run_aside: RunAside
    rest: RestSide | None

    def register(self, connection: "Http2Protocol") -> bool:
        """Add a connection; False when there are too many."""

    def unregister(self, connection: "Http2Protocol") -> None:
        """Remove a connection that was lost."""

    def flush_soon(self, connection: "Http2Protocol") -> None:
        """Call `connection.flush` once the current callback is over."""


class Http2Protocol(asyncio.Protocol):
    """One connection: the sink of an `Http2Connection` and the owner of its calls."""

    def __init__(self, server: ConnectionOwner) -> None:
        self._server = server
        self._service = server.service
        self._rest = server.rest
        self._limits = server.limits
        self._max_message_bytes = server.limits.message_bytes
        self._connection: Http2Connection[Http2Call] = Http2Connection(self, server.limits)
        self.output = self._connection.output
        self.max_queued_bytes = server.limits.queued_bytes
        self.is_dirty = False
        """The output is written at the end of this callback, or soon."""
        self._transport: asyncio.Transport | None = None
        self._arrival_ns = 0
        self._held_bytes = 0
        self._collecting_bytes = 0
        self._is_reading = True
        self._is_ending = False
        self._drain_sweeps = 0
        self._has_found_fault = False
        self._held_calls: dict[Http2Call, None] = {}
        """Calls whose service takes no messages for now."""
        self._waiting: dict[Http2Call, Buffer | None] = {}
        """Complete requests that wait until the peer takes answers; None for one whose exchange has its body."""
        self._deadlines = DeadlineTimer(server.loop, self._calls, self._expire, _now_ns)
        now_ns = _now_ns()
        self._clock = Http2Clock(server.limits, now_ns)
        # gRPC: ages differ by a tenth up or down, so that clients do not come back all at once.
        self._keepalive = Keepalive(server.limits.keepalive, now_ns, random.uniform(0.9, 1.1))
        self._decompression = Decompression(self, server.run_aside)

    # --- callbacks of the transport -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register; too many connections are turned away."""
        # uvloop's transports are no subclass of asyncio's.
        self._transport = transport = cast("asyncio.Transport", transport)
        _keep_alive(transport)
        high_bytes = self._limits.write_buffer_bytes // 2
        transport.set_write_buffer_limits(high=high_bytes, low=high_bytes // 4)
        if not self._server.register(self):
            self._connection.fail(Http2Code.ENHANCE_YOUR_CALM, "too many connections")
            self._end()
            return
        if self._server.is_draining:
            self.drain()
        # Our SETTINGS leave with the answer to the peer's preface: a peer that speaks HTTP/1.1 can then be told so.

    def data_received(self, data: bytes) -> None:
        """Take bytes, hand over the requests they complete, write what was answered meanwhile."""
        self._arrival_ns = now_ns = _now_ns()
        self.is_dirty = True  # so that answers from within wait for the flush below
        try:
            self._connection.receive_data(data, now_ns)
        except Http2Error as error:
            self._fail(error, data)
            return
        self.flush()
        if len(data) > _MUCH_BYTES and _now_ns() - now_ns > _LONG_NS:
            self._give_way()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every call that nobody waits for its answer."""
        self._transport = None
        self.is_dirty = True  # nothing is written any more
        self._server.unregister(self)
        self._deadlines.close()
        self._held_calls.clear()
        self._waiting.clear()
        for call in self._calls():
            self.output.forget(call)
            self._leave(call, Departure.DISCONNECTED)

    def pause_writing(self) -> None:
        """The peer does not take our answers: make no more of them and take no more requests."""
        self.output.is_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        """The peer goes on."""
        self.output.is_paused = False
        self.output.pump()
        self._update_reading()
        if not self.is_dirty:
            self.flush()

    # --- the owner of calls -------------------------------------------------------------------------------------

    def mark_dirty(self) -> None:
        """Have the output written once the current callback is over."""
        self.is_dirty = True
        self._server.flush_soon(self)

    def release(self, call: Http2Call) -> None:
        """The call no longer holds its message, nor what came of others."""
        self._held_bytes -= call.held_bytes
        self._collecting_bytes -= call.collected_bytes
        call.held_bytes = call.collected_bytes = 0
        if self._connection.is_window_held and self._held_bytes <= self._limits.outstanding_bytes:
            self._connection.release_window()
            if not self.is_dirty:
                self.mark_dirty()

    def give_up(self, call: Http2Call) -> None:
        """End a call whose peer does not take its answers."""
        # gRPC clients report this code as RESOURCE_EXHAUSTED.
        self.output.reset(call, Http2Code.ENHANCE_YOUR_CALM)
        self._leave(call, Departure.DROPPED)
        if not self.is_dirty:
            self.mark_dirty()

    # --- the sink of the connection -----------------------------------------------------------------------------

    def new_stream(self, stream_id: int, head: RequestHead, send_window: int, receive_window: int) -> Http2Call:
        """Make the call of a new stream."""
        return Http2Call(self, stream_id, head, send_window, receive_window, self._arrival_ns)

    def request_received(self, call: Http2Call, body: memoryview) -> None:
        """Hand over a request that came in one piece; any but a plain unary one goes the long way."""
        # hot: bench/micro_http2.py
        plan: CallPlan = call.head.memo or self._make_plan(call.head)
        size = len(body) - PREFIX_BYTES
        if plan.is_unary and 0 <= size <= _HELD_MESSAGE_BYTES and self.output.queued_bytes <= self.max_queued_bytes:
            flag, length = _unpack_prefix(body)
            if flag == 0 and length == size and size <= self._max_message_bytes:
                if plan.timeout_ns:
                    self._set_deadline(call, plan.timeout_ns)
                try:
                    self._service.unary(call, body[PREFIX_BYTES:])
                except Exception:
                    self._service_failed(call)
                return
        self.headers_received(call)
        if body:
            self.body_received(call, body)
        if not call.is_local_closed:
            self.end_received(call, ())

    def headers_received(self, call: Http2Call) -> None:
        """Begin a call whose messages come piece by piece."""
        plan: CallPlan = call.head.memo or self._make_plan(call.head)
        if plan.refusal_block is not None:
            call.refuse(plan)
            return
        if plan.rest is not None:
            self._begin_rest(call, plan.rest)
            return
        call.is_streaming = plan.is_streaming
        call.assembler = MessageAssembler(
            self._max_message_bytes, plan.encoding, max_decompressed_bytes=self._limits.decompressed_bytes
        )
        if plan.timeout_ns:
            self._set_deadline(call, plan.timeout_ns)

    def body_received(self, call: Http2Call, data: memoryview) -> None:
        """Collect messages; those of a streaming call are handed over as they complete."""
        if call.exchange is not None:
            self._receive_rest(call, call.exchange, data)
            return
        if call.assembler is None or call.is_local_closed:
            return
        call.progress_ns = self._arrival_ns
        try:
            if call.is_held and call.held_body is not None:
                call.held_body.append(data)
                self._count_collected(call, call.assembler.pending_bytes + call.held_body.unread_bytes)
                return
            self._feed(call, call.assembler, data)
        except GrpcError as error:
            self.refuse(call, error)

    def _feed(self, call: Http2Call, assembler: MessageAssembler, data: memoryview) -> None:
        """Cut messages and hand them over. Raises GrpcError."""
        for message in assembler.feed(data):
            self._take_message(call, message)
        if call.assembler is not None and not call.is_local_closed:
            complete_bytes = 0 if call.message is None else len(call.message)
            unread_bytes = 0 if call.held_body is None else call.held_body.unread_bytes
            self._count_collected(call, assembler.pending_bytes + complete_bytes + unread_bytes)

    def end_received(self, call: Http2Call, trailers: Fields) -> None:
        """Hand over what is left: the message of a unary call, the half close of a streaming one."""
        if call.exchange is not None:
            self._dispatch_rest(call, call.exchange)
            return
        if call.assembler is None or call.is_local_closed:
            return
        if call.is_held and call.held_body is not None:
            call.held_body.end_trailers = trailers
            return
        try:
            call.assembler.finish()
            if not call.is_streaming and call.message is None:
                raise GrpcError(GrpcStatus.UNIMPLEMENTED, "a unary call needs one request message, got none")
        except GrpcError as error:
            self.refuse(call, error)
            return
        call.arrival_ns = self._arrival_ns
        self._count_collected(call, 0)
        message, call.message = call.message, None
        if isinstance(message, CompressedMessage):
            self._hold(call, len(message))
            self._decompression.start(call, message)
        elif message is not None:
            self.unary_message(call, message)
        else:
            try:
                self._service.stream_half_closed(call)
            except Exception:
                self._service_failed(call)

    def unary_message(self, call: Http2Call, message: Buffer) -> None:
        """Hand over the message of a unary call."""
        self.release(call)  # of its compressed form
        self._hold(call, len(message))
        if self.output.queued_bytes > self.max_queued_bytes:
            # A small one is a view on everything that was received with it.
            self._waiting[call] = message if len(message) > _HELD_MESSAGE_BYTES else bytes(message)
        else:
            self._serve(call, message)

    def _serve(self, call: Http2Call, message: Buffer) -> None:
        try:
            self._service.unary(call, message)
        except Exception:
            self._service_failed(call)

    def _serve_waiting(self) -> None:
        """Hand over requests that have waited, as long as the peer takes answers."""
        while self._waiting and self.output.queued_bytes <= self.max_queued_bytes:
            call = next(iter(self._waiting))
            message = self._waiting.pop(call)
            if message is not None:
                self._serve(call, message)
            elif call.exchange is not None:
                call.exchange.dispatch(call.arrival_ns)

    def stream_reset(self, call: Http2Call, code: int) -> None:
        """Tell the service that nobody waits for the call's answer."""
        if code not in _ORDINARY_RESETS and not self._has_found_fault:
            # The peer finds fault with what it was sent, and its application perhaps never hears of it. Once a
            # connection: the log is not to be flooded.
            self._has_found_fault = True
            name = Http2Code(code).name if code in _CODES else f"error code {code}"
            _log.warning("the client reset its call of %s with %s", call.path, name)
        self._leave(call, Departure.CANCELLED)

    def stream_broken(self, call: Http2Call, code: int) -> None:
        """Tell the service that nobody can be given the call's answer."""
        self._leave(call, Departure.REFUSED)

    def goaway_received(self, code: int) -> None:
        """Close once the open calls are answered."""
        self._connection.finish_drain()
        self._is_ending = True

    # --- REST ---------------------------------------------------------------------------------------------------

    def _begin_rest(self, call: Http2Call, head: RestHead) -> None:
        assert self._rest is not None  # or the plan would have refused it
        call.exchange = exchange = Http2Exchange(call, head, self._rest)
        try:
            exchange.begin()
        except HttpError as error:
            self._refuse_rest(call, exchange, error.status, error.message)

    def _receive_rest(self, call: Http2Call, exchange: RestExchange, data: memoryview) -> None:
        call.progress_ns = self._arrival_ns
        try:
            exchange.receive(data)
            self._count_collected(call, exchange.received_bytes)
        except HttpError as error:
            self._refuse_rest(call, exchange, error.status, error.message)
        except GrpcError as error:
            self.refuse(call, error)

    def _dispatch_rest(self, call: Http2Call, exchange: RestExchange) -> None:
        self._count_collected(call, 0)
        self._hold(call, exchange.received_bytes)
        call.arrival_ns = self._arrival_ns
        if self.output.queued_bytes > self.max_queued_bytes:
            self._waiting[call] = None
        else:
            exchange.dispatch(call.arrival_ns)

    def watch_writable(self, call: Http2Call) -> None:
        """Tell the call's exchange whenever bytes have left."""
        self._held_calls[call] = None

    def unwatch_writable(self, call: Http2Call) -> None:
        """No longer."""
        self._held_calls.pop(call, None)

    def _refuse_rest(self, call: Http2Call, exchange: RestExchange, status: int, message: str) -> None:
        exchange.refuse(status, message)
        self._drop(call, Departure.REFUSED)

    # --- calls --------------------------------------------------------------------------------------------------

    def _calls(self) -> list[Http2Call]:
        return list(self._connection.streams.values())

    def _make_plan(self, head: RequestHead) -> CallPlan:
        server = self._server
        plan = make_plan(head, self._service, server.rule, serves_rest=server.rest is not None)
        head.memo = plan
        return plan

    def _take_message(self, call: Http2Call, message: Buffer | CompressedMessage) -> None:
        if call.is_local_closed:
            return
        if not call.is_streaming:
            if call.message is not None:
                raise GrpcError(GrpcStatus.UNIMPLEMENTED, "a unary call takes one request message, got more")
            call.message = message
        elif call.is_held and call.held_body is not None:
            call.held_body.messages.append(message)
        elif isinstance(message, CompressedMessage):
            self._decompression.start(call, message)
        else:
            call.arrival_ns = self._arrival_ns
            try:
                self._service.stream_message(call, message)
            except Exception:
                self._service_failed(call)

    def _count_collected(self, call: Http2Call, pending_bytes: int) -> None:
        """Keep account of incomplete messages. Raises GrpcError when the connection holds too much."""
        self._collecting_bytes += pending_bytes - call.collected_bytes
        call.collected_bytes = pending_bytes
        if pending_bytes and self._collecting_bytes > self._limits.collecting_bytes:
            limit = self._limits.collecting_bytes
            raise GrpcError(
                GrpcStatus.RESOURCE_EXHAUSTED, f"incomplete messages of this connection exceed {limit} bytes"
            )

    def _hold(self, call: Http2Call, size: int) -> None:
        """Count a large message until its call is answered."""
        if size > _HELD_MESSAGE_BYTES:
            call.held_bytes = size
            self._held_bytes += size
            if self._held_bytes > self._limits.outstanding_bytes:
                self._connection.hold_window()

    def refuse(self, call: Http2Call, error: GrpcError) -> None:
        """End a call whose request is wrong."""
        if call.exchange is not None:
            self._refuse_rest(call, call.exchange, _HTTP_STATUS.get(error.status, 500), error.message)
            return
        call.finish(error.status, error.message)
        self._drop(call, Departure.REFUSED)

    def _expire(self, call: Http2Call) -> None:
        # The service first: it knows the request's id, which belongs into the trailers.
        self._drop(call, Departure.DEADLINE)
        call.finish(GrpcStatus.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _drop(self, call: Http2Call, why: Departure) -> None:
        """Forget what is held for a call that is finished here, and tell the service."""
        call.assembler = None
        self._waiting.pop(call, None)
        self._count_collected(call, 0)
        self._cancel(call, why)

    def _leave(self, call: Http2Call, why: Departure) -> None:
        """Forget what is held for a call without a peer, and tell the service."""
        self._waiting.pop(call, None)
        self._count_collected(call, 0)
        self.release(call)
        self._cancel(call, why)

    def _cancel(self, call: Http2Call, why: Departure) -> None:
        on_cancel, call.on_cancel = call.on_cancel, None
        if on_cancel is None:
            return
        try:
            on_cancel(why)
        except Exception:
            _log.exception("cancelling gRPC call %s failed", call.path)

    def _service_failed(self, call: Http2Call) -> None:
        # A defect of the service costs its peer one call, not the connection.
        _log.exception("gRPC call %s failed", call.path)
        call.finish(GrpcStatus.INTERNAL, f"internal error of the server in {call.path}; its log says more")

    def _set_deadline(self, call: Http2Call, timeout_ns: int) -> None:
        call.deadline_ns = self._arrival_ns + timeout_ns
        self._deadlines.watch(call.deadline_ns, self._arrival_ns)

    # --- streaming calls that are held --------------------------------------------------------------------------

    def hold_messages(self, call: Http2Call) -> None:
        """Hand over no more messages of a call, and give its peer no more window."""
        if call.held_body is None:
            call.held_body = HeldBody()
        self._held_calls[call] = None
        self._connection.hold(call)

    def release_messages(self, call: Http2Call) -> None:
        """Hand over the messages of a call that wait, until it is held again."""
        held, assembler = call.held_body, call.assembler
        if held is None or assembler is None or not call.is_held:
            return
        call.is_held = False
        self._held_calls.pop(call, None)
        self._arrival_ns = _now_ns()
        try:
            while held.messages and not call.is_held and not call.is_local_closed:
                self._take_message(call, held.messages.popleft())
            while held.unread_bytes and not call.is_held and not call.is_local_closed:
                self._feed(call, assembler, held.take_chunk())
        except GrpcError as error:
            self.refuse(call, error)
        if call.is_held or call.is_local_closed:
            return
        self._connection.release(call)
        if not self.is_dirty:
            self.mark_dirty()
        trailers, held.end_trailers = held.end_trailers, None
        if trailers is not None:
            self.end_received(call, trailers)

    # --- writing and reading ------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what there is to write."""
        transport = self._transport
        if transport is None:
            return
        self._write(transport)
        while self._held_calls or self._waiting:
            self._tell_held()
            self._serve_waiting()
            if not self.output.has_frames:
                break
            # What leaves now may be what another one waits for: nobody else would tell it.
            self._write(transport)
        self.is_dirty = False
        if self._is_ending and self._connection.is_drained:
            transport.close()

    def _tell_held(self) -> None:
        for call in list(self._held_calls):
            if call.is_local_closed:
                del self._held_calls[call]
                continue
            if call.exchange is not None:
                call.exchange.writable()
                continue
            try:
                self._service.stream_writable(call)
            except Exception:
                self._service_failed(call)

    def _write(self, transport: asyncio.Transport) -> None:
        output = self.output
        while output.has_frames:
            pieces = output.take()
            if len(pieces) == 1:
                transport.write(pieces[0])
            else:
                transport.writelines(pieces)
            output.pump()

    def _give_way(self) -> None:
        """Have others read before more is read from a peer whose bytes take long: libuv would go on 32 times."""
        transport = self._transport
        if self._is_reading and transport is not None and not transport.is_closing():
            self._is_reading = False
            transport.pause_reading()
            self._server.loop.call_soon(self._update_reading)

    def _update_reading(self) -> None:
        transport = self._transport
        may_read = not self.output.is_paused
        if transport is None or may_read == self._is_reading or transport.is_closing():
            return
        self._is_reading = may_read
        if may_read:
            transport.resume_reading()
        else:
            transport.pause_reading()

    # --- the end ------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more calls and close when the last is answered."""
        self._is_ending = True
        self._connection.start_drain()
        self._drain_streams()
        if self._connection.is_set_up:
            self.flush()

    def _drain_streams(self) -> None:
        """Have streaming calls end, which else would last as long as their clients like."""
        for call in self._calls():
            if call.is_streaming and not call.is_local_closed:
                self._service.stream_draining(call)

    def forget_plans(self) -> None:
        """Have the access rule asked again, also for heads that have passed it."""
        self._connection.forget_memos()

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def sweep(self, now_ns: int) -> None:
        """Enforce the time limits."""
        transport, connection, clock = self._transport, self._connection, self._clock
        if transport is None:
            return
        if not self._is_reading or connection.is_window_held:
            clock.excuse(now_ns)
        unsent_bytes = transport.get_write_buffer_size()
        clock.note_sent(unsent_bytes, self.output.data_count, now_ns)
        if clock.write_is_stalled(unsent_bytes, now_ns):
            transport.abort()
        elif not connection.is_set_up and clock.setup_is_late(now_ns):
            connection.fail(Http2Code.SETTINGS_TIMEOUT, "no preface and SETTINGS in time")
            self._end()
        elif clock.frame_is_late(connection.incomplete_since_ns, now_ns):
            connection.fail(Http2Code.ENHANCE_YOUR_CALM, "a frame was not completed in time")
            self._end()
        elif self._lives_on(now_ns):
            self._sweep_calls(now_ns)

    def _lives_on(self, now_ns: int) -> bool:
        """Take care of keepalive and age; false when the connection was dropped."""
        streams = self._connection.streams
        # A peer whose bytes are not read may have answered.
        heard_ns = self._arrival_ns if self._is_reading else now_ns
        step = self._keepalive.next_step(now_ns, heard_ns, self.output.data_count, has_calls=bool(streams))
        if step is KeepaliveStep.NOTHING:
            return True
        if step is KeepaliveStep.PING:
            self._connection.ping()
        elif step is KeepaliveStep.RETIRE:
            self._is_ending = True
            self._connection.start_drain()
        else:
            why = "no answer to a keepalive PING" if step is KeepaliveStep.DEAD else "the grace of its age is over"
            _log.info("HTTP/2 connection with %d open calls dropped: %s", len(streams), why)
            self.abort()
        return step in (KeepaliveStep.PING, KeepaliveStep.RETIRE)

    def _sweep_calls(self, now_ns: int) -> None:
        slow, blocked = self._clock.late_calls(self._connection.streams.values(), now_ns)
        for call in slow:
            limit_s = self._limits.body_timeout_s
            self.refuse(
                call, GrpcError(GrpcStatus.DEADLINE_EXCEEDED, f"the request made no progress for {limit_s:g} s")
            )
        for call in blocked:
            self.give_up(call)
        if self._server.is_draining:
            self._drain_streams()
        if self._is_ending:
            self._drain_sweeps += 1
            if self._drain_sweeps > 1:  # a whole second: the peer has not answered the first GOAWAY's PING
                self._connection.finish_drain()
        self.flush()

    def _fail(self, error: Http2Error, data: bytes) -> None:
        """Close after a connection error."""
        if not self._connection.is_set_up and b" HTTP/1." in data[:4096] and self._transport is not None:
            self.output.take()
            self._transport.write(_HTTP1_ANSWER)
        _log.info("HTTP/2 connection closed: %s", error)
        self._end()

    def _end(self) -> None:
        self.flush()
        self.is_dirty = True
        if self._transport is not None:
            self._transport.close()


def _keep_alive(transport: asyncio.Transport) -> None:
    """Let the kernel find peers that vanished: idle connections are otherwise kept for ever."""
    connected: socket.socket | None = transport.get_extra_info("socket")
    if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
