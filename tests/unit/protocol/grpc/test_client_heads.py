"""Requests and responses whose heads are kept are equal to others."""

import pytest

from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.request import RequestedOutput, RequestHeader
from naiad.core.tensor import TensorSpec
from naiad.protocol import service_pb2 as pb
from naiad.protocol.grpc.client import KeptRequestHeads, KeptResponseHeads, decode_response, encode_request

SPECS = [TensorSpec("A", DataType.FP32, (1, 2)), TensorSpec("TEXT", DataType.BYTES, (1, 1))]


def parsed(parts: list[bytes]) -> pb.ModelInferRequest:
    return pb.ModelInferRequest.FromString(b"".join(parts))


def test_requests_with_a_kept_head_are_equal() -> None:
    header = RequestHeader(
        model_name="m",
        model_version="3",
        inputs=SPECS,
        outputs=[RequestedOutput("Y")],
        parameters={"k": 1},
        priority=2,
        sequence_id=7,
        sequence_start=True,
    )
    heads = KeptRequestHeads()
    for request_id, data in (
        ("", [b"12345678", b""]),
        ("a", [b"87654321", b"x" * 100_000]),
        ("b" * 200, [b"", b"t"]),
    ):
        assert parsed(heads.encode(header, request_id, data)) == parsed(encode_request(header, request_id, data))
    empty = RequestHeader(model_name="n")
    assert parsed(heads.encode(empty, "", [])) == parsed(encode_request(empty, "", []))


def response(request_id: str, *contents: bytes) -> bytes:
    message = pb.ModelInferResponse(model_name="m", model_version="1", id=request_id)
    for index in range(len(contents)):
        message.outputs.add(name=f"Y{index}", datatype="FP32", shape=[1, len(contents[index]) // 4])
    message.parameters["k"].int64_param = 5
    message.raw_output_contents.extend(contents)
    return message.SerializeToString()


def test_responses_with_a_kept_head_are_equal() -> None:
    heads = KeptResponseHeads()
    found = []
    for message in (response("", b"1234"), response("", b"4321"), response("a", b"1234"), response("", b"1" * 8)):
        request_id, decoded = heads.decode(message)
        expected_id, expected = decode_response(message)
        assert request_id == expected_id
        assert decoded.header.outputs == expected.header.outputs
        assert [bytes(each) for each in decoded.data] == [bytes(each) for each in expected.data]
        assert dict(decoded.parameters) == dict(expected.parameters)
        found.append(decoded)
    assert found[0].header is found[1].header
    assert found[0].header is not found[3].header


def test_what_is_no_response_stays_an_error() -> None:
    heads = KeptResponseHeads()
    heads.decode(response("", b"1234"))
    whole = pb.ModelInferResponse.FromString(response("", b"1234"))
    whole.raw_output_contents.append(b"1234")
    for message in (b"\xff", whole.SerializeToString()):
        with pytest.raises(InferError):
            heads.decode(message)
