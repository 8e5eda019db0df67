"""A model of another server: a version that serves requests by sending them there. It has no instances.

A decoupled model has a stream of responses for each request. While the client of a request does not read, none is
taken from the other server, which then waits as for any client; after `SLOW_CLIENT_S` the request fails.

All methods except `stop` and the counts are called on the event loop. A request goes to one server; only if that
server has certainly not begun it, another one gets it. Once a second the versions are checked (`check`): then servers
that were away are asked again, and servers that answer whether the model still has the same tensors.
"""

import contextlib
import logging
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.remote_settings import RemoteSettings, difference
from naiad.core.batch import Batch
from naiad.core.environment.ports import Loop
from naiad.core.errors import ErrorCode, FailureReason, InferError, unavailable
from naiad.core.limits.retry_budget import RetryBudget
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.engine.admission import Admission, AdmissionRules, stopped
from naiad.engine.remote.remote_addresses import RemoteAddress, RemoteAddresses
from naiad.engine.remote.remote_port import Cancellable, RemoteFailure
from naiad.engine.remote.remote_responses import RemoteResponses
from naiad.engine.serving.decoupled import SLOW_CLIENT_S
from naiad.engine.serving.served import Served
from naiad.telemetry.statistics.model_statistics import ModelStatistics

_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns


class _RemoteCall:
    """A request that has no response yet."""

    __slots__ = ("address", "begin_ns", "handle", "paused_since_ns", "request", "response_count", "tried")

    def __init__(self, request: InferRequest) -> None:
        self.request = request
        self.begin_ns = _now_ns()
        self.tried: list[RemoteAddress] = []
        """Servers that have certainly not begun it."""
        self.response_count = 0
        """Of a decoupled model; the request moves to no other server after the first one."""
        self.paused_since_ns = 0
        """When its client was first found not to read; 0: it reads."""
        self.address: RemoteAddress
        self.handle: Cancellable


