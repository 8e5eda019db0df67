"""The rules by which an ensemble runs, each with members that answer when the test says so."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest
from google.protobuf import text_format

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.parameters import ParameterValue
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.engine.ensemble.ensemble_model import EnsembleModel
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from support.engine_parts import Answers, StepLoop

Step = tuple[str, Mapping[str, str], Mapping[str, str]]
"""Member, its inputs to tensors of the ensemble, its outputs to tensors of the ensemble."""


class Members:
    """Keeps the requests of steps, and answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[InferRequest] = []
        self.labels: dict[str, Mapping[str, Sequence[str]]] = {}
        """By the name of a member."""

    def submit(self, request: InferRequest) -> None:
        self.asked.append(request)

    def cancel(self, request: InferRequest) -> bool:
        request.cancelled = True
        return False

    def served(self, name: str, version: str = "") -> SimpleNamespace:
        return SimpleNamespace(labels=self.labels.get(name, {}))

    def names(self) -> list[str]:
        return [request.header.model_name for request in self.asked]

    def answer(self, name: str, data: bytes = b"abcd", *, without: str = "", **parameters: ParameterValue) -> None:
        """Answer the first step of a member that is open, with its outputs in the shape of its first input."""
        request = next(each for each in self.asked if each.header.model_name == name)
        self.asked.remove(request)
        wanted = [output.name for output in request.header.outputs if output.name != without]
        datatype = DataType.BOOL if name == "condition" else DataType.FP32
        specs = [TensorSpec(each, datatype, request.shape_of(0)) for each in wanted]
        header = ResponseHeader(name, "1", specs)
        request.on_response(request, InferResponse(header, [data] * len(specs), parameters=parameters))


def member(name: str, *, rows: int = 0, inputs: Sequence[str] = ("X",), optional: Sequence[str] = ()) -> ModelConfig:
    config = ModelConfig(name=name, max_batch_size=rows)
    for each in (*inputs, *optional):
        config.input.add(name=each, data_type="TYPE_FP32", dims=[1], optional=each in optional)
    kind = "TYPE_BOOL" if name == "condition" else "TYPE_FP32"
    config.output.add(name="Y", data_type=kind, dims=[1])
    return config


def ensemble(
    members: Members,
    configs: Sequence[ModelConfig],
    steps: Sequence[Step],
    *,
    outputs: Sequence[str] = ("OUT",),
    optional: Sequence[str] = (),
    rows: int = 0,
    extra: str = "",
    labels: Mapping[str, Sequence[str]] | None = None,
) -> EnsembleModel:
    config = ModelConfig(name="e", max_batch_size=rows)
    text_format.Merge(extra, config)
    for each in ("IN", *optional):
        config.input.add(name=each, data_type="TYPE_FP32", dims=[1], optional=each in optional)
    for each in outputs:
        config.output.add(name=each, data_type="TYPE_FP32", dims=[1])
    for name, reads, writes in steps:
        step = config.ensemble_scheduling.step.add(model_name=name, model_version=-1)
        step.input_map.update(reads)
        step.output_map.update(writes)
    return EnsembleModel(
        name="e",
        version=1,
        config=config,
        members={config.name: config for config in configs},
        router=members,
        statistics=ModelStatistics("e", "1"),
        loop=StepLoop(),
        labels=labels,
    )


def ask(model: EnsembleModel, *, shape: tuple[int, ...] = (1,), **fields: object) -> Answers:
    answers = Answers()
    header = RequestHeader(model_name="e", inputs=[TensorSpec("IN", DataType.FP32, shape)], **fields)  # type: ignore[arg-type]
    model.submit(InferRequest(header, [b"abcd"], answers, id="mine", arrival_ns=1))
    return answers


def test_step_begins_with_its_inputs_and_branches_overlap() -> None:
    # E1
    members = Members()
    steps = [
        ("last", {"X": "l", "Z": "r"}, {"Y": "OUT"}),
        ("left", {"X": "IN"}, {"Y": "l"}),
        ("right", {"X": "IN"}, {"Y": "r"}),
    ]
    answers = ask(ensemble(members, [member("left"), member("right"), member("last", inputs=("X", "Z"))], steps))
    assert sorted(members.names()) == ["left", "right"]
    members.answer("right")
    assert members.names() == ["left"]
    members.answer("left")
    assert members.names() == ["last"]
    assert not answers.received
    members.answer("last", b"done")
    assert [bytes(response.data[0]) for _, response in answers.received] == [b"done"]


