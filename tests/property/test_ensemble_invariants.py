"""For all ensembles and actions of members, each request gets its own response once."""

import re

from google.protobuf import text_format
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, FailureReason, InferError, unavailable
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.engine.ensemble.ensemble_model import EnsembleModel
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from support.engine_parts import StepLoop
from support.long_run import examples

MEMBER = """
  name: "%s" max_batch_size: 0 model_transaction_policy { decoupled: %s }
  input { name: "X0" data_type: TYPE_STRING dims: [ 1 ] }
  input { name: "X1" data_type: TYPE_STRING dims: [ 1 ] optional: true }
  output [ { name: "Y" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
SPEC = TensorSpec("Y", DataType.BYTES, (1,))


class Members:
    """Accepts the requests of steps. It responds on command, or at once; it may reject."""

    def __init__(self) -> None:
        self.open: list[InferRequest] = []
        self.emitted: dict[InferRequest, int] = {}
        self.started: list[tuple[str, int]] = []
        self.over: set[str] = set()
        """Requests of the ensemble of which no further step may start."""
        self.refusals = 0
        self.instant = 0
        self.drops = False
        """Whether steps wait in their members, so that a cancelled one is answered at once."""

    def submit(self, request: InferRequest) -> None:
        assert request.step in request.run.plan.steps, "a step was started that no requested output needs"
        assert request.id not in self.over, "a step started although its request has failed or was cancelled"
        if self.refusals:
            self.refusals -= 1
            self.over.add(request.id)
            raise unavailable("the queue is full")
        self.started.append((request.id, request.step.index))
        self.open.append(request)
        self.emitted[request] = 0
        if self.instant:
            self.instant -= 1
            self.answer(request)

    def cancel(self, request: InferRequest) -> bool:
        assert request in self.open, "a step was cancelled that had ended"
        request.cancelled = True
        if self.drops:
            self.fail(request, InferError(ErrorCode.CANCELLED, "", reason=FailureReason.CANCELED))
        return self.drops

    def served(self, name: str, version: str = "") -> None:
        raise AssertionError("not used here")

    def answer(self, request: InferRequest) -> None:
        """Respond with the source of the data; a decoupled member continues afterwards."""
        step, given = request.step, b",".join(bytes(data)[4:] for data in request.data)
        text = b"%d#%d(%s)" % (step.index, self.emitted[request], given)
        self.emitted[request] += 1
        if not step.is_decoupled:
            self.open.remove(request)
        header = ResponseHeader(step.model_name, "1", (SPEC,))
        response = InferResponse(header, [len(text).to_bytes(4, "little") + text], final=not step.is_decoupled)
        request.on_response(request, response)

    def finish(self, request: InferRequest) -> None:
        self.open.remove(request)
        header = ResponseHeader("stream", "1", ())
        request.on_response(request, InferResponse(header, final=True, empty_final=True))

    def fail(self, request: InferRequest, error: InferError) -> None:
        self.over.add(request.id)
        self.open.remove(request)
        request.on_response(request, InferResponse(ResponseHeader("m", "1", ()), error=error))


def graph_config(steps: list[tuple[set[int], bool]], limit: int) -> ModelConfig:
    """Make an ensemble of steps that read what earlier ones write; unread tensors are outputs."""
    written, read = [], set()
    for index, (wanted, is_decoupled) in enumerate(steps):
        sources = sorted({f"t{number % index}" if index and number else "IN" for number in wanted}) or ["IN"]
        read.update(sources)
        inputs = " ".join(f'input_map {{ key: "X{i}" value: "{name}" }}' for i, name in enumerate(sources[:2]))
        written.append(
            f'step {{ model_name: "{"stream" if is_decoupled else "plain"}" model_version: -1 {inputs} '
            f'output_map {{ key: "Y" value: "t{index}" }} }}'
        )
    outputs = [f"t{index}" for index in range(len(steps)) if f"t{index}" not in read]
    tensors = " ".join(f'output {{ name: "{name}" data_type: TYPE_STRING dims: [ 1 ] }}' for name in outputs)
    is_decoupled = any(decoupled for _, decoupled in steps)
    text = (
        f'name: "e" max_batch_size: 0 input {{ name: "IN" data_type: TYPE_STRING dims: [ 1 ] }} {tensors} '
        f"model_transaction_policy {{ decoupled: {str(is_decoupled).lower()} }} "
        f"ensemble_scheduling {{ max_inflight_requests: {limit} {' '.join(written)} }}"
    )
    return text_format.Parse(text, ModelConfig())


class EnsembleMachine(RuleBasedStateMachine):
    """Clients, one ensemble, and members that answer in any order."""

    @initialize(
        steps=st.lists(
            st.tuples(st.sets(st.integers(0, 5), min_size=1, max_size=2), st.booleans()), min_size=1, max_size=5
        ),
        limit=st.sampled_from([0, 0, 1, 2]),
        may_stream=st.booleans(),
    )
    def start(self, steps, limit, may_stream):
        self.members = Members()
        config = graph_config([(wanted, decoupled and may_stream) for wanted, decoupled in steps], limit)
        known = {
            name: text_format.Parse(MEMBER % (name, str(name == "stream").lower()), ModelConfig())
            for name in ("plain", "stream")
        }
        try:
            self.model = EnsembleModel(
                name="e",
                version=1,
                config=config,
                members=known,
                router=self.members,
                statistics=ModelStatistics("e", "1"),
                loop=StepLoop(),
            )
        except InferError as error:
            assume("originated from different decoupled models" not in error.message)
            raise
        self.limit = limit
        self.asked: dict[str, InferRequest] = {}
        self.final: dict[str, InferResponse] = {}
        self.answers: dict[str, list[str]] = {}

    def on_response(self, request, response):
        assert request.id not in self.final, "a request was answered after its final response"
        if response.final:
            self.final[request.id] = response
        if response.error is not None or response.empty_final:
            return
        texts = [bytes(data)[4:].decode() for data in response.data]
        wanted = [output.name for output in request.header.outputs] or self.model.graph.outputs
        assert [spec.name for spec in response.header.outputs] == wanted
        whole = " ".join(texts)
        assert set(re.findall(r"r\d+", whole)) == {request.id}, "data of another request"
        for step in self.model.graph.steps:
            used = set(re.findall(rf"\b{step.index}#(\d+)", whole))
            assert len(used) <= 1, "responses of a decoupled member were mixed"
        self.answers.setdefault(request.id, []).append(whole)

    # --- clients --------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def ask(self, data):
        wanted = data.draw(st.lists(st.sampled_from(self.model.graph.outputs), unique=True))
        name = f"r{len(self.asked)}"
        content = len(name).to_bytes(4, "little") + name.encode()
        header = RequestHeader(
            model_name="e",
            inputs=[TensorSpec("IN", DataType.BYTES, (1,))],
            outputs=[RequestedOutput(output) for output in wanted],
        )
        request = InferRequest(header, [content], self.on_response, id=name, arrival_ns=1)
        self.asked[name] = request
        self.model.submit(request)

    @rule(data=st.data(), drops=st.booleans())
    def cancel(self, data, drops):
        if not self.asked:
            return
        request = self.asked[data.draw(st.sampled_from(sorted(self.asked)))]
        self.members.drops = drops
        was_over = request.id in self.final
        if not was_over:
            self.members.over.add(request.id)
        done = self.model.cancel(request)
        self.members.drops = False
        assert not (was_over and done)
        if done:
            assert self.final[request.id].error.code is ErrorCode.CANCELLED

    # --- members --------------------------------------------------------------------------------------------------

    @rule(data=st.data(), refusals=st.sampled_from([0, 0, 0, 1]), instant=st.sampled_from([0, 0, 1, 3]))
    def answer(self, data, refusals, instant):
        if self.members.open:
            self.members.refusals, self.members.instant = refusals, instant
            self.members.answer(data.draw(st.sampled_from(self.members.open)))
            self.members.refusals = self.members.instant = 0

    @rule(data=st.data())
    def finish(self, data):
        streams = [request for request in self.members.open if request.step.is_decoupled]
        if streams:
            self.members.finish(data.draw(st.sampled_from(streams)))

    @rule(data=st.data(), drops=st.booleans())
    def fail(self, data, drops):
        if self.members.open:
            self.members.drops = drops
            self.members.fail(data.draw(st.sampled_from(self.members.open)), unavailable("broken"))
            self.members.drops = False

    # --- at any time ----------------------------------------------------------------------------------------------

    @invariant()
    def steps_are_within_limits(self):
        if not hasattr(self, "model"):
            return
        for step in self.model.graph.steps:
            count = sum(request.step.index == step.index for request in self.members.open)
            assert not self.limit or count <= self.limit
            assert self.limit or not step.level or count <= 64
        if not self.model.is_decoupled:
            assert len(set(self.members.started)) == len(self.members.started), "a step was executed twice"

    @invariant()
    def no_request_waits_for_nothing(self):
        if hasattr(self, "model"):
            waiting = self.asked.keys() - self.final.keys()
            assert self.model.in_flight_count == len(waiting)
            assert bool(waiting) == bool(self.members.open), "a request waits although none of its steps executes"

    def teardown(self):
        """Let the members answer everything."""
        if not hasattr(self, "model"):
            return
        failed = set(self.members.over)
        while self.members.open:
            request = self.members.open[0]
            if request.step.is_decoupled and (self.members.emitted[request] or request.id in failed):
                self.members.finish(request)
            else:
                self.members.answer(request)
        assert self.final.keys() == self.asked.keys(), "a request was never answered"
        assert (self.model.pending_count, self.model.in_flight_count) == (0, 0)
        for name, response in self.final.items():
            if name in failed:
                assert response.error is not None
            else:
                assert response.error is None
                assert len(set(self.answers.get(name, ()))) == len(self.answers.get(name, ()))
                assert self.model.is_decoupled or len(self.answers[name]) == 1


TestEnsembles = EnsembleMachine.TestCase
TestEnsembles.settings = settings(max_examples=examples(150), stateful_step_count=30)
