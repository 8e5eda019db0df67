"""Any inference body is a request or an InferError; tensors survive JSON and binary alike."""

import contextlib
import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.request import RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec, decode_bytes_elements
from naiad.protocol.json.infer.infer import InferJsonDecoder
from naiad.protocol.json.response import encode

PLAIN = [d for d in DataType if d not in (DataType.BYTES, DataType.FP16, DataType.BF16)]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
KEYS = st.sampled_from(
    ["name", "shape", "datatype", "data", "parameters", "binary_data_size", "shared_memory_region"]
)
ENTRIES = st.dictionaries(
    KEYS, JSON | st.sampled_from(["FP32", "BYTES", [1, 2], {"binary_data_size": 3}]), max_size=6
)


@given(st.sampled_from(PLAIN).flatmap(lambda d: st.tuples(st.just(d), hnp.arrays(d.numpy, hnp.array_shapes()))))
def test_numbers_survive_json_in_and_out(case):
    datatype, array = case
    shape = list(array.shape)
    entry = {"name": "A", "shape": shape, "datatype": datatype.value, "data": array.tolist()}
    header, _, (data,) = InferJsonDecoder().decode("m", "", json.dumps({"inputs": [entry]}).encode(), None)
    assert np.array_equal(np.frombuffer(data, datatype.numpy), array.ravel(), equal_nan=datatype.numpy.kind == "f")
    response = InferResponse(ResponseHeader("m", "1", header.inputs), [data])
    (text,), _ = encode("", header, response)
    (output,) = json.loads(bytes(text))["outputs"]
    assert np.array_equal(np.array(output["data"], datatype.numpy), array.ravel(), equal_nan=True)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5))
def test_strings_survive_json_in_and_out(strings):
    entry = {"name": "A", "shape": [len(strings)], "datatype": "BYTES", "data": strings}
    header, _, (data,) = InferJsonDecoder().decode("m", "", json.dumps({"inputs": [entry]}).encode(), None)
    assert [element.decode() for element in decode_bytes_elements(data)] == strings
    (text,), _ = encode("", header, InferResponse(ResponseHeader("m", "1", header.inputs), [data]))
    assert json.loads(bytes(text))["outputs"][0]["data"] == strings


def assert_decodes_or_refuses(body, json_length):
    """Any other exception fails the test."""
    with contextlib.suppress(InferError):
        header, _, data = InferJsonDecoder().decode("m", "", body, json_length)
        assert len(header.inputs) == len(data)


@given(st.binary(max_size=300), st.none() | st.integers(-5, 400))
def test_any_bytes_are_refused_cleanly(body, json_length):
    assert_decodes_or_refuses(body, json_length)


@given(st.lists(ENTRIES | JSON, max_size=3), JSON, JSON, st.booleans())
def test_json_of_wrong_types_is_rejected(inputs, outputs, parameters, with_tail):
    tree = {"inputs": inputs, "outputs": outputs, "parameters": parameters}
    text = json.dumps(tree).encode("utf-8", "surrogatepass")
    assert_decodes_or_refuses(text, len(text) if with_tail else None)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=4), st.text(max_size=10), st.booleans())
def test_binary_tails_come_back_as_they_went(blobs, request_id, memory):
    inputs = [
        {"name": f"I{i}", "shape": [len(b)], "datatype": "UINT8", "parameters": {"binary_data_size": len(b)}}
        for i, b in enumerate(blobs)
    ]
    request_id = request_id.encode("utf-8", "ignore").decode()
    text = json.dumps({"id": request_id, "inputs": inputs}, separators=(",", ":")).encode()
    body = text + b"".join(blobs)
    decoder = InferJsonDecoder()
    for _ in range(2):
        _, found_id, data = decoder.decode("m", "", memoryview(body) if memory else body, len(text))
        assert found_id == request_id
        assert [bytes(b) for b in data] == blobs
    specs = [TensorSpec(f"O{i}", DataType.UINT8, (len(b),)) for i, b in enumerate(blobs)]
    asked = RequestHeader(model_name="m", binary_output_default=True)
    parts, json_length = encode(found_id, asked, InferResponse(ResponseHeader("m", "1", specs), data))
    whole = b"".join(parts)
    assert whole[json_length or len(whole) :] == b"".join(blobs)