def test_batch_dimension_is_removed_for_unbatched_members() -> None:
    # E3
    members = Members()
    steps = [("single", {"X": "IN"}, {"Y": "t"}), ("batching", {"X": "t"}, {"Y": "OUT"})]
    model = ensemble(members, [member("single"), member("batching", rows=4)], steps, rows=4)
    answers = ask(model, shape=(1, 1))
    assert members.asked[0].shape_of(0) == (1,)
    members.answer("single")
    assert members.asked[0].shape_of(0) == (1, 1)
    members.answer("batching")
    assert answers.received[0][1].header.outputs[0].shape == (1, 1)


def test_output_that_contradicts_its_reshape_is_an_error() -> None:
    members = Members()
    steps = [("single", {"X": "IN"}, {"Y": "OUT"})]
    model = ensemble(members, [member("single")], steps, outputs=())
    config = ModelConfig()
    config.CopyFrom(model.config)
    output = config.output.add(name="OUT", data_type="TYPE_FP32", dims=[2, 2])
    output.reshape.shape.append(4)
    model = EnsembleModel(
        name="e",
        version=1,
        config=config,
        members={"single": member("single")},
        router=members,
        statistics=ModelStatistics("e", "1"),
        loop=StepLoop(),
    )
    answers = ask(model)
    members.answer("single")
    ((_, response),) = answers.received
    assert response.error is not None
    assert "its 'reshape' is written for [4]" in response.error.message
    assert model.in_flight_count == 0


def test_request_parameters_go_to_every_step() -> None:
    # E4
    members = Members()
    steps = [("one", {"X": "IN"}, {"Y": "t"}), ("two", {"X": "t"}, {"Y": "OUT"})]
    fields = {
        "parameters": {"color": "red"},
        "priority": 3,
        "timeout_us": 500,
        "sequence_id": 42,
        "sequence_start": True,
        "sequence_end": True,
    }
    ask(ensemble(members, [member("one"), member("two")], steps), **fields)
    for name in ("one", "two"):
        (step,) = members.asked
        assert step.id == "mine"
        assert {field: getattr(step.header, field) for field in fields} == fields
        members.answer(name)


def test_step_without_its_input_is_skipped_with_dependents() -> None:
    # E5
    members = Members()
    steps = [
        ("always", {"X": "IN", "Z": "EXTRA"}, {"Y": "OUT"}),
        ("sometimes", {"X": "EXTRA"}, {"Y": "t"}),
        ("after", {"X": "t"}, {"Y": "MORE"}),
    ]
    configs = [member("always", optional=("Z",)), member("sometimes"), member("after")]
    answers = ask(ensemble(members, configs, steps, outputs=("OUT", "MORE"), optional=("EXTRA",)))
    assert members.names() == ["always"]
    assert [spec.name for spec in members.asked[0].header.inputs] == ["X"]
    members.answer("always")
    assert [spec.name for spec in answers.received[0][1].header.outputs] == ["OUT"]


def test_a_condition_that_is_false_skips_its_step() -> None:
    # E6
    steps = [("condition", {"X": "IN"}, {"Y": "c"}), ("step", {"X": "IN"}, {"Y": "OUT"})]
    for value, expected in ((b"\x00", []), (b"\x01", ["step"])):
        members = Members()
        condition = 'parameters { key: "run_if.step" value { string_value: "c" } }'
        answers = ask(ensemble(members, [member("condition"), member("step")], steps, extra=condition))
        assert members.names() == ["condition"]
        members.answer("condition", value)
        assert members.names() == expected
        assert bool(answers.received) is not bool(expected)


def test_concurrent_requests_of_a_step_are_limited() -> None:
    # E8
    members = Members()
    model = ensemble(
        members,
        [member("one")],
        [("one", {"X": "IN"}, {"Y": "OUT"})],
        extra="ensemble_scheduling { max_inflight_requests: 2 }",
    )
    requests = [ask(model) for _ in range(5)]
    assert len(members.asked) == 2
    for _ in range(5):
        members.answer("one")
        assert len(members.asked) <= 2
    assert [len(answers) for answers in requests] == [1] * 5


# --- outputs that are needed, and outputs that do not come ----------------------------------------------------------

FORK = [
    ("first", {"X": "IN"}, {"Y": "OUT", "Z": "t"}),
    ("second", {"X": "t"}, {"Y": "MORE"}),
    ("third", {"X": "OUT", "Z": "t"}, {"Y": "LAST"}),
]


def fork(members: Members) -> EnsembleModel:
    configs = [member("first"), member("second"), member("third", optional=("Z",))]
    return ensemble(members, configs, FORK, outputs=("OUT", "MORE", "LAST"))


