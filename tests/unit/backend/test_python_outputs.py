"""What a Python model may leave out, and what its answers are held against."""

from naiad.backend.python_outputs import OutputRules
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode
from naiad.core.request import RequestedOutput, RequestHeader
from naiad.core.tensor import TensorSpec
from support.engine_parts import Answers, request

ONE = [TensorSpec("ONE", DataType.FP32, (2,))]


def rules() -> OutputRules:
    config = ModelConfig(name="m")
    config.output.add(name="ONE", data_type="TYPE_FP32", dims=[2])
    config.output.add(name="TWO", data_type="TYPE_FP32", dims=[2])
    return OutputRules(config)


def test_a_model_may_leave_out_what_the_request_does_not_name() -> None:
    named = RequestHeader(model_name="m", outputs=[RequestedOutput("ONE")])
    for header in (RequestHeader(model_name="m"), named):
        assert rules().missing(request(Answers(), made=header), ONE) is None


def test_a_named_output_that_is_not_there_is_an_error() -> None:
    named = RequestHeader(model_name="m", outputs=[RequestedOutput("ONE"), RequestedOutput("TWO")])
    error = rules().missing(request(Answers(), made=named), ONE)
    assert error is not None
    assert error.code is ErrorCode.INTERNAL
    assert error.message == "model 'm' answered without output 'TWO', which the request asks for"


def test_an_answer_without_any_output_is_an_error() -> None:
    error = rules().missing(request(Answers(), made=RequestHeader(model_name="m")), [])
    assert error is not None
    assert error.code is ErrorCode.INTERNAL
    assert error.message == "model 'm' answered with none of its outputs: 'ONE', 'TWO'"
