"""Responses of streams against the protobuf library."""

import pytest

from naiad.core.datatype import DataType
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.protocol.grpc.infer import (
    encode_executor,
    encode_failure,
    encode_refusal,
    encode_response,
    encode_stream_response,
)
from naiad.protocol.service_pb2 import ModelInferResponse, ModelStreamInferResponse


def parse(*parts):
    return ModelStreamInferResponse.FromString(b"".join(parts))


@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("size", [0, 1, 100, 127, 128, 900, 1000, 20_000, 70_000, 300_000])
@pytest.mark.parametrize("request_id", ["", "7", "x" * 300])
def test_stream_response_is_unary_response_with_marker(final, size, request_id):
    header = ResponseHeader("m", "3", [TensorSpec("y", DataType.UINT8, (size,))])
    response = InferResponse(header, [bytes(size)], final=final, parameters={"mine": "p"})
    encoded = parse(*encode_stream_response(request_id, response))
    expected = ModelInferResponse.FromString(b"".join(encode_response(request_id, response)))
    expected.parameters["triton_final_response"].bool_param = final
    assert encoded.infer_response == expected
    assert encoded.error_message == ""


def test_false_is_written_explicitly():
    header = ResponseHeader("m", "1", ())
    encoded = parse(*encode_stream_response("", InferResponse(header, final=False)))
    parameter = encoded.infer_response.parameters["triton_final_response"]
    assert parameter.WhichOneof("parameter_choice") == "bool_param"


def test_unary_responses_have_no_marker():
    header = ResponseHeader("m", "1", ())
    parsed = ModelInferResponse.FromString(b"".join(encode_response("", InferResponse(header))))
    assert not parsed.parameters


def test_executor():
    response = parse(encode_executor("7", "m", "")).infer_response
    assert (response.id, response.model_name, response.model_version) == ("7", "m", "")
    assert response.parameters["triton_final_response"].bool_param is True


def test_refusal_has_an_id_and_nothing_else():
    assert parse(encode_refusal("7", "no")) == ModelStreamInferResponse(
        error_message="no", infer_response=ModelInferResponse(id="7")
    )
    assert parse(encode_refusal("", "no")).HasField("infer_response")


@pytest.mark.parametrize("final", [True, False])
def test_failure(final):
    parsed = parse(encode_failure("7", "m", "2", "it broke", final=final))
    response = parsed.infer_response
    assert (parsed.error_message, response.id, response.model_name, response.model_version) == (
        "it broke",
        "7",
        "m",
        "2",
    )
    assert response.parameters["triton_final_response"].bool_param is final


def test_errors_survive_a_lone_surrogate():
    # the name of a file that is not UTF-8, in the message of an exception
    assert parse(encode_failure("7", "m", "2", "no file a\udcff", final=True)).error_message == "no file a?"
    assert parse(encode_refusal("7", "no file a\udcff")).error_message == "no file a?"
