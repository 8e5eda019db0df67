"""Admission says what Triton says, in Triton's order."""

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader
from naiad.core.tensor import TensorSpec, encode_bytes_elements
from naiad.engine.admission import AdmissionRules
from support.engine_parts import Answers, config, header, request

FP32 = DataType.FP32


def refusal(made: ModelConfig, bad: RequestHeader, request_id: str = "") -> InferError:
    with pytest.raises(InferError) as caught:
        AdmissionRules(made).admit(request(Answers(), request_id, bad))
    return caught.value


def test_admits_a_request_with_its_rows() -> None:
    rules = AdmissionRules(config())
    admission = rules.admit(request(Answers(), made=header(rows=3)))
    assert admission.batch_size == 3
    assert admission.data_sizes == (24,)
    assert admission.rules is rules


def test_model_without_outputs_lists_none() -> None:
    made = config()
    made.ClearField("output")
    inputs = [TensorSpec("IN", FP32, (1, 2))]
    bad = RequestHeader(model_name="m", inputs=inputs, outputs=[RequestedOutput("OUT")])
    assert refusal(made, bad).message.endswith("unexpected inference output 'OUT' for model 'm'; it has no outputs")


@pytest.mark.parametrize("rows", range(9))
def test_batches_of_every_size_are_admitted(rows: int) -> None:
    # Triton: a batch may have no rows.
    assert AdmissionRules(config(max_batch_size=8)).admit(request(Answers(), made=header(rows))).batch_size == rows


def test_shape_key_ignores_rows_and_ragged_inputs() -> None:
    # B4
    made = config()
    made.input.add(name="RAGGED", data_type="TYPE_FP32", dims=[-1], allow_ragged_batch=True)
    rules = AdmissionRules(made)

    def key(rows: int, length: int) -> object:
        specs = [TensorSpec("IN", FP32, (rows, 2)), TensorSpec("RAGGED", FP32, (rows, length))]
        return rules.admit(request(Answers(), made=RequestHeader(model_name="m", inputs=specs))).shape_key

    assert key(1, 5) == key(4, 9)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (header(rows=9), "inference request batch-size must be <= 8 for 'm'"),
        (header(datatype=DataType.INT32), "inference input 'IN' data-type is 'INT32', but model 'm' expects 'FP32'"),
        (header(width=3), "unexpected shape for input 'IN' for model 'm'. Expected [-1,2], got [1,3]. NOTE"),
        (header(name="X"), "unexpected inference input 'X' for model 'm'; its inputs are 'IN'"),
        (
            RequestHeader(model_name="m"),
            "expected 1 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing required input(s) ['IN']."
            " Please provide all required input(s).",
        ),
        (
            RequestHeader(model_name="m", inputs=[TensorSpec("IN", FP32, ())]),
            "input 'IN' has no shape but model requires batch dimension for 'm'",
        ),
        (
            RequestHeader(model_name="m", inputs=[TensorSpec("IN", FP32, (1, -1))]),
            "All input dimensions should be specified",
        ),
        (
            RequestHeader(model_name="m", inputs=[TensorSpec("IN", FP32, (1, 2))], outputs=[RequestedOutput("NO")]),
            "unexpected inference output 'NO' for model 'm'; its outputs are 'OUT'",
        ),
    ],
)
def test_refuses_with_triton_text(bad: RequestHeader, message: str) -> None:
    # B15
    error = refusal(config(), bad, "r1")
    assert error.code is ErrorCode.INVALID_ARG
    assert message in error.message
    assert error.message.startswith(message if message.startswith("unexpected inf") else "[request id: r1] ")


def test_message_of_a_request_without_id_says_unknown() -> None:
    assert refusal(config(), header(rows=9)).message.startswith("[request id: <id_unknown>] ")


def test_optional_inputs_change_the_count_message() -> None:
    made = config()
    made.input.add(name="MAYBE", data_type="TYPE_FP32", dims=[1], optional=True)
    assert (
        "expected number of inputs between 1 and 2 but got 0" in refusal(made, RequestHeader(model_name="m")).message
    )


@pytest.mark.parametrize("size", [0, 7, 9, 16])
def test_size_of_data_is_checked_for_every_request(size: int) -> None:
    rules = AdmissionRules(config())
    good = request(Answers())
    admission = rules.admit(good)
    rules.check_sizes(good, admission)
    wrong = InferRequest(good.header, [bytes(size)], Answers())
    message = f"input byte size mismatch for input 'IN' for model 'm'. Expected 8, got {size}"
    with pytest.raises(InferError, match=message):
        rules.check_sizes(wrong, admission)


def test_string_elements_are_counted() -> None:
    made = ModelConfig(name="m", max_batch_size=0)
    made.input.add(name="IN", data_type="TYPE_STRING", dims=[2])
    rules = AdmissionRules(made)
    spec = RequestHeader(model_name="m", inputs=[TensorSpec("IN", DataType.BYTES, (2,))])
    admission = rules.admit(InferRequest(spec, [b""], Answers()))
    rules.check_sizes(InferRequest(spec, [encode_bytes_elements([b"a", b""])], Answers()), admission)
    with pytest.raises(InferError, match="expected 2 string elements"):
        rules.check_sizes(InferRequest(spec, [encode_bytes_elements([b"a"])], Answers()), admission)
    with pytest.raises(
        InferError, match="unexpected number of string elements 3 for inference input 'IN' for model 'm', expecting 2"
    ):
        rules.check_sizes(InferRequest(spec, [encode_bytes_elements([b"a", b"", b""])], Answers()), admission)
    with pytest.raises(
        InferError,
        match="incomplete string length indicator for inference input 'IN' for model 'm', expecting 4 bytes but",
    ):
        rules.check_sizes(InferRequest(spec, [b"\0\0\0"], Answers()), admission)
    with pytest.raises(
        InferError,
        match="incomplete string data for inference input 'IN' for model 'm', expecting string of length 4294967295",
    ):
        rules.check_sizes(InferRequest(spec, [b"\xff\xff\xff\xffa"], Answers()), admission)
