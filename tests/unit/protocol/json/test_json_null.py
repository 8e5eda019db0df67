"""Null in place of NaN: in requests and responses that ask for it, and only there."""

import json
import math

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.limits.request_limits import unlimited
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.slices import finish
from naiad.core.tensor import TensorSpec
from naiad.protocol.generate import decode_generate, encode_generate
from naiad.protocol.json.infer.infer import InferJsonDecoder
from naiad.protocol.json.response import encode, encode_in_slices

LONG = 40_000
INPUTS = {"X": TensorSpec("X", DataType.FP64, (-1,))}


def body(data, datatype="FP64", **parameters):
    count = len(np.ravel(np.array(data, object)))
    tensor = {"name": "X", "datatype": datatype, "shape": [count], "data": data}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode()


def decoded(data, datatype="FP64", **parameters):
    decoder = InferJsonDecoder(unlimited)
    text = body(data, datatype, **parameters)
    for _ in range(3):  # the second time the template of the first one is filled
        header, _, (raw,) = finish(decoder.decode_in_slices("m", "", text, None))
    return header, np.frombuffer(raw, np.float64 if datatype == "FP64" else np.float32)


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
@pytest.mark.parametrize("data", [[1, None, 2.5], [[1], [None], [2.5]], [None, None, 3], [1.5] * LONG + [None]])
def test_null_is_nan_on_request(datatype, data):
    header, found = decoded(data, datatype, json_nan="null")
    assert header.nan_is_null
    assert not header.parameters
    wanted = [math.nan if value is None else value for value in np.ravel(np.array(data, object))]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("parameters", [{}, {"json_nan": "bare"}])
@pytest.mark.parametrize("data", [[1, None], [1.5] * LONG + [None]])
def test_null_is_refused_and_names_the_way(parameters, data):
    with pytest.raises(InferError, match='set the request parameter "json_nan" to "null"'):
        decoded(data, **parameters)


def test_null_is_no_integer_and_no_text():
    for datatype in ("INT32", "BYTES", "BOOL"):
        with pytest.raises(InferError) as raised:
            decoded([1, None], datatype, json_nan="null")
        assert "json_nan" not in raised.value.message
    with pytest.raises(InferError, match='non-number as double; got "a"'):
        decoded([None, "a"], json_nan="null")


@pytest.mark.parametrize("value", ["nan", "", 1, True])
def test_other_values_are_refused(value):
    with pytest.raises(InferError, match=r"parameter 'json_nan' is .*, expected \"null\""):
        decoded([1], json_nan=value)


def response(values):
    header = ResponseHeader("m", "1", (TensorSpec("Y", DataType.FP32, (len(values),)),))
    return InferResponse(header, [np.array(values, np.float32).tobytes()])


@pytest.mark.parametrize("values", [[1, math.nan, math.inf, -math.inf], [1.5] * LONG + [math.nan]])
def test_responses_have_null_on_request(values):
    header, _ = decoded([1], json_nan="null")
    for parts, _ in (encode("", header, response(values)), finish(encode_in_slices("", header, response(values)))):
        found = json.loads(b"".join(parts), parse_constant=lambda text: pytest.fail(f"bare {text}"))
        assert found["outputs"][0]["data"] == [value if math.isfinite(value) else None for value in values]


def test_responses_have_bare_values_without_request():
    header, _ = decoded([1])
    parts, _ = encode("", header, response([math.nan, math.inf]))
    assert b'"data":[NaN,Infinity]' in b"".join(parts)


@pytest.mark.parametrize("members", [{"json_nan": "null"}, {"parameters": {"json_nan": "null"}}])
def test_generate_takes_and_returns_null(members):
    text = json.dumps({"X": [1, None], **members}).encode()
    header, _, (raw,) = finish(decode_generate("m", "", text, INPUTS, 1 << 20))
    np.testing.assert_array_equal(np.frombuffer(raw), [1, math.nan])
    assert not header.parameters
    line = finish(encode_generate("", response([1, math.nan]), nan_is_null=header.nan_is_null))
    assert b'"Y":[1.0,null]' in b"".join(line)


def test_generate_refuses_null_without_request():
    with pytest.raises(InferError, match="json_nan"):
        finish(decode_generate("m", "", b'{"X": [1, null]}', INPUTS, 1 << 20))