class RemoteModel(Served):
    """Serves requests of one version on other servers."""

    def __init__(
        self,
        *,
        name: str,
        version: int,
        config: ModelConfig,
        settings: RemoteSettings,
        addresses: RemoteAddresses,
        statistics: ModelStatistics,
        loop: Loop,
    ) -> None:
        is_decoupled = config.model_transaction_policy.decoupled
        super().__init__(name, str(version), config, statistics, is_decoupled=is_decoupled)
        self._settings = settings
        self._addresses = addresses
        self._loop = loop
        self._rules = AdmissionRules(config)
        self._outputs = {each.name: each for each in config.output}
        self._calls: dict[int, _RemoteCall] = {}
        self._budget = RetryBudget()
        self._responses = RemoteResponses(name, str(version), config)
        self._error_header = ResponseHeader(name, self.version, ())
        self._stopping = False
        self._all_ended = threading.Event()
        self._all_ended.set()

    # --- called on the event loop -----------------------------------------------------------------------------------

    def submit(self, request: InferRequest) -> None:
        """Admit a request and send it. Raises InferError if it is rejected."""
        if self._stopping:
            raise stopped(request.id)
        admission = request.header.admission
        if type(admission) is not Admission or admission.rules is not self._rules:
            admission = self._rules.admit(request)
        if admission.strings or tuple(map(len, request.data)) != admission.data_sizes:
            self._rules.check_sizes(request, admission)
        if len(self._calls) >= self._settings.max_in_flight:
            raise unavailable(
                f"remote model '{self.name}' has {self._settings.max_in_flight} requests in flight, its max_in_flight"
            )
        request.batch_size = admission.batch_size
        call = _RemoteCall(request)
        self._budget.note_call(call.begin_ns / 1e9)
        try:
            self._send(call)
        except InferError as error:
            raise self._named(error) from None
        request.model = self
        self._calls[id(request)] = call
        self._all_ended.clear()

    def cancel(self, request: InferRequest) -> bool:
        """Cancel a request here and there; it has its response when this returns True."""
        call = self._calls.get(id(request))
        if request.cancelled or call is None or call.request is not request:
            return False
        request.cancelled = True
        call.handle.cancel()
        self.statistics.record_cancelled(in_queue=False)
        self._fail(call, InferError(ErrorCode.CANCELLED, ""))
        return True

    def is_waiting(self, request: InferRequest) -> bool:
        """Return False: what happens on the other server is not known here."""
        return False

    def check(self, now_ns: int) -> None:
        """Ask servers that are due whether the model is ready there and has the same tensors; end slow clients."""
        if self.is_decoupled:
            self._check_clients(now_ns)
        for address in self._addresses.all:
            if address.check_ns <= now_ns and not address.is_checking and not self._stopping:
                address.is_checking = True
                found = address.server.describe(self._settings.model, self._settings.version)
                found.add_done_callback(partial(self._checked_elsewhere, address))

    def _check_clients(self, now_ns: int) -> None:
        for call in list(self._calls.values()):
            if not call.request.waits_for_client:
                call.paused_since_ns = 0
            elif not call.paused_since_ns:
                call.paused_since_ns = now_ns
            elif now_ns - call.paused_since_ns > SLOW_CLIENT_S * 1e9:
                call.handle.cancel()
                text = f"the client has not taken the responses of remote model '{self.name}' for {SLOW_CLIENT_S:g} s"
                self._fail(call, unavailable(text))

    def _checked_elsewhere(self, address: RemoteAddress, found: "Future[ModelConfig]") -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._checked, address, found)

    def _checked(self, address: RemoteAddress, found: "Future[ModelConfig]") -> None:
        address.is_checking = False
        if found.cancelled():
            return
        before = address.problem
        note_description(address, found, self.config)
        if address.problem and address.problem != before:
            _log.warning("remote model '%s' at %s: %s", self.name, address.server.url, address.problem)
        elif before and not address.problem:
            _log.info("remote model '%s' at %s is ready", self.name, address.server.url)

    # --- sending and answering --------------------------------------------------------------------------------------

    def _send(self, call: _RemoteCall) -> None:
        """Send a request to the next server. Raises InferError if there is none."""
        request = call.request
        call.address = self._addresses.choose(request.header, call.tried)
        timeout_s = self._settings.timeout_s
        if request.deadline_ns:
            timeout_s = min(timeout_s, (request.deadline_ns - _now_ns()) / 1e9)
        traceparent = request.times.traceparent if request.times is not None else ""
        header, server = self._header(request.header), call.address.server
        if self.is_decoupled:
            call.handle = server.stream(
                header,
                request.id,
                request.data,
                timeout_s=self._settings.timeout_s,
                deadline_s=max(timeout_s, 0.001) if request.deadline_ns else None,
                traceparent=traceparent,
                is_paused=lambda: request.is_paused,
                on_stream=partial(self._streamed, call),
            )
            return
        call.handle = server.submit(
            header,
            request.id,
            request.data,
            timeout_s=max(timeout_s, 0.001),
            traceparent=traceparent,
            on_done=partial(self._done, call),
        )

    def _header(self, header: RequestHeader) -> RequestHeader:
        """Return the header for the other server, made once for equal requests."""
        memo = header.execution
        if memo is None or memo[0] is not self._rules:
            sent = RequestHeader(
                model_name=self._settings.model,
                model_version=self._settings.version,
                inputs=header.inputs,
                # All of them without any: the model may have further ones there.
                outputs=[RequestedOutput(each.name, binary=True) for each in header.outputs]
                or [RequestedOutput(name, binary=True) for name in self._outputs],
                parameters=header.parameters,
                priority=header.priority,
                timeout_us=header.timeout_us,
                sequence_id=header.sequence_id,
                sequence_start=header.sequence_start,
                sequence_end=header.sequence_end,
                wants_empty_final=self.is_decoupled,
            )
            memo = header.execution = (self._rules, sent)
        remote: RequestHeader = memo[1]
        return remote

    def _done(self, call: _RemoteCall, result: InferResponse | RemoteFailure) -> None:
        if not self._is_open(call):
            return
        if isinstance(result, RemoteFailure):
            self._failed(call, result)
            return
        try:
            header = self._responses.header(call.request, result)
        except InferError as error:
            self._fail(call, self._named(error, call.address))
            return
        self._close(call)
        self._record(call)
        request = call.request
        request.on_response(request, InferResponse(header, result.data, parameters=result.parameters))

    def _streamed(self, call: _RemoteCall, response: InferResponse | RemoteFailure | None) -> None:
        """Pass on a response of a decoupled model, or its end."""
        if not self._is_open(call):
            return
        if isinstance(response, RemoteFailure):
            self._failed(call, replace(response, has_begun=response.has_begun or call.response_count > 0))
            return
        if response is None:
            self._complete(call)
            return
        call.response_count += 1
        call.paused_since_ns = 0
        if response.empty_final:
            if response.final:
                self._complete(call)
            return
        try:
            header = self._responses.header(call.request, response)
        except InferError as error:
            call.handle.cancel()
            self._fail(call, self._named(error, call.address))
            return
        if response.final:
            self._close(call)
            self._record(call)
        found = InferResponse(header, response.data, parameters=response.parameters, final=response.final)
        call.request.on_response(call.request, found)

    def _complete(self, call: _RemoteCall) -> None:
        """Complete a request of a decoupled model whose responses have all been passed on."""
        self._close(call)
        self._record(call)
        request = call.request
        request.on_response(request, InferResponse(self._error_header, final=True, empty_final=True))

    def _is_open(self, call: _RemoteCall) -> bool:
        """Return whether a request has no final response; another one may have its place by now."""
        return self._calls.get(id(call.request)) is call

    def _failed(self, call: _RemoteCall, failure: RemoteFailure) -> None:
        """Send a request that was not begun to another server, or answer with the error."""
        address, error = call.address, failure.error
        if failure.is_away:
            address.note_problem(error.message, _now_ns())
        elif error.code is ErrorCode.UNAVAILABLE:
            address.check_ns = 0  # it may not be ready any more
        if self._may_move(failure):
            call.tried.append(address)
            try:
                self._send(call)
            except InferError:
                pass  # The first reason says more than that no server is left.
            else:
                return
        named = self._named(error, address)
        named.has_begun = failure.has_begun
        self._fail(call, named)

    def _may_move(self, failure: RemoteFailure) -> bool:
        """Return whether another server may get a request that was not begun: refusals have a budget."""
        if failure.has_begun or self._stopping:
            return False
        return failure.is_away or self._budget.take(time.monotonic())

    def _named(self, error: InferError, address: RemoteAddress | None = None) -> InferError:
        """Return an error with the name of the model, and of the server that returned it."""
        place = f" at {address.server.url}" if address is not None and address.server.url not in error.message else ""
        return error.with_message(f"remote model '{self.name}'{place}: {error.message}")

    def _record(self, call: _RemoteCall) -> None:
        """Count one execution: all of its time is computing."""
        now_ns = _now_ns()
        batch = Batch((call.request,), call.request.batch_size, "remote")
        batch.exec_start_ns = batch.compute_start_ns = call.begin_ns
        batch.compute_end_ns = batch.exec_end_ns = now_ns
        times = call.request.times
        if times is not None:
            times.exec_start_ns = times.compute_start_ns = call.begin_ns
            times.compute_end_ns = times.exec_end_ns = now_ns
        self.statistics.record_batch(batch, (), now_ns)

    def _fail(self, call: _RemoteCall, error: InferError) -> None:
        self._close(call)
        is_cancelled = error.code is ErrorCode.CANCELLED
        reason = error.reason or (FailureReason.CANCELED if is_cancelled else FailureReason.BACKEND)
        request = call.request
        self.statistics.record_dropped(request, reason, _now_ns())
        request.on_response(request, InferResponse(self._error_header, error=error))

    def _close(self, call: _RemoteCall) -> None:
        self._calls.pop(id(call.request), None)
        if not self._calls:
            self._all_ended.set()

    # --- the end ----------------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """Fail all open requests."""
        self._stopping = True
        for call in list(self._calls.values()):
            call.handle.cancel()
            self._fail(call, unavailable(reason))

    def stop(self, timeout_s: float) -> bool:
        """Reject new requests, and wait for the accepted ones; those that do not end in time fail."""
        self._stopping = True
        in_time = self._all_ended.wait(timeout_s)
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the connections with it
            self._loop.call_soon_threadsafe(self._disconnect)
        return in_time

    def _disconnect(self) -> None:
        self.abort(f"remote model '{self.name}' was stopped before the request had ended")
        for address in self._addresses.all:
            address.server.close()

    # --- called on any thread ---------------------------------------------------------------------------------------

    @property
    def pending_count(self) -> int:
        """No request waits here."""
        return 0

    @property
    def in_flight_count(self) -> int:
        """Requests without a response."""
        return len(self._calls)

    @property
    def health(self) -> str:
        """Empty while a server can execute requests; otherwise the reasons of all."""
        problem = self._addresses.problem
        return f"remote model '{self.name}': {problem}" if problem else ""


def note_description(address: RemoteAddress, found: "Future[ModelConfig]", config: ModelConfig) -> None:
    """Note what a server has answered about a model that is here as in `config`."""
    now_ns = _now_ns()
    try:
        there = found.result()
    except InferError as error:
        address.note_problem(error.message.strip(), now_ns)
        return
    differs = difference(config, there)
    if differs:
        address.note_problem(f"the model has other tensors: {differs}", now_ns, differs)
    else:
        address.note_ready(now_ns)
