"""One request on its way through an ensemble. All code here runs on the event loop.

Tensors belong to a flow. An ordinary ensemble has one flow; every response of a decoupled member opens another, which
reads the tensors of its parent flow and adds its own. Tensors are passed on as buffers, without a copy, or as
`DeviceTensor`s between steps whose members take them.
"""

import time
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import NamedTuple, Protocol

from naiad.core.environment.model_call import ModelCall
from naiad.core.errors import ErrorCode, InferError, internal, invalid_argument
from naiad.core.parameters import ParameterValue
from naiad.core.request import ExecutionTimes, InferRequest, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer, TensorSpec
from naiad.engine.ensemble.ensemble_graph import EnsembleGraph, EnsembleStep, Subgraph

_NO_LEVEL: frozenset[int] = frozenset()


_SEQUENCE_PARAMETERS = frozenset(("sequence_id", "sequence_start", "sequence_end"))


class SequenceFields(NamedTuple):
    """The sequence of a request, and its position there."""

    id: int | str
    is_start: bool
    is_end: bool


class Value:
    """A tensor of the ensemble."""

    __slots__ = ("data", "is_batched", "sequence", "spec")

    def __init__(
        self, spec: TensorSpec, data: Buffer, *, is_batched: bool, sequence: SequenceFields | None = None
    ) -> None:
        self.spec = spec
        self.data = data
        self.is_batched = is_batched
        """Whether its first dimension is the batch."""
        self.sequence = sequence
        """The sequence of its response; None for the sequence of the ensemble's request."""


class AbsentTensor(Enum):
    """The reason why a tensor of the ensemble is absent."""

    SKIPPED = "its step is skipped, or the request lacks this optional input"
    LEFT_OUT = "the response of its step lacks this output"


class Flow:
    """The tensors of one path through the ensemble, and the steps started for them."""

    __slots__ = ("_children", "_parent", "_values", "is_answered", "level", "started")

    def __init__(self, level: frozenset[int] = _NO_LEVEL, parent: "Flow | None" = None) -> None:
        """`level` names the decoupled steps that it derives from."""
        self.level = level
        self._parent = parent
        self._values: dict[str, Value | AbsentTensor] = {}
        self._children: list[Flow] = []
        self.started: set[int] = set()
        self.is_answered = False
        """Whether its outputs have become a response."""
        if parent is not None:
            parent._children.append(self)

    def put(self, tensor: str, value: Value | AbsentTensor) -> None:
        """Add a tensor, or the reason of its absence."""
        self._values[tensor] = value

    def has(self, tensor: str) -> bool:
        """Return whether a tensor is present or known to be absent."""
        return tensor in self._values or (self._parent is not None and self._parent.has(tensor))

    def get(self, tensor: str) -> Value | AbsentTensor:
        """Return a tensor that `has` knows, or the reason of its absence."""
        if tensor in self._values or self._parent is None:
            return self._values[tensor]
        return self._parent.get(tensor)

    def tree(self) -> "Iterator[Flow]":
        """Yield this flow and its descendants."""
        yield self
        for child in list(self._children):
            yield from child.tree()

    def leave(self) -> None:
        """Remove this flow from its parent."""
        if self._parent is not None and self in self._parent._children:
            self._parent._children.remove(self)


class StepRequest(InferRequest):
    """The request of a step. It is paused when its run is, because the client or later steps do not keep up."""

    __slots__ = ("flow", "run", "sequence_fields", "step")

    run: "EnsembleRun"
    flow: Flow
    step: EnsembleStep
    sequence_fields: SequenceFields | None
    """Sequence of the responses of its inputs; None for that of the ensemble's request."""

    @property
    def call(self) -> ModelCall | None:
        """The call that the ensemble serves, if any."""
        call: ModelCall | None = self.run.request.call
        return call

    @property
    def has_begun(self) -> bool:
        """Whether it continues work in progress: another step of its run was started before."""
        return bool(self.flow.level) or len(self.flow.started) > 1

    @property
    def is_paused(self) -> bool:
        """Whether a decoupled member should pause."""
        return self.run.is_paused

    @is_paused.setter
    def is_paused(self, value: bool) -> None:
        """Ignore it: the run decides."""

    @property
    def waits_for_client(self) -> bool:
        """Whether the client of the ensemble is slow; a wait for later steps has no limit of its own."""
        return self.run.request.waits_for_client

    @property
    def unread_bytes(self) -> int:
        """Bytes of the ensemble's responses that its client has not taken yet."""
        return self.run.request.unread_bytes


