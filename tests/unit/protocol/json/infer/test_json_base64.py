"""Inputs whose JSON `data` is base64: naiad's own form, for clients that have nothing but JSON."""

import base64
import json

import numpy as np
import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.core.tensor import encode_bytes_elements
from naiad.protocol.json.infer.infer import InferJsonDecoder


def text_of(data):
    return base64.b64encode(bytes(data)).decode()


def body(*inputs):
    entries = [
        {"name": f"I{i}", "datatype": datatype, "shape": shape, "data": data, "parameters": {"encoding": "base64"}}
        for i, (datatype, shape, data) in enumerate(inputs)
    ]
    return json.dumps({"inputs": entries}).encode()


def data_of(decoder, text):
    return [bytes(buffer) for buffer in decoder.decode("m", "", text, None)[2]]


@pytest.mark.parametrize("datatype", ["BOOL", "UINT8", "INT64", "FP16", "BF16", "FP32", "FP64"])
@pytest.mark.parametrize("count", [0, 3, 100_000])
def test_numbers_are_one_string(datatype, count):
    item_bytes = {"BOOL": 1, "UINT8": 1, "INT64": 8, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8}[datatype]
    data = (np.arange(count * item_bytes) % 2).astype(np.uint8).tobytes()
    assert data_of(InferJsonDecoder(), body((datatype, [count], text_of(data)))) == [data]


@pytest.mark.parametrize("count", [0, 1, 3, 5000])
def test_strings_are_an_array(count):
    elements = [bytes(range(i % 256)) for i in range(count)]
    given = body(("BYTES", [count], [text_of(element) for element in elements]))
    assert data_of(InferJsonDecoder(), given) == [encode_bytes_elements(elements)]


def test_data_is_not_mixed_between_requests():
    decoder = InferJsonDecoder()
    for value in range(3):
        element = b"element %d" % value
        given = body(("BYTES", [1], [text_of(element)]), ("UINT8", [1], text_of([value])))
        assert data_of(decoder, given) == [encode_bytes_elements([element]), bytes([value])]
    plain = json.dumps({"inputs": [{"name": "I0", "datatype": "BYTES", "shape": [1], "data": ["AAAA"]}]}).encode()
    assert data_of(decoder, plain) == [encode_bytes_elements([b"AAAA"])]


def test_unknown_encoding_is_ordinary_parameter():
    """Triton: parameters of inputs that it does not know have no meaning."""
    entry = {"name": "A", "datatype": "BYTES", "shape": [1], "data": ["x"], "parameters": {"encoding": "utf-8"}}
    assert data_of(InferJsonDecoder(), json.dumps({"inputs": [entry]}).encode()) == [encode_bytes_elements([b"x"])]


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "said"),
    [
        ("FP32", [2], text_of(bytes(4)), "holds 4 bytes; its shape and datatype need 8"),
        ("FP32", [1], [1.5], "must be one string, of all its bytes"),
        ("FP32", [1], 1.5, "must be one string, of all its bytes"),
        ("FP32", [1], "AAAA!AA=", "is not base64"),
        ("FP32", [1], "AAAAAA", "is not base64"),
        ("FP32", [1], "Ä", "is not base64"),
        ("BYTES", [1], "AAAA", "must be an array of strings"),
        ("BYTES", [1], [1], "must be an array of strings"),
        ("BYTES", [1], [["AAAA"]], "must be an array of strings"),
        ("BYTES", [2], ["AAAA"], "has 1 elements; its shape has 2"),
        ("BYTES", [1], ["?"], "is not base64"),
    ],
)
def test_undecodable_data_error_names_input(datatype, shape, data, said):
    with pytest.raises(InferError) as caught:
        InferJsonDecoder().decode("m", "", body((datatype, shape, data)), None)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert "input 'I0'" in caught.value.message
    assert said in caught.value.message
