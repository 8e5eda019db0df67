import json

import numpy as np
import orjson
import pytest
import simdjson

from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError
from naiad.core.slices import finish
from naiad.core.tensor import TensorSpec, encode_bytes_elements
from naiad.protocol.json.tensor import decode_data, encode_data, encode_long_data

NUMERIC = [d for d in DataType if d not in (DataType.BOOL, DataType.BYTES, DataType.FP16, DataType.BF16)]


def sources(value):
    """The two forms in which tensor data reaches the decoder: what simdjson parsed, and plain lists."""
    return [simdjson.Parser().parse(json.dumps(value).encode()), value]


def decode(datatype, shape, source):
    return bytes(decode_data(TensorSpec("A", datatype, shape), source))


@pytest.mark.parametrize("datatype", NUMERIC)
@pytest.mark.parametrize("index", [0, 1])
def test_extremes_of_every_numeric_datatype_survive_both_ways(datatype, index):
    dtype = datatype.numpy
    info = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    array = np.array([info.min, 0, 1, info.max], dtype)
    raw = decode(datatype, (4,), sources(array.tolist())[index])
    assert raw == array.tobytes()
    assert orjson.loads(encode_data(TensorSpec("A", datatype, (4,)), raw)) == array.tolist()


@pytest.mark.parametrize("source", sources([[[1, 2], [3, 4]], [[5, 6], [7, 8]]]))
@pytest.mark.parametrize("datatype", [DataType.INT16, DataType.FP32])
def test_nested_data_is_flattened(datatype, source):
    assert decode(datatype, (8,), source) == np.arange(1, 9, dtype=datatype.numpy).tobytes()


@pytest.mark.parametrize("source", sources([["a", ["é\0"]], [], [[["日本"]]]]))
def test_strings_nest_in_any_way_and_keep_nul(source):
    expected = encode_bytes_elements([b"a", "é\0".encode(), "日本".encode()])
    assert decode(DataType.BYTES, (3,), source) == expected


@pytest.mark.parametrize("source", sources([[True], [False]]))
def test_booleans(source):
    assert decode(DataType.BOOL, (2, 1), source) == b"\x01\x00"


@pytest.mark.parametrize("source", sources([]))
@pytest.mark.parametrize("datatype", [DataType.FP32, DataType.BYTES, DataType.BOOL, DataType.UINT64])
def test_tensor_without_elements(datatype, source):
    assert decode(datatype, (2, 0), source) == b""


def test_integers_beyond_64_bits_are_numbers_for_floats():
    assert decode(DataType.FP64, (1,), [10**25]) == np.array([1e25]).tobytes()


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(
    ("datatype", "value", "key"),
    [
        (DataType.FP32, [1, None], "non-number as double"),
        (DataType.FP32, [1, "a"], "non-number as double"),
        (DataType.FP32, [1, True], "non-number as double"),
        (DataType.FP32, [{"a": 1}, 1], "non-number as double"),
        (DataType.FP32, [1e300, 1], "out of range for FP32"),
        (DataType.INT32, [1.5, 2], "non-signed-integer as signed-integer"),
        (DataType.INT32, [2**31, 2], "out of range for INT32"),
        (DataType.INT64, [2**63, 2], "out of range"),
        (DataType.INT8, [300, 2], "out of range for INT8"),
        (DataType.UINT64, [-1, 2], "unsigned"),
        (DataType.UINT8, [256, 2], "out of range for UINT8"),
        (DataType.BOOL, [1, 0], "non-boolean as boolean"),
        (DataType.BYTES, ["a", 1], "Unable to parse JSON bytes array"),
        (DataType.FP32, [1], "Shape does not match true shape of 'data' field"),
        (DataType.FP32, [1, 2, 3], "Shape does not match true shape of 'data' field"),
        (DataType.BYTES, ["a"], "Shape does not match true shape of 'data' field"),
        (DataType.FP32, 3, "non-array as array"),
        (DataType.FP32, "x", "non-array as array"),
    ],
)
def test_wrong_elements_are_parse_errors(datatype, value, key, index):
    with pytest.raises(InferError) as caught:
        decode(datatype, (2,), sources(value)[index])
    assert (caught.value.code, caught.value.triton_code) == (ErrorCode.INVALID_ARG, ErrorCode.INTERNAL)
    assert key in caught.value.message


@pytest.mark.parametrize("datatype", [DataType.FP16, DataType.BF16])
def test_half_precision_is_refused_both_ways(datatype):
    spec = TensorSpec("A", datatype, (1,))
    with pytest.raises(InferError) as caught:
        decode_data(spec, [1])
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == (
        f"receiving {datatype.value} data via JSON is not supported. Please use the binary data format for input A"
    )
    with pytest.raises(InferError, match=f"sending {datatype.value} data via JSON is not supported"):
        encode_data(spec, b"\0\0")


def test_fp32_is_printed_as_the_double_it_is():
    assert encode_data(TensorSpec("A", DataType.FP32, (2,)), np.float32([0.1, 2]).tobytes()) == (
        b"[0.10000000149011612,2.0]"
    )


@pytest.mark.parametrize("datatype", [DataType.FP32, DataType.FP64])
def test_nan_and_infinities_are_bare(datatype):
    data = np.array([np.nan, np.inf, -np.inf, 0.5], datatype.numpy).tobytes()
    assert encode_data(TensorSpec("A", datatype, (4,)), data) == b"[NaN,Infinity,-Infinity,0.5]"


def test_unaligned_integers_are_encoded():
    data = memoryview(b"\xff" + np.int64([7, -8]).tobytes())[1:]
    assert encode_data(TensorSpec("A", DataType.INT64, (2,)), data) == b"[7,-8]"


def test_strings_are_encoded_and_must_be_utf8():
    spec = TensorSpec("A", DataType.BYTES, (2,))
    assert orjson.loads(encode_data(spec, encode_bytes_elements([b"a\0", "é".encode()]))) == ["a\0", "é"]
    with pytest.raises(InferError, match="ask for it as binary data"):
        encode_data(spec, encode_bytes_elements([b"\xff"]))


def test_long_strings_in_parts_encode_identically():
    elements = [b"a", ("é€\n" * 200_000).encode(), b"", b"\\" * 300_000, b"z"]
    spec = TensorSpec("A", DataType.BYTES, (len(elements),))
    parts = finish(encode_long_data(spec, encode_bytes_elements(elements)))
    assert max(map(len, parts)) < 1_000_000
    assert json.loads(b"".join(parts)) == [element.decode() for element in elements]