class Members(Protocol):
    """The methods of the ensemble that a run needs."""

    graph: EnsembleGraph

    def start_step(self, run: "EnsembleRun", flow: Flow, step: EnsembleStep) -> None:
        """Call `run.start` now or when the step gets a slot."""

    def step_rejected(self, step: EnsembleStep) -> None:
        """Note that the member of a step rejected its request."""

    def step_completed(self, request: StepRequest, *, has_failed: bool) -> None:
        """Note the final response of a step."""

    def step_ended(self, step: EnsembleStep) -> None:
        """Note the end of a started request of a step."""

    def withdraw(self, run: "EnsembleRun") -> None:
        """Empty `run.waiting`: its steps need no slots any more."""

    def send(self, request: InferRequest) -> None:
        """Submit a request to a member. Raises InferError."""

    def rejection_of(self, step: EnsembleStep, error: InferError) -> InferError:
        """Return the error of a request that the member of a step has rejected, as the client is to see it."""

    def cancel_step(self, request: InferRequest) -> object:
        """Cancel a request of `send`."""

    def step_header(
        self,
        step: EnsembleStep,
        source: RequestHeader,
        specs: tuple[TensorSpec, ...],
        sequence: SequenceFields | None,
    ) -> RequestHeader:
        """Return the header of a step's request; `sequence`, if given, replaces that of the source."""

    def answer(self, run: "EnsembleRun", flow: Flow) -> None:
        """Respond with the outputs of a flow, all of which are known."""

    def end(self, run: "EnsembleRun", failure: InferError | None) -> None:
        """Complete the request; called once, last."""


