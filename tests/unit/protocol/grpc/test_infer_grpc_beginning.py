"""The model of a request whose message has only begun to arrive."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.service_pb2 import ModelInferRequest

from naiad.protocol.grpc.infer import read_beginning


def encoded(name, version, request_id, *, has_tensors=True):
    request = ModelInferRequest(model_name=name, model_version=version, id=request_id)
    if has_tensors:
        request.inputs.add(name="IN", datatype="FP32", shape=[1])
        request.raw_input_contents.append(bytes(200))
    return request.SerializeToString()


@given(st.text(max_size=300), st.sampled_from(["", "1", "999"]), st.text(max_size=300), st.data())
def test_a_beginning_says_the_same_as_the_whole(name, version, request_id, data):
    message = encoded(name, version, request_id)
    cut = data.draw(st.integers(0, len(message)))
    found = read_beginning(memoryview(message)[:cut])
    assert found in (None, (name, version, request_id))
    if name:
        assert read_beginning(message) == (name, version, request_id)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x0a",
        b"\x0a\xff\xff\xff",
        b"\x0a\x02\xff\xfe\x2a",
        b"\x12\x01a\x0a\x01b\x2a",
        b"\x08\x01\x2a",
        b"\x2a\x00",
        b"\x00\x00",
        b"\xff" * 50,
    ],
)
def test_an_unusual_beginning_says_nothing(data):
    assert read_beginning(data) is None


@given(st.binary(max_size=100))
def test_any_bytes_are_taken(data):
    read_beginning(data)


def test_a_head_without_tensors_is_not_certain():
    assert read_beginning(encoded("a", "1", "x", has_tensors=False)) is None


@pytest.mark.parametrize(
    "rest", [bytes(5000), b"\x1a\xff\xff\xff" + bytes(5000), b"\x1a\x01\xff", b"\x12\x7f" + bytes(60)]
)
def test_malformed_rest_leaves_the_name(rest):
    cut_short = rest.startswith(b"\x12")
    assert read_beginning(b"\x0a\x01m" + rest) == (None if cut_short else ("m", "", ""))
