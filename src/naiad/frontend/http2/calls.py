"""The calls of one HTTP/2 connection: streams become calls, and their requests go to the service or to REST routes.

A small unary request of gRPC that arrives in one piece goes to the service at once, without a request side. Any other
request gets one with its headers, which then takes the pieces of the body.

While too many request bytes wait for responses, the peer gets no flow-control window for more bodies. While too many
response bytes wait for the peer's windows, its complete requests wait. Reading continues in both cases, because the
frames that end the wait (WINDOW_UPDATE, RST_STREAM) arrive on the same connection.
"""

import functools
import logging
import time
from typing import Any

from naiad.core.errors import excerpt
from naiad.core.limits.request_limits import UNCOUNTED_BYTES
from naiad.frontend.context import CancelReason
from naiad.frontend.http2.call import Http2Call
from naiad.frontend.http2.endpoint import Http2Endpoint, RestHeaders
from naiad.frontend.http2.flow import Http2Flow
from naiad.frontend.http2.grpc_request import SMALL_MESSAGE_BYTES, GrpcRequest
from naiad.frontend.http2.plan import CallPlan, make_plan
from naiad.frontend.http2.rest_context import Http2Context
from naiad.frontend.http2.time_limits import DeadlineTimer
from naiad.telemetry.server_timing import RequestTiming
from naiad.wire.grpc import PREFIX, PREFIX_BYTES, GrpcError
from naiad.wire.http1 import HttpError
from naiad.wire.http2.frames import Http2Code
from naiad.wire.http2.headers import Fields, RequestHead
from naiad.wire.http2.server_connection import ServerConnection

_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns
_unpack_prefix = PREFIX.unpack_from

_ORDINARY_RESETS = frozenset((Http2Code.NO_ERROR, Http2Code.CANCEL))
"""Error codes with which a peer says that it does not need the response."""
_CODES = frozenset(Http2Code)


class Http2Calls:
    """The sink of a `ServerConnection`, which it creates together with the flow of the connection."""

    def __init__(self, endpoint: Http2Endpoint[Any], now_ns: int) -> None:
        self._endpoint = endpoint
        self._service = endpoint.service
        self._max_message_bytes = endpoint.limits.message_bytes
        self._max_queued_bytes = endpoint.limits.queued_bytes
        self.connection: ServerConnection[Http2Call] = ServerConnection(self, endpoint.limits)
        self.flow = Http2Flow(endpoint, self.connection, now_ns)
        self.new_stream = functools.partial(endpoint.call_type or Http2Call, self.flow)
        """Creates the call of a new stream from its id, its head and its receive window."""
        self._output = self.connection.output
        self._has_found_fault = False
        self._deadlines = DeadlineTimer(endpoint.loop, self.connection.streams, _now_ns)

    def open_calls(self) -> list[Http2Call]:
        """Return the calls that have not ended."""
        return list(self.connection.streams.values())

    # --- requests ---------------------------------------------------------------------------------------------------

    def request_received(self, call: Http2Call, body: memoryview) -> None:
        """Deliver a request that arrived in one piece; all but plain unary requests take the slow path."""
        # hot: bench/micro_http2.py
        plan: CallPlan = call.head.memo or self._make_plan(call.head)
        size = len(body) - PREFIX_BYTES
        if plan.is_unary and 0 <= size <= SMALL_MESSAGE_BYTES and self._output.queued_bytes <= self._max_queued_bytes:
            flag, length = _unpack_prefix(body)
            if (
                flag == 0
                and length == size
                and size <= self._max_message_bytes
                and (size <= UNCOUNTED_BYTES or call.reserve_bytes(size))
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
        """Start a call whose request arrives piece by piece."""
        plan: CallPlan = call.head.memo or self._make_plan(call.head)
        if plan.rejection_block is not None:
            call.reject(plan)
            return
        if plan.rest is not None:
            self._start_rest(call, plan.rest)
            return
        call.is_streaming = plan.is_streaming
        call.request = GrpcRequest(self._endpoint, plan.encoding)
        if plan.has_settings:
            self._apply(plan, call)

    def body_received(self, call: Http2Call, data: memoryview) -> None:
        """Pass a piece of the body to the request side."""
        if call.request is None or call.is_local_closed:
            return
        try:
            call.request.receive(call, data)
        except (GrpcError, HttpError) as error:
            call.reject_request(error)

    def end_received(self, call: Http2Call, trailers: Fields) -> None:
        """Notify the request side that the request is complete."""
        if call.request is None or call.is_local_closed:
            return
        try:
            call.request.complete(call)
        except (GrpcError, HttpError) as error:
            call.reject_request(error)

    def _make_plan(self, head: RequestHead) -> CallPlan:
        endpoint = self._endpoint
        plan = make_plan(head, self._service, endpoint.rule, endpoint.pages, serves_rest=endpoint.rest is not None)
        head.memo = plan
        return plan

    def _apply(self, plan: CallPlan, call: Http2Call) -> None:
        if plan.is_timed:
            call.timing = RequestTiming(call.arrival_ns)
        if plan.timeout_ns:
            call.deadline_ns = call.arrival_ns + plan.timeout_ns
            self._deadlines.watch(call.deadline_ns, call.arrival_ns)

    def _start_rest(self, call: Http2Call, head: RestHeaders) -> None:
        assert self._endpoint.rest is not None  # or the plan would have rejected it
        call.request = context = Http2Context(call, head, self._endpoint.rest)
        try:
            context.begin(self._endpoint.budget)
        except HttpError as error:
            call.reject_request(error)

    # --- ends -------------------------------------------------------------------------------------------------------

    def stream_reset(self, call: Http2Call, code: int) -> None:
        """Notify the service that the client needs no response."""
        if code not in _ORDINARY_RESETS and not self._has_found_fault:
            # The peer rejects the response, and its application may never see the reason. Log it once per connection,
            # to bound the log.
            self._has_found_fault = True
            name = Http2Code(code).name if code in _CODES else f"error code {code}"
            _log.warning("the client reset its call of %s with %s", excerpt(call.path), name)
        call.abandon(CancelReason.CANCELLED)

    def stream_broken(self, call: Http2Call, code: int) -> None:
        """Notify the service that the response cannot be delivered."""
        call.abandon(CancelReason.REJECTED)

    def goaway_received(self, code: int) -> None:
        """Close after the responses to open calls."""
        self.connection.finish_drain()

    def close(self) -> None:
        """Cancel all calls of a lost connection.

        The connection and its sink refer to each other. `lose` clears that, so that a connection and its undelivered
        responses are freed at once instead of with the next full collection.
        """
        self._deadlines.close()
        self.flow.stop()
        calls = self.open_calls()
        # All first: what a service does when one call ends may concern another one.
        for call in calls:
            self._output.forget(call)
        for call in calls:
            call.abandon(CancelReason.DISCONNECTED)
        self._output.take()
        self.flow.close()
        self.connection.lose()
