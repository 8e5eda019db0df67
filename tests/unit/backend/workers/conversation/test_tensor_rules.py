"""What a Python model may leave out, and what its answers are held against."""

import pytest

from naiad.backend.workers.conversation.server_codec import BatchResponseDecoder
from naiad.backend.workers.conversation.tensor_rules import ANY_ROWS, TensorRules
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode
from naiad.core.request import RequestedOutput, RequestHeader
from naiad.core.tensor import TensorSpec
from naiad.worker.channel.frame import EXECUTED, Frame
from support.engine_parts import Answers, request

ONE = [TensorSpec("ONE", DataType.FP32, (2,))]


def rules() -> TensorRules:
    config = ModelConfig(name="m")
    config.output.add(name="ONE", data_type="TYPE_FP32", dims=[2])
    config.output.add(name="TWO", data_type="TYPE_FP32", dims=[2])
    return TensorRules(config)


def test_model_may_omit_unrequested_outputs() -> None:
    named = RequestHeader(model_name="m", outputs=[RequestedOutput("ONE")])
    for header in (RequestHeader(model_name="m"), named):
        assert rules().missing(request(Answers(), made=header), ONE) is None


def test_missing_requested_output_is_error() -> None:
    named = RequestHeader(model_name="m", outputs=[RequestedOutput("ONE"), RequestedOutput("TWO")])
    error = rules().missing(request(Answers(), made=named), ONE)
    assert error is not None
    assert error.code is ErrorCode.INTERNAL
    assert error.message == "model 'm' answered without output 'TWO', which the request asks for"


def test_an_answer_without_any_output_is_an_error() -> None:
    error = rules().missing(request(Answers(), made=RequestHeader(model_name="m")), [])
    assert error is not None
    assert error.code is ErrorCode.INTERNAL
    assert error.message == "model 'm' returned none of its outputs: 'ONE', 'TWO'"


def test_empty_answer_names_only_requested_outputs() -> None:
    named = RequestHeader(model_name="m", outputs=[RequestedOutput("TWO")])
    error = rules().missing(request(Answers(), made=named), [])
    assert error is not None
    assert error.message == "model 'm' returned none of the outputs that the request asks for: 'TWO'"


# --- answers that are not what the configuration says ---------------------------------------------------------------


def out(datatype: DataType, *shape: int) -> list[TensorSpec]:
    return [TensorSpec("OUT", datatype, shape)]


def batching(
    *, is_strict: bool = False, target: list[int] | None = None, dims: tuple[int, ...] = (2,)
) -> TensorRules:
    config = ModelConfig(name="m", max_batch_size=4)
    config.input.add(name="IN", data_type="TYPE_FP32", dims=dims)
    output = config.output.add(name="OUT", data_type="TYPE_FP32", dims=dims)
    if target is not None:
        config.input[0].reshape.shape.extend(target)
        output.reshape.shape.extend(target)
    return TensorRules(config, version="3", is_strict=is_strict)


UNEXPECTED = [
    (out(DataType.INT64, 1, 2), "datatype INT64, but its configuration says FP32"),
    (out(DataType.FP32, 1, 3), "shape [1,3], but its configuration says [-1,2]"),
    (out(DataType.FP32, 1, 2, 1), "shape [1,2,1], but its configuration says [-1,2]"),
    (out(DataType.FP32), "shape [], but its configuration says [-1,2]"),
]


@pytest.mark.parametrize(("specs", "said"), UNEXPECTED)
def test_unexpected_outputs_are_passed_on_with_one_warning(specs, said, caplog) -> None:
    made = batching()
    assert [made.problem_of(specs), made.problem_of(specs)] == ["", ""]
    assert made.client_specs(specs) == specs
    (record,) = caplog.records
    assert f"model 'm' answered output 'OUT' with {said} (version 3)" in record.getMessage()
    assert "parameter 'strict_outputs' makes such answers errors" in record.getMessage()


@pytest.mark.parametrize(("specs", "said"), UNEXPECTED)
def test_strict_mode_refuses_unexpected_outputs(specs, said, caplog) -> None:
    assert batching(is_strict=True).problem_of(specs) == f"model 'm' answered output 'OUT' with {said}"
    assert not caplog.records


def test_one_warning_names_datatype_and_shape(caplog) -> None:
    batching().problem_of(out(DataType.BYTES, 1, 5))
    assert "with datatype BYTES, but its configuration says FP32; with shape [1,5], but" in caplog.text


def test_expected_outputs_are_not_logged(caplog) -> None:
    assert batching().problem_of(out(DataType.FP32, 3, 2)) == ""
    assert not caplog.records


def test_other_batch_sizes_are_passed_on(caplog) -> None:
    asked = request(Answers(), made=RequestHeader(model_name="m"))
    assert batching().wrong_rows(asked, out(DataType.FP32, 5, 2)) is None
    assert "with outputs of other batch sizes: 'OUT' [5,2]" in caplog.text
    error = batching(is_strict=True).wrong_rows(asked, out(DataType.FP32, 5, 2))
    assert error is not None
    assert error.code is ErrorCode.INTERNAL


def test_outputs_without_rows_are_another_batch_size() -> None:
    assert batching().rows_of(out(DataType.FP32, 0, 2)) == 0
    assert batching().rows_of([]) == rules().rows_of(ONE) == ANY_ROWS
    decoder = BatchResponseDecoder("m", "1", batching(is_strict=True))
    described = {"headers": [(1, [("OUT", "FP32", (0, 2))])]}
    for rows, has_failed in ((1, True), (0, False)):
        asked = request(Answers(), made=RequestHeader(model_name="m"))
        asked.batch_size = rows
        frame = Frame(EXECUTED, (1,), "", described, b"", 0, 0, 0)
        (response,) = decoder.decode(frame, [asked])
        assert (response.error is not None) is has_failed


def test_shapes_of_a_decoupled_model_may_vary(caplog) -> None:
    for is_strict in (False, True):
        assert batching(is_strict=is_strict).problem_of(out(DataType.FP32, 7), is_decoupled=True) == ""
    assert not caplog.records
    assert "INT8" in batching(is_strict=True).problem_of(out(DataType.INT8, 1, 2), is_decoupled=True)


def test_states_keep_the_datatype_of_the_configuration() -> None:
    config = ModelConfig(name="m")
    state = config.sequence_batching.state.add(input_name="S", output_name="OUT", data_type="TYPE_FP32", dims=[2])
    assert state.data_type
    assert "datatype INT8" in TensorRules(config).problem_of(out(DataType.INT8, 2))


# --- reshape --------------------------------------------------------------------------------------------------------


def test_reshape_counts_for_the_model_and_the_client(caplog) -> None:
    made = batching(dims=(2, -1), target=[1, 2, -1])
    assert made.model_shape(TensorSpec("IN", DataType.FP32, (3, 2, 5))) == (3, 1, 2, 5)
    answered = out(DataType.FP32, 3, 1, 2, 5)
    assert made.problem_of(answered) == ""
    assert made.client_specs(answered) == out(DataType.FP32, 3, 2, 5)
    assert not caplog.records


def test_mismatched_reshape_is_error(caplog) -> None:
    made = batching(target=[2, 1])
    said = made.problem_of(out(DataType.FP32, 1, 3))
    assert said.startswith("output tensor shape does not match size of output for 'OUT'")
    # The shape of clients instead of the model's has as many elements.
    assert made.problem_of(out(DataType.FP32, 1, 2)) == ""
    assert made.client_specs(out(DataType.FP32, 1, 2)) == out(DataType.FP32, 1, 2)
    assert "shape [1,2], but its configuration says [-1,2,1]" in caplog.text