@pytest.mark.parametrize(
    ("wanted", "started"),
    [
        (("OUT",), []),
        (("MORE",), ["second"]),
        (("LAST", "OUT"), ["third"]),
        ((), ["second", "third"]),
    ],
)
def test_only_needed_steps_run(wanted: Sequence[str], started: list[str]) -> None:
    members = Members()
    answers = ask(fork(members), outputs=[RequestedOutput(name) for name in wanted])
    assert members.names() == ["first"]
    members.answer("first")
    assert members.names() == started
    for name in started:
        members.answer(name)
    ((_, response),) = answers.received
    assert tuple(spec.name for spec in response.header.outputs) == (wanted or ("OUT", "MORE", "LAST"))


def test_missing_output_reaches_its_readers_as_absent() -> None:
    members = Members()
    answers = ask(fork(members), outputs=[RequestedOutput("LAST"), RequestedOutput("OUT")])
    members.answer("first", without="Z")
    (third,) = members.asked
    assert [spec.name for spec in third.header.inputs] == ["X"]
    members.answer("third")
    assert [spec.name for spec in answers.received[0][1].header.outputs] == ["LAST", "OUT"]


def test_missing_output_reaches_a_member_that_requires_it() -> None:
    # Triton: the member refuses the request then, and says which input is missing.
    members = Members()
    ask(fork(members), outputs=[RequestedOutput("MORE")])
    members.answer("first", without="Z")
    (second,) = members.asked
    assert not second.header.inputs


def test_missing_output_of_the_ensemble_is_left_out() -> None:
    members = Members()
    answers = ask(fork(members), outputs=[RequestedOutput("OUT"), RequestedOutput("MORE")])
    members.answer("first", without="Y")
    members.answer("second")
    assert [spec.name for spec in answers.received[0][1].header.outputs] == ["MORE"]


def test_response_without_any_requested_output_is_an_error() -> None:
    members = Members()
    answers = ask(fork(members), outputs=[RequestedOutput("OUT")])
    members.answer("first", without="Y")
    error = answers.received[0][1].error
    assert error is not None
    assert error.message == "in ensemble 'e', its models returned none of its outputs: 'OUT'"


# --- sequences ------------------------------------------------------------------------------------------------------

PAIR = [("one", {"X": "IN"}, {"Y": "t"}), ("two", {"X": "t"}, {"Y": "OUT"})]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (0, False, False)),
        ({"sequence_id": 7, "sequence_start": True}, (7, True, False)),
        ({"sequence_id": "a", "sequence_end": True}, ("a", False, True)),
        ({"sequence_id": 2**64 - 1}, (-1, False, False)),
    ],
)
def test_response_has_the_sequence_of_its_request(fields: dict[str, object], expected: tuple[object, ...]) -> None:
    members = Members()
    answers = ask(ensemble(members, [member("one"), member("two")], PAIR), **fields)
    members.answer("one")
    members.answer("two")
    names = ("sequence_id", "sequence_start", "sequence_end")
    assert answers.received[0][1].parameters == dict(zip(names, expected, strict=True))


def test_sequence_of_member_response_replaces_the_requests_one() -> None:
    members = Members()
    model = ensemble(members, [member("one"), member("two")], PAIR)
    answers = ask(model, sequence_id=5, sequence_start=True)
    members.answer("one", sequence_end=True, other=1)
    header = members.asked[0].header
    assert (header.sequence_id, header.sequence_start, header.sequence_end) == (5, False, True)
    members.answer("two")
    expected = {"sequence_id": 5, "sequence_start": False, "sequence_end": True}
    assert answers.received[0][1].parameters == expected
    ask(model, sequence_id=5, sequence_start=True)
    members.answer("one")
    assert members.asked[0].header.sequence_start, "the next request has its own sequence"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"sequence_id": True}, "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or"),
        ({"sequence_start": 1}, "expect parameter 'sequence_start' to be TRITONSERVER_PARAMETER_BOOL"),
    ],
)
def test_mistyped_sequence_of_a_member_is_an_error(parameters: dict[str, ParameterValue], message: str) -> None:
    members = Members()
    answers = ask(ensemble(members, [member("one"), member("two")], PAIR))
    members.answer("one", **parameters)
    error = answers.received[0][1].error
    assert error is not None
    assert message in error.message


# --- labels ---------------------------------------------------------------------------------------------------------


def test_output_without_labels_has_member_labels() -> None:
    members = Members()
    members.labels = {"first": {"Y": ["cat", "dog"]}, "second": {"Y": ["no", "yes"]}}
    configs = [member("first"), member("second"), member("third", optional=("Z",))]
    model = ensemble(members, configs, FORK, outputs=("OUT", "MORE", "LAST"), labels={"MORE": ["own"]})
    assert model.labels == {"OUT": ["cat", "dog"], "MORE": ["own"], "LAST": ()}
