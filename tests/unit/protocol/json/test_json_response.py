import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import RequestedOutput, RequestHeader, SharedMemoryRegion
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec, encode_bytes_elements
from naiad.protocol.json.response import encode
from naiad.protocol.json.tensor import encode_data

A = TensorSpec("A", DataType.FP32, (1, 2))
B = TensorSpec("B", DataType.INT8, (3,))
S = TensorSpec("S", DataType.BYTES, (1,))
A_DATA = np.float32([0.5, 2]).tobytes()


def request(*outputs, default=False):
    return RequestHeader(model_name="m", outputs=outputs, binary_output_default=default)


def response(*specs_and_data, **more):
    specs = [spec for spec, _ in specs_and_data]
    return InferResponse(ResponseHeader("m", "1", specs), [data for _, data in specs_and_data], **more)


def encoded(header, answer, request_id=""):
    parts, json_length = encode(request_id, header, answer)
    body = b"".join(parts)
    text = body if json_length is None else body[:json_length]
    return json.loads(text), None if json_length is None else body[json_length:]


def test_json_output_has_its_keys_in_triton_order():
    parts, json_length = encode("", request(), response((A, A_DATA)))
    assert json_length is None
    assert b"".join(parts) == (
        b'{"model_name":"m","model_version":"1","outputs":'
        b'[{"name":"A","datatype":"FP32","shape":[1,2],"data":[0.5,2.0]}]}'
    )


def test_binary_outputs_follow_the_json_in_order():
    parts, json_length = encode("", request(default=True), response((A, A_DATA), (B, b"xyz")))
    body = b"".join(parts)
    assert body[json_length:] == A_DATA + b"xyz"
    assert body[:json_length] == (
        b'{"model_name":"m","model_version":"1","outputs":'
        b'[{"name":"A","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}},'
        b'{"name":"B","datatype":"INT8","shape":[3],"parameters":{"binary_data_size":3}}]}'
    )


@given(
    st.sampled_from([each for each in DataType if each not in (DataType.BYTES, DataType.FP16, DataType.BF16)]),
    st.binary(max_size=48),
    st.booleans(),
)
@example(DataType.FP32, np.float32([np.nan, 1]).tobytes(), False)
@example(DataType.FP32, np.float32([np.nan, -np.inf]).tobytes(), True)
@example(DataType.FP64, np.float64([1e308, 1.7e308]).tobytes(), False)
@example(DataType.FP32, np.float32([1e-45, 3.4e38, 0.1, -0.0]).tobytes(), False)
def test_few_numbers_are_written_as_encode_data(datatype, raw, nan_is_null):
    count = len(raw) // datatype.item_bytes
    raw = raw[: count * datatype.item_bytes]
    if datatype is DataType.BOOL:
        raw = bytes(each & 1 for each in raw)
    specs = TensorSpec("50%", datatype, (count,)), A
    header = RequestHeader(model_name="m", nan_is_null=nan_is_null)
    parts, json_length = encode('"1', header, response((specs[0], raw), (specs[1], A_DATA)))
    assert json_length is None
    assert b"".join(parts) == (
        b'{"id":"\\"1","model_name":"m","model_version":"1","outputs":[{"name":"50%%","datatype":"%b","shape":[%d],"data":'
        b'%b},{"name":"A","datatype":"FP32","shape":[1,2],"data":[0.5,2.0]}]}'
    ) % (datatype.value.encode(), count, encode_data(specs[0], raw, nan_is_null=nan_is_null))


def test_numbers_beyond_the_shape_are_written():
    parts, _ = encode("", request(), response((A, A_DATA + A_DATA)))
    assert json.loads(b"".join(parts))["outputs"][0]["data"] == [0.5, 2, 0.5, 2]


@pytest.mark.parametrize("request_id", ["r1", 'quo"te\n', "é"])
@pytest.mark.parametrize("default", [True, False])
def test_id_and_parameters_are_echoed(request_id, default):
    answer = response((A, A_DATA), parameters={"p": 1, "q": "x", "r": True})
    tree, _ = encoded(request(default=default), answer, request_id)
    assert tree["id"] == request_id
    assert tree["parameters"] == {"p": 1, "q": "x", "r": True}
    assert list(tree) == ["id", "model_name", "model_version", "parameters", "outputs"]


@pytest.mark.parametrize("parameters", [{"p": 1 << 70}, {"p": "\ud800"}, {"\ud800": 1}])
def test_parameters_that_json_cannot_carry_are_an_error(parameters):
    with pytest.raises(InferError, match="response parameters cannot be sent as JSON") as caught:
        encode("", request(default=True), response((A, A_DATA), parameters=parameters))
    assert caught.value.code is ErrorCode.INTERNAL


def test_id_alone_keeps_the_prepared_json():
    answer = response((A, A_DATA))
    header = request(default=True)
    assert encoded(header, answer, "x")[0] == {"id": "x", **encoded(header, answer)[0]}


def test_listed_output_is_json_unless_binary_requested():
    header = request(RequestedOutput("A"), RequestedOutput("B", binary=True), default=True)
    tree, tail = encoded(header, response((A, A_DATA), (B, b"xyz")))
    assert tree["outputs"][0]["data"] == [0.5, 2.0]
    assert tree["outputs"][1]["parameters"] == {"binary_data_size": 3}
    assert tail == b"xyz"


def test_empty_binary_outputs_make_a_json_body():
    empty = TensorSpec("A", DataType.FP32, (1, 0))
    tree, tail = encoded(request(default=True), response((empty, b"")))
    assert tree["outputs"][0]["parameters"] == {"binary_data_size": 0}
    assert tail is None


def test_strings_differ_in_size_from_response_to_response():
    header, shared = request(default=True), ResponseHeader("m", "1", [S])
    for text in (b"a", b"longer"):
        data = encode_bytes_elements([text])
        tree, tail = encoded(header, InferResponse(shared, [data]))
        assert tree["outputs"][0]["parameters"] == {"binary_data_size": len(data)}
        assert tail == data


def test_shared_memory_output_has_no_data_or_parameters():
    header = request(RequestedOutput("A", shared_memory=SharedMemoryRegion("r", 0, 8)))
    tree, _ = encoded(header, response((A, b"")))
    assert tree["outputs"] == [{"name": "A", "datatype": "FP32", "shape": [1, 2]}]


def test_one_response_header_serves_different_choices_of_outputs():
    shared = ResponseHeader("m", "1", [A])
    for default in (True, False, True):
        _, tail = encoded(request(default=default), InferResponse(shared, [A_DATA]))
        assert (tail == A_DATA) is default


def test_memory_of_choices_is_bounded():
    shared = ResponseHeader("m", "1", [A])
    for i in range(200):
        encode("", request(RequestedOutput("A", classification=i)), InferResponse(shared, [A_DATA]))
    assert len(shared.memo) <= 66


def test_data_differing_from_spec_keeps_actual_size():
    tree, tail = encoded(request(default=True), response((A, b"1234")))
    assert tree["outputs"][0]["parameters"] == {"binary_data_size": 4}
    assert tail == b"1234"


def test_half_precision_needs_binary():
    with pytest.raises(InferError, match="sending FP16 data via JSON is not supported"):
        encode("", request(), response((TensorSpec("H", DataType.FP16, (1,)), b"\0\0")))