class EnsembleRun:
    """A request of an ensemble until its final response."""

    __slots__ = (
        "_busy",
        "_ensemble",
        "_failure",
        "_steps",
        "first_exec_ns",
        "has_answered",
        "has_ended",
        "infer_ns",
        "input_ns",
        "open_count",
        "output_ns",
        "plan",
        "request",
        "root",
        "waiting",
    )

    def __init__(self, ensemble: Members, request: InferRequest) -> None:
        self._ensemble = ensemble
        self.request = request
        self.plan: Subgraph = ensemble.graph.plan_for(request.header.outputs)
        self.root = Flow()
        self._failure: InferError | None = None
        self.has_ended = False
        """Whether its request is answered."""
        self.has_answered = False
        """Whether a decoupled ensemble has sent a response."""
        self._steps: set[StepRequest] = set()
        self._busy = 0
        """Nested calls on the run: it ends only in the outermost one."""
        self.open_count = 0
        """Steps that wait for a slot or execute."""
        self.waiting: set[tuple[int, Flow]] = set()
        """Indices of steps that wait for a slot; the ensemble maintains it."""
        self.first_exec_ns = 0
        self.input_ns = self.infer_ns = self.output_ns = 0
        """Sums over the executions of all steps."""

    @property
    def is_paused(self) -> bool:
        """Whether responses arrive faster than the later steps, or the client, take them."""
        return len(self.waiting) > self._ensemble.graph.pause_count or self.request.is_paused

    @property
    def open_steps(self) -> list[StepRequest]:
        """The submitted requests of steps that have not ended."""
        return list(self._steps)

    def begin(self) -> None:
        """Start the steps that need only the request's inputs."""
        request, graph = self.request, self._ensemble.graph
        for tensor in graph.inputs:
            self.root.put(tensor, AbsentTensor.SKIPPED)
        for spec, data in zip(request.header.inputs, request.data, strict=True):
            entered = graph.enter(spec) if graph.reshaped else spec
            self.root.put(spec.name, Value(entered, data, is_batched=graph.is_batching))
        self._busy += 1
        for step in self.plan.steps:
            self._try(self.root, step)
        self._leave()

    def cancel(self) -> None:
        """Start no further steps, and cancel the open ones."""
        self.fail(InferError(ErrorCode.CANCELLED, ""))

    # --- steps -----------------------------------------------------------------------------------------------------

    def _try(self, flow: Flow, step: EnsembleStep) -> None:
        """Start a step in a flow, unless it does not belong there, has started, or lacks a tensor."""
        # hot: once a step, and again for each tensor that comes
        if step.index in flow.started or flow.level != step.level or self._failure is not None:
            return
        has = flow.has
        for tensor in step.tensors:
            if not has(tensor):
                return
        flow.started.add(step.index)
        if self._is_skipped(flow, step):
            self._settle(flow, step, {}, AbsentTensor.SKIPPED)
            return
        self.open_count += 1
        self._ensemble.start_step(self, flow, step)

    def _is_skipped(self, flow: Flow, step: EnsembleStep) -> bool:
        if step.condition:
            decision = flow.get(step.condition)
            if isinstance(decision, AbsentTensor) or not any(decision.data):
                return True
        # Triton: a step with an absent input is still started, and its member rejects the request if the input is
        # required.
        return any(flow.get(each.tensor) is AbsentTensor.SKIPPED and not each.is_optional for each in step.inputs)

    def start(self, flow: Flow, step: EnsembleStep) -> bool:
        """Send a step's request; the ensemble calls it when there is a slot. Returns False if nothing was sent."""
        if self._failure is not None:
            self._close_step()
            return False
        specs: list[TensorSpec] = []
        data: list[Buffer] = []
        sequence: SequenceFields | None = None
        for each in step.inputs:
            value = flow.get(each.tensor)
            if isinstance(value, Value):
                specs.append(each.fit(value.spec, from_batching=value.is_batched, to_batching=step.is_batching))
                data.append(value.data)
                sequence = sequence or value.sequence
        source = self.request
        header = self._ensemble.step_header(step, source.header, tuple(specs), sequence)
        sub = StepRequest(header, data, self._on_response, id=source.id, arrival_ns=time.monotonic_ns())
        sub.run, sub.flow, sub.step, sub.sequence_fields = self, flow, step, sequence
        sub.times = ExecutionTimes()
        sub.deadline_ns = source.deadline_ns
        self._steps.add(sub)
        try:
            self._ensemble.send(sub)
        except InferError as error:
            self._steps.discard(sub)
            self._ensemble.step_rejected(step)
            self.fail(_with_model_name(step, self._ensemble.rejection_of(step, error)))
            self._close_step()
            return False
        return True

    def _on_response(self, request: InferRequest, response: InferResponse) -> None:
        sub: StepRequest = request  # type: ignore[assignment]  # made in start
        self._busy += 1
        if response.final:
            # Before a failure cancels the open steps: this one is no longer open.
            self._steps.discard(sub)
            self._ensemble.step_completed(sub, has_failed=response.error is not None)
        if response.error is not None:
            self.fail(_with_model_name(sub.step, response.error))
        elif not response.empty_final and self._failure is None:
            self._take(sub, response)
        if response.final:
            if sub.times is not None:
                self._add_times(sub.times)
            self.open_count -= 1
            self._ensemble.step_ended(sub.step)
        self._leave()

    def _take(self, sub: StepRequest, response: InferResponse) -> None:
        flow, step = sub.flow, sub.step
        sequence = sub.sequence_fields
        if response.parameters and not _SEQUENCE_PARAMETERS.isdisjoint(response.parameters):
            try:
                sequence = _sequence_of(response.parameters, sub.header.sequence_id)
            except InferError as error:
                self.fail(_with_model_name(step, error))
                return
        values = {
            spec.name: Value(spec, data, is_batched=step.is_batching, sequence=sequence)
            for spec, data in zip(response.header.outputs, response.data, strict=True)
        }
        if step.is_decoupled:
            flow = Flow(flow.level | {step.index}, flow)
        self._settle(flow, step, values, AbsentTensor.LEFT_OUT)

    def _settle(self, flow: Flow, step: EnsembleStep, values: Mapping[str, Value], absent: AbsentTensor) -> None:
        """Put a step's outputs in place, `absent` for outputs without a value, and continue with the steps that need
        them.
        """
        for output, tensor in step.outputs.items():
            flow.put(tensor, values.get(output, absent))
        following = self.plan.following[step.index]
        if not self._ensemble.graph.is_decoupled:
            for reader in following:
                self._try(flow, reader)
            return
        for each in list(flow.tree()):
            for reader in following:
                self._try(each, reader)
            self._answer_if_complete(each)

    def _answer_if_complete(self, flow: Flow) -> None:
        if self._ensemble.graph.is_decoupled and flow.level == self.plan.output_level and self._is_complete(flow):
            if flow.is_answered:
                # A member that responds at once, a cached one, has completed the flow while its step was being
                # started.
                return
            flow.is_answered = True
            if self._failure is None and not self.has_ended:
                self._ensemble.answer(self, flow)
            flow.leave()

    def _is_complete(self, flow: Flow) -> bool:
        return all(flow.has(tensor) for tensor in self.plan.outputs)

    # --- the end ---------------------------------------------------------------------------------------------------

    def _close_step(self) -> None:
        """Note the end of a step that was not started."""
        self.open_count -= 1
        if not self._busy:
            self._busy += 1
            self._leave()

    def _leave(self) -> None:
        """End the run if no step is open and no outer call uses it."""
        self._busy -= 1
        if self._busy or self.open_count or self.has_ended:
            return
        self.has_ended = True
        failure = self._failure
        if failure is None and not self._ensemble.graph.is_decoupled:
            if self._is_complete(self.root):
                self._ensemble.answer(self, self.root)
            else:
                # Triton's text.
                failure = internal("unexpected deadlock, at least one output is not set")
        self._ensemble.end(self, failure)

    def fail(self, error: InferError) -> None:
        """Start no further steps, cancel the open ones, and fail with `error` when all have ended."""
        if self._failure is not None:
            return
        self._failure = error
        # The open steps have no use any more.
        self._busy += 1
        self.open_count -= len(self.waiting)
        self._ensemble.withdraw(self)
        for sub in list(self._steps):
            self._ensemble.cancel_step(sub)
        self._leave()

    def _add_times(self, times: ExecutionTimes) -> None:
        if not times.exec_start_ns:
            return
        if not self.first_exec_ns or times.exec_start_ns < self.first_exec_ns:
            self.first_exec_ns = times.exec_start_ns
        self.input_ns += times.compute_start_ns - times.exec_start_ns
        self.infer_ns += times.compute_end_ns - times.compute_start_ns
        self.output_ns += times.exec_end_ns - times.compute_end_ns


def _with_model_name(step: EnsembleStep, error: InferError) -> InferError:
    """Return the error of a step, with the name of its model: Triton's queue errors lack it."""
    if error.code is ErrorCode.CANCELLED or f"'{step.model_name}'" in error.message:
        return error
    return InferError(
        error.code, f"{error.message} (step of model '{step.model_name}')", detail=error.detail, reason=error.reason
    )


def _sequence_of(parameters: Mapping[str, ParameterValue], current_id: int | str) -> SequenceFields:
    """Return the sequence in the parameters of a member's response. Raises InferError(INVALID_ARG).

    Triton: a missing flag is false then, and a missing id is the current one.
    """
    sequence_id = parameters.get("sequence_id", current_id)
    if isinstance(sequence_id, bool | float):
        raise invalid_argument(
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING"
        )
    flags = [parameters.get(name, False) for name in ("sequence_start", "sequence_end")]
    for name, value in zip(("sequence_start", "sequence_end"), flags, strict=True):
        if not isinstance(value, bool):
            raise invalid_argument(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL")
    return SequenceFields(sequence_id, bool(flags[0]), bool(flags[1]))
