"""An ensemble: a version that serves requests by submitting them to other models, step by step."""

import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch
from naiad.core.device_tensor import in_host_memory
from naiad.core.environment.ports import Loop
from naiad.core.errors import ErrorCode, FailureReason, InferError, internal, unavailable
from naiad.core.model import MISFIT
from naiad.core.parameters import ParameterValue
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.engine.admission import Admission, AdmissionRules, stopped
from naiad.engine.ensemble.ensemble_graph import DEFAULT_LIMIT, EnsembleGraph, EnsembleStep, bridge
from naiad.engine.ensemble.ensemble_run import AbsentTensor, EnsembleRun, Flow, SequenceFields, StepRequest, Value
from naiad.engine.serving.served import ModelRouter, Served
from naiad.telemetry.server_timing import RequestTiming
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from naiad.telemetry.statistics.part_statistics import StepCounts

_log = logging.getLogger(__name__)

_HEADER_LIMIT = 1024
"""Limit of the cached response headers."""
_NO_SEQUENCE: Mapping[str, ParameterValue] = MappingProxyType(
    {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
)


class _ConcurrencySlots:
    """The concurrency slots of a step: its executing requests and the runs that wait for a slot."""

    __slots__ = ("is_giving", "limit", "started_count", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.started_count = 0
        self.is_giving = False
        """Whether a call is already assigning free slots, up the stack."""
        self.waiting: OrderedDict[tuple[EnsembleRun, Flow], None] = OrderedDict()
        """In order of arrival. Bounded: a decoupled member is paused when many of its responses wait, and other
        members respond once.
        """


class EnsembleModel(Served):
    """Serves requests of an ensemble. All methods except `stop` and the counts are called on the event loop."""

    def __init__(  # noqa: PLR0913 - the parts that the loader has made
        self,
        *,
        name: str,
        version: int,
        config: ModelConfig,
        members: Mapping[str, ModelConfig],
        router: ModelRouter,
        statistics: ModelStatistics,
        loop: Loop,
        labels: Mapping[str, Sequence[str]] | None = None,
        device_steps: frozenset[int] = frozenset(),
    ) -> None:
        """`members` has the complete configuration of each model of a step. Raises InferError(INVALID_ARG).

        `device_steps`: see `EnsembleGraph`.
        """
        self.graph = EnsembleGraph(config, members, device_steps)
        super().__init__(name, str(version), config, statistics, is_decoupled=self.graph.is_decoupled, labels=labels)
        self._counts = statistics.steps = [StepCounts(step.model_name) for step in self.graph.steps]
        self._router = router
        self._loop = loop
        self._rules = AdmissionRules(config)
        self._rooms = [_ConcurrencySlots(self._limit_of(step)) for step in self.graph.steps]
        self._runs: dict[int, EnsembleRun] = {}
        self._response_headers: dict[tuple[int, ...], tuple[Sequence[TensorSpec], ResponseHeader]] = {}
        self._error_header = ResponseHeader(name, self.version, ())
        self._stopping = False
        self._all_ended = threading.Event()
        self._all_ended.set()

    def _limit_of(self, step: EnsembleStep) -> int:
        # Triton: without max_inflight_requests nothing bounds the responses of a fast decoupled member.
        return self.graph.limit or (DEFAULT_LIMIT if step.level else 0)

    # --- called on the event loop -----------------------------------------------------------------------------------

    def submit(self, request: InferRequest) -> None:
        """Admit a request and start its first steps. Raises InferError if it is rejected."""
        if self._stopping:
            raise stopped(request.id)
        admission = request.header.admission
        if type(admission) is not Admission or admission.rules is not self._rules:
            admission = self._rules.admit(request)
        if admission.strings or tuple(map(len, request.data)) != admission.data_sizes:
            self._rules.check_sizes(request, admission)
        request.batch_size = admission.batch_size
        request.model = self
        run = EnsembleRun(self, request)
        self._runs[id(request)] = run
        self._all_ended.clear()
        run.begin()

    def cancel(self, request: InferRequest) -> bool:
        """Cancel the steps of a request, started or not; return True if none of them executes."""
        run = self._runs.get(id(request))
        if request.cancelled or run is None or run.request is not request:
            return False
        request.cancelled = True
        run.cancel()
        self.statistics.record_cancelled(in_queue=run.has_ended)
        return run.has_ended

    def is_waiting(self, request: InferRequest) -> bool:
        """Return whether all open steps of a request wait; without open steps, the request waits for a slot."""
        run = self._runs.get(id(request))
        if run is None or run.request is not request:
            return False
        return all(step.model is not None and step.model.is_waiting(step) for step in run.open_steps)

    # --- called by the runs -----------------------------------------------------------------------------------------

    def start_step(self, run: EnsembleRun, flow: Flow, step: EnsembleStep) -> None:
        """Start a step, or queue it for a slot."""
        room = self._rooms[step.index]
        if room.limit and room.started_count >= room.limit:
            run.waiting.add((step.index, flow))
            room.waiting[(run, flow)] = None
            return
        room.started_count += 1
        if not run.start(flow, step):
            room.started_count -= 1

    def step_rejected(self, step: EnsembleStep) -> None:
        """Count a rejected request of a step."""
        self._counts[step.index].record_failure(0)

    def step_completed(self, request: StepRequest, *, has_failed: bool) -> None:
        """Count a completed request of a step."""
        counts = self._counts[request.step.index]
        duration_ns = time.monotonic_ns() - request.arrival_ns
        whole = request.run.request.times
        if isinstance(whole, RequestTiming):
            whole.note_step(request.step.model_name, duration_ns)
        if has_failed:
            counts.record_failure(duration_ns)
            return
        counts.record_success(duration_ns)
        times = request.times
        if times is not None and times.exec_start_ns:
            counts.record_execution(times.exec_start_ns - request.arrival_ns, times.exec_end_ns - times.exec_start_ns)

    def step_ended(self, step: EnsembleStep) -> None:
        """Give the slot of a completed step to the next waiting run."""
        room = self._rooms[step.index]
        room.started_count -= 1
        if room.is_giving:
            # A member has responded at once, from a cache for example, to a step that an outer call has just started:
            # that call continues. One nested call per waiting run would exhaust the stack.
            return
        room.is_giving = True
        try:
            while room.waiting and room.started_count < room.limit:
                (run, flow), _ = room.waiting.popitem(last=False)
                run.waiting.discard((step.index, flow))
                room.started_count += 1
                if not run.start(flow, step):
                    room.started_count -= 1
        finally:
            room.is_giving = False

    def withdraw(self, run: EnsembleRun) -> None:
        """Remove the waiting steps of a run."""
        for index, flow in run.waiting:
            del self._rooms[index].waiting[(run, flow)]
        run.waiting.clear()

    def send(self, request: InferRequest) -> None:
        """Submit a request to a member. Raises InferError."""
        header = request.header
        if header.is_on_device:
            member = self._router.served(header.model_name, header.model_version)
            if not member.takes_device_tensors:
                # It has replaced one that does; the ensemble is loaded again soon. Only until then the loop copies.
                request.data = [in_host_memory(data) for data in request.data]
                request.header = header.on_host()
        self._router.submit(request)

    def rejection_of(self, step: EnsembleStep, error: InferError) -> InferError:
        """Return the error of a rejected request of a step; UNAVAILABLE if the member was replaced by one without its
        tensors: no client is at fault, and the ensemble leaves service at once.
        """
        if error.code is not ErrorCode.INVALID_ARG:
            return error
        try:
            config = self._router.served(step.model_name, step.model_version).config
        except InferError:
            return error
        is_misfit = not {each.name for each in step.inputs} <= {each.name for each in config.input} or not (
            step.outputs.keys() <= {each.name for each in config.output}
        )
        return unavailable(f"{MISFIT}: {error.message}") if is_misfit else error

    def cancel_step(self, request: InferRequest) -> None:
        """Cancel the request of a step."""
        self._router.cancel(request)

    def step_header(
        self,
        step: EnsembleStep,
        source: RequestHeader,
        specs: tuple[TensorSpec, ...],
        sequence: SequenceFields | None,
    ) -> RequestHeader:
        """Return the header of a step's request, made once for equal requests.

        Triton: a step gets the priority, timeout and parameters of the ensemble's request, and its sequence unless
        the response of an earlier step names another.
        """
        if sequence is not None and sequence != _sequence_of(source):
            return _step_header(step, source, specs, sequence)
        memo = source.execution
        if memo is None or memo[0] is not self._rules:
            memo = source.execution = (self._rules, {})
        headers: dict[int, RequestHeader] = memo[1]
        header = headers.get(step.index)
        # Equal specs are mostly the same object, which makes this cheap.
        if header is None or header.inputs != specs:
            header = headers[step.index] = _step_header(step, source, specs, _sequence_of(source))
        return header

    def answer(self, run: EnsembleRun, flow: Flow) -> None:
        """Respond with the outputs of a flow; outputs of skipped steps are left out."""
        request = run.request
        tensors = [(name, flow.get(name)) for name in run.plan.outputs]
        found = [(name, value) for name, value in tensors if isinstance(value, Value)]
        if len(found) < len(tensors):
            for name, value in tensors:
                if not isinstance(value, Value):
                    _log.debug("Composing models did not output tensor %s", name)
        try:
            if not found and any(value is AbsentTensor.LEFT_OUT for _, value in tensors):
                raise internal(f"its models returned none of its outputs: {', '.join(map(repr, run.plan.outputs))}")
            header = self._response_header(found)
        except InferError as error:
            if self.is_decoupled:
                run.fail(error)
            else:
                self.end(run, error)
            return
        data = [value.data for _, value in found]
        parameters = _sequence_parameters(request.header, found)
        if self.is_decoupled:
            if not run.has_answered:
                run.has_answered = True
                self.statistics.responses.record_first(time.monotonic_ns() - request.arrival_ns)
            request.on_response(request, InferResponse(header, data, parameters=parameters, final=False))
        else:
            self._close(run)
            self._record(run)
            request.on_response(request, InferResponse(header, data, parameters=parameters))

    def _response_header(self, found: Sequence[tuple[str, Value]]) -> ResponseHeader:
        """Return the header for these outputs, the same for the same specs."""
        key = tuple([id(value.spec) for _, value in found])
        known = self._response_headers.get(key)
        if known is not None and [spec.name for spec in known[1].outputs] == [name for name, _ in found]:
            return known[1]
        specs = [
            TensorSpec(
                name,
                value.spec.datatype,
                self.graph.leave(
                    name,
                    bridge(
                        value.spec.shape,
                        self.graph.output_ranks[name],
                        from_batching=value.is_batched,
                        to_batching=self.graph.is_batching,
                    ),
                ),
            )
            for name, value in found
        ]
        if len(self._response_headers) >= _HEADER_LIMIT:
            self._response_headers.clear()
        header = ResponseHeader(self.name, self.version, specs)
        # The specs stay alive, so that their identities stay unique.
        self._response_headers[key] = ([value.spec for _, value in found], header)
        return header

    def end(self, run: EnsembleRun, failure: InferError | None) -> None:
        """Complete a request that is decoupled or has failed."""
        request = run.request
        if failure is not None:
            self._close(run)
            now_ns = time.monotonic_ns()
            is_cancelled = failure.code is ErrorCode.CANCELLED
            # Triton: failures of ensembles count as OTHER.
            self.statistics.record_dropped(
                request, FailureReason.CANCELED if is_cancelled else FailureReason.OTHER, now_ns
            )
            message = failure.message if is_cancelled else f"in ensemble '{self.name}', {failure.message}"
            error = failure.with_message(message)
            request.on_response(request, InferResponse(self._error_header, error=error))
        elif self.is_decoupled:
            self._close(run)
            self._record(run)
            request.on_response(request, InferResponse(self._error_header, final=True, empty_final=True))

    def _close(self, run: EnsembleRun) -> None:
        self._runs.pop(id(run.request), None)
        if not self._runs:
            self._all_ended.set()

    def _record(self, run: EnsembleRun) -> None:
        """Count one execution. Triton: its compute times are the sums over the members."""
        end_ns = time.monotonic_ns()
        batch = Batch((run.request,), run.request.batch_size, "ensemble")
        batch.exec_start_ns = run.first_exec_ns or end_ns
        batch.compute_start_ns = batch.exec_start_ns + run.input_ns
        batch.compute_end_ns = batch.compute_start_ns + run.infer_ns
        batch.exec_end_ns = batch.compute_end_ns + run.output_ns
        self.statistics.record_batch(batch, (), end_ns)

    # --- called on any thread ---------------------------------------------------------------------------------------

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Output name to class labels. Triton: without its own an output has the labels of the member's output."""
        labels = dict(self._labels)
        for name in self.graph.outputs:
            found = self.graph.writer_of(name)
            if found is None or name in labels:
                continue
            step, output = found
            with contextlib.suppress(InferError):  # a member that is not ready has no labels
                labels[name] = self._router.served(step.model_name, step.model_version).labels.get(output, ())
        return labels

    @property
    def pending_count(self) -> int:
        """Steps that wait for a slot."""
        return sum(len(room.waiting) for room in self._rooms)

    @property
    def in_flight_count(self) -> int:
        """Requests that have not had their final response."""
        return len(self._runs)

    @property
    def health(self) -> str:
        """Empty while every member can execute; otherwise the first reason."""
        for step in self.graph.steps:
            try:
                reason = self._router.served(step.model_name, step.model_version).health
            except InferError as error:
                reason = error.message
            if reason:
                return f"in ensemble '{self.name}', {reason}"
        return ""

    def abort(self, reason: str) -> None:
        """Fail all open requests."""
        self._stopping = True
        for run in list(self._runs.values()):
            run.fail(unavailable(reason))

    def stop(self, timeout_s: float) -> bool:
        """Reject new requests, and wait for the accepted ones; those that do not end in time fail."""
        self._stopping = True
        if self._all_ended.wait(timeout_s):
            return True
        self._loop.call_soon_threadsafe(self._abandon)
        return False

    def _abandon(self) -> None:
        for run in list(self._runs.values()):
            run.fail(unavailable(f"ensemble '{self.name}' was stopped before the request had ended"))


def _step_header(
    step: EnsembleStep, source: RequestHeader, specs: tuple[TensorSpec, ...], sequence: SequenceFields
) -> RequestHeader:
    return RequestHeader(
        model_name=step.model_name,
        model_version=step.model_version,
        inputs=specs,
        outputs=step.requested,
        parameters=source.parameters,
        priority=source.priority,
        timeout_us=source.timeout_us,
        sequence_id=sequence.id,
        sequence_start=sequence.is_start,
        sequence_end=sequence.is_end,
        has_device_inputs=step.has_device_inputs,
    )


def _sequence_of(header: RequestHeader) -> SequenceFields:
    return SequenceFields(header.sequence_id, header.sequence_start, header.sequence_end)


def _sequence_parameters(header: RequestHeader, found: Sequence[tuple[str, Value]]) -> Mapping[str, ParameterValue]:
    """Return the parameters of a response. Triton: its sequence, even if the request has none."""
    sequence = next((value.sequence for _, value in found if value.sequence is not None), None)
    if sequence is None:
        if not (header.sequence_id or header.sequence_start or header.sequence_end):
            return _NO_SEQUENCE
        sequence = _sequence_of(header)
    sequence_id = sequence.id
    if isinstance(sequence_id, int) and sequence_id >= 1 << 63:
        sequence_id -= 1 << 64  # Triton: a signed parameter
    return {"sequence_id": sequence_id, "sequence_start": sequence.is_start, "sequence_end": sequence.is_end}
