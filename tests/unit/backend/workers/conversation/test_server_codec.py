"""Calls and answers as frames: what the worker encodes the server decodes, and the other way round."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from naiad.backend.workers.conversation.server_codec import CallDecoder, CallResponseEncoder
from naiad.core.datatype import DataType, from_numpy
from naiad.core.errors import ErrorCode, InferError
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.worker.api.failure import ErrorCode as WorkerCode
from naiad.worker.api.request import InferenceRequest
from naiad.worker.api.tensor import Tensor
from naiad.worker.channel.frame import ChannelError, Frame, decode_frame, encode_frame
from naiad.worker.execution.codec import FINAL, CallEncoder, CallResponseDecoder

FLOATS = np.arange(6, dtype=np.float32).reshape(2, 3)


def sent(words, extra, parts, payload_bytes) -> Frame:
    return decode_frame(encode_frame(1, words, "", extra, parts, payload_bytes, 0, 0), bytearray)


class Caller:
    """A worker's encoder and its server's decoder."""

    def __init__(self) -> None:
        self.encoder, self.decoder = CallEncoder(), CallDecoder()
        self.extras: list = []

    def send(self, request: InferenceRequest):
        words, extra, parts, payload_bytes = self.encoder.encode(request)
        self.extras.append(extra)
        frame = sent(words, extra, parts, payload_bytes)
        return self.decoder.decode(frame, iter(frame.words))


def call(*tensors: Tensor, **fields) -> InferenceRequest:
    return InferenceRequest(inputs=list(tensors), **{"model_name": "m", "requested_output_names": [], **fields})


def test_every_field_of_a_call_arrives():
    header, data = Caller().send(
        call(
            Tensor("A", FLOATS),
            Tensor("B", np.array([1], np.int64)),
            model_version=3,
            requested_output_names=["Y", "X"],
            correlation_id="seq",
            flags=3,
            timeout=500,
            parameters={"a": 1, "priority": 2},
        )
    )
    assert (header.model_name, header.model_version) == ("m", "3")
    assert header.inputs == (TensorSpec("A", DataType.FP32, (2, 3)), TensorSpec("B", DataType.INT64, (1,)))
    assert [output.name for output in header.outputs] == ["X", "Y"]
    assert (header.sequence_id, header.sequence_start, header.sequence_end) == ("seq", True, True)
    assert (header.timeout_us, header.priority) == (500, 2)
    assert dict(header.parameters) == {"a": 1, "priority": 2}
    assert [bytes(each) for each in data] == [FLOATS.tobytes(), np.array([1], np.int64).tobytes()]


@pytest.mark.parametrize("priority", [-1, True, "high", 1.5])
def test_what_is_no_priority_is_none(priority):
    header, _ = Caller().send(call(parameters={"priority": priority}))
    assert header.priority == 0


def test_equal_calls_share_a_header_that_travels_once():
    caller = Caller()
    headers = [caller.send(call(Tensor("A", FLOATS + number)))[0] for number in range(3)]
    assert headers[0] is headers[1] is headers[2]
    assert caller.extras[1:] == [None, None]
    assert caller.send(call(Tensor("A", FLOATS), correlation_id=1))[0] is not headers[0]


def test_headers_are_evicted_on_both_sides(monkeypatch):
    monkeypatch.setattr("naiad.worker.channel.layout.MOST_HEADERS", 4)
    caller = Caller()
    for number in range(40):
        header, _ = caller.send(call(correlation_id=number + 1))
        assert header.sequence_id == number + 1
    assert len(caller.decoder._headers.by_number) <= 6


def test_unsent_call_leaves_no_header():
    caller = Caller()
    caller.encoder.encode(call(Tensor("A", FLOATS)))  # never arrives
    caller.encoder.restart()
    header, _ = caller.send(call(Tensor("A", FLOATS)))
    assert header.inputs[0].name == "A"
    assert caller.extras == [{"reset": True, "headers": caller.extras[0]["headers"]}]


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ([9], None),
        ([], None),
        ([1], {"headers": [[1]]}),
        ([1], {"headers": [[1, {"model": "m"}]]}),
    ],
)
def test_nonsense_is_an_error(words, extra):
    frame = sent(words, extra, [], 0)
    with pytest.raises(ChannelError, match="unreadable call"):
        CallDecoder().decode(frame, iter(frame.words))


def test_a_payload_of_another_size_is_an_error():
    words, extra, _, _ = CallEncoder().encode(call(Tensor("A", FLOATS)))
    frame = sent(words, extra, [b"too short"], 9)
    with pytest.raises(ChannelError, match="1 inputs of 32 bytes in 9"):
        CallDecoder().decode(frame, iter(frame.words))


_TENSORS = st.lists(
    st.one_of(
        arrays.arrays(
            st.sampled_from([np.float32, np.int8, np.bool_, np.uint64]),
            arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4),
        ),
        st.lists(st.binary(max_size=30), max_size=5).map(lambda items: np.array(items, object)),
    ),
    max_size=4,
)


@given(_TENSORS)
def test_any_tensors_go_there_and_back(tensors):
    caller, encoder, decoder = Caller(), CallResponseEncoder(), CallResponseDecoder()
    request = call(*(Tensor(f"T{index}", array) for index, array in enumerate(tensors)))
    for _ in range(2):
        header, data = caller.send(request)
        answer = InferResponse(ResponseHeader("m", "1", header.inputs), data)
        frame = sent(*encoder.encode(5, FINAL, answer))
        assert frame.words[0] == 5
        response = decoder.response(frame)
        assert response is not None
        for array, tensor in zip(tensors, response.output_tensors(), strict=True):
            found = tensor.as_numpy()
            assert found.shape == array.shape
            if array.dtype.hasobject:
                assert found.tolist() == array.tolist()
            else:  # by their bytes, since NaN differs from itself
                assert found.tobytes() == array.tobytes()
                assert from_numpy(found.dtype) == from_numpy(array.dtype)


def test_errors_parameters_and_ends_of_answers():
    encoder, decoder = CallResponseEncoder(), CallResponseDecoder()
    nothing = ResponseHeader("m", "1", ())
    failed = decoder.response(
        sent(*encoder.encode(1, FINAL, InferResponse(nothing, error=InferError(ErrorCode.NOT_FOUND, "no m"))))
    )
    assert failed is not None
    error = failed.error()
    assert error is not None
    assert (error.code(), error.message()) == (WorkerCode.NOT_FOUND, "no m")
    decoded = decoder.response(sent(*encoder.encode(1, 0, InferResponse(nothing, parameters={"n": 1}))))
    assert decoded is not None
    assert json.loads(decoded.parameters()) == {"n": 1}
    assert decoder.response(sent(*encoder.encode(1, FINAL, InferResponse(nothing, empty_final=True)))) is None


def test_answer_headers_are_forgotten_on_both_sides(monkeypatch):
    monkeypatch.setattr("naiad.worker.channel.layout.MOST_HEADERS", 4)
    encoder, decoder = CallResponseEncoder(), CallResponseDecoder()
    for number in range(40):
        header = ResponseHeader("m", "1", [TensorSpec(f"T{number}", DataType.FP32, (1,))])
        response = decoder.response(sent(*encoder.encode(1, FINAL, InferResponse(header, [bytes(4)]))))
        assert response is not None
        assert response.output_tensors()[0].name() == f"T{number}"
    assert len(decoder._headers.by_number) <= 6
    encoder.encode(
        1, FINAL, InferResponse(ResponseHeader("m", "1", [TensorSpec("X", DataType.FP32, (1,))]), [b"1234"])
    )
    encoder.restart()
    frame = sent(*encoder.encode(1, FINAL, InferResponse(header, [bytes(4)])))
    assert frame.extra["reset"] is True
    assert decoder.response(frame) is not None


@pytest.mark.parametrize("words", [[1], [1, 2], [1, 2, 77]])
def test_nonsense_answers_are_errors(words):
    with pytest.raises(ChannelError, match="unreadable answer"):
        CallResponseDecoder().response(sent(words, None, [], 0))
