import json

import numpy as np
import pytest

from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.slices import finish
from naiad.core.tensor import TensorSpec, encode_bytes_elements, to_array
from naiad.protocol import generate as generate_json
from naiad.protocol.generate import inputs_of


def decode_generate(*arguments):
    return finish(generate_json.decode_generate(*arguments))


def encode_generate(*arguments):
    return b"".join(finish(generate_json.encode_generate(*arguments)))


LIMIT = 1 << 20


def inputs(*declared, max_batch_size=0):
    """(name, type, dims) of each input, as a configuration has them."""
    text = f"max_batch_size: {max_batch_size}\n"
    for name, datatype, dims in declared:
        text += f'input {{ name: "{name}" data_type: TYPE_{datatype} dims: {list(dims)} }}\n'
    return inputs_of(parse_pbtxt(text).config)


LLM = inputs(("text_input", "STRING", [1]), ("stream", "BOOL", [1]), ("ids", "INT32", [-1]), max_batch_size=4)


def decode(body, declared=LLM, limit=LIMIT):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    header, request_id, data = decode_generate("m", "3", text, declared, limit)
    tensors = {spec.name: to_array(spec, buffer).tolist() for spec, buffer in zip(header.inputs, data, strict=True)}
    return header, request_id, tensors


def refusal(body, declared=LLM, limit=LIMIT):
    with pytest.raises(InferError) as raised:
        decode(body, declared, limit)
    return raised.value.triton_code, raised.value.message


def test_members_are_tensors_of_the_model_or_parameters():
    header, request_id, tensors = decode(
        {"text_input": "hi", "stream": True, "temperature": 0.5, "top_k": 3, "x": "y"}
    )
    assert (header.model_name, header.model_version, request_id) == ("m", "3", "")
    assert tensors == {"text_input": [[b"hi"]], "stream": [[True]]}
    assert header.parameters == {"temperature": 0.5, "top_k": 3, "x": "y"}
    assert not header.outputs
    assert not header.binary_output_default


def test_parameters_object_is_read_like_the_request():
    header, _, tensors = decode({"parameters": {"text_input": "hi", "max_tokens": 5, "parameters": 1}, "top_k": 3})
    assert tensors == {"text_input": [[b"hi"]]}
    assert header.parameters == {"max_tokens": 5, "parameters": 1, "top_k": 3}


@pytest.mark.parametrize("name", ["priority", "timeout", "sequence_id", "sequence_start", "triton_x"])
def test_reserved_names_of_infer_mean_nothing_here(name):
    header, _, _ = decode({name: 7})
    assert header.parameters == {name: 7}
    assert (header.priority, header.timeout_us, header.sequence_id) == (0, 0, 0)


def test_id_is_the_request_id_and_a_parameter():
    header, request_id, _ = decode({"id": "42"})
    assert (request_id, dict(header.parameters)) == ("42", {"id": "42"})
    header, request_id, _ = decode({"id": ""})
    assert (request_id, dict(header.parameters)) == ("", {"id": ""})


def test_id_may_be_an_input_as_well():
    header, request_id, tensors = decode({"id": "42"}, inputs(("id", "STRING", [1])))
    assert (request_id, tensors, dict(header.parameters)) == ("42", {"id": [b"42"]}, {})


@pytest.mark.parametrize(
    ("dims", "max_batch_size", "count", "shape"),
    [
        ([1], 0, 1, (1,)),
        ([3], 0, 3, (3,)),
        ([3, 2], 0, 6, (3, 2)),
        ([-1], 0, 5, (5,)),
        ([-1], 0, 0, (0,)),
        ([2, -1], 0, 6, (2, 3)),
        ([-1, 2, -1], 0, 6, (1, 2, 3)),
        ([-1, 2], 0, 6, (3, 2)),
        ([1], 8, 1, (1, 1)),
        ([1], 8, 3, (3, 1)),
        ([-1], 8, 3, (1, 3)),
        ([2], 8, 6, (3, 2)),
        ([], 8, 3, (3,)),
        ([], 0, 1, ()),
    ],
)
def test_elements_are_distributed_over_the_declared_shape(dims, max_batch_size, count, shape):
    declared = inputs(("A", "INT64", dims), max_batch_size=max_batch_size)
    header, _, _ = decode({"A": list(range(count))}, declared)
    assert header.inputs[0].shape == shape


@pytest.mark.parametrize(
    ("dims", "count"), [([2], 3), ([2], 4), ([2, -1], 3), ([1, 1], 0), ([], 2), ([2, 2], 2), ([0], 0)]
)
def test_elements_that_fit_no_shape_are_refused(dims, count):
    code, message = refusal({"A": [1] * count}, inputs(("A", "INT64", dims)))
    assert code is ErrorCode.INVALID_ARG
    assert message.startswith("The schema can not convert input 'A' to tensor with proper shape; got ")


@pytest.mark.parametrize("value", [4, [4], [[4]]])
def test_scalar_is_a_list_of_one(value):
    assert decode({"ids": value})[2] == {"ids": [[4]]}


def test_nested_lists_are_rows():
    assert decode({"ids": [[1], [2]]})[2] == {"ids": [[1], [2]]}
    assert decode({"ids": [[1, 2], [3, 4]]})[2] == {"ids": [[1, 2], [3, 4]]}
    assert "nested irregularly" in refusal({"ids": [[1, 2], [3]]})[1]


def test_error_names_the_input():
    for body, name in (({"ids": 1.5}, "ids"), ({"text_input": 5}, "text_input")):
        assert refusal(body)[1].endswith(f" (input '{name}')")


NESTED = "Converting keyword: 'parameters': "
NO_STRING = "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
PARSE = "failed to parse the request JSON buffer: "
BAD_TYPE = "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'."


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"text_input": 5, "stream": 1}, ErrorCode.INTERNAL, NO_STRING),
        (
            {"stream": 1, "text_input": 5},
            ErrorCode.INTERNAL,
            "Unable to parse 'data': attempt to access JSON non-boolean as boolean",
        ),
        ({"text_input": {"user": "a"}}, ErrorCode.INTERNAL, NO_STRING),
        ({"text_input": None}, ErrorCode.INTERNAL, NO_STRING),
        (
            {"ids": 1.5},
            ErrorCode.INTERNAL,
            "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
        ),
        ({"id": 7}, ErrorCode.INTERNAL, "Unable to parse 'id': attempt to access JSON non-string as string"),
        ({"x": None}, ErrorCode.INVALID_ARG, BAD_TYPE),
        ({"x": [1]}, ErrorCode.INVALID_ARG, BAD_TYPE),
        ({"x": {"y": 1}}, ErrorCode.INVALID_ARG, BAD_TYPE),
        ({"parameters": {"x": {"y": 1}}}, ErrorCode.INVALID_ARG, NESTED + BAD_TYPE),
        ({"parameters": {"text_input": 5}}, ErrorCode.INTERNAL, NESTED + NO_STRING),
        (
            {"parameters": 1},
            ErrorCode.INTERNAL,
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
        ),
        ([1], ErrorCode.INVALID_ARG, "row 0 is 1; the model has the inputs"),
        (None, ErrorCode.INTERNAL, "attempt to get members for non-object"),
        (b"", ErrorCode.INTERNAL, "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b'{"y":NaN, "z":' + b"9" * 400 + b"}", ErrorCode.INVALID_ARG, "parameter 'z' is too large"),
        (b'{"x":1e400000}', ErrorCode.INTERNAL, f"{PARSE}Number too big to be stored in double; got 1e400000"),
    ],
)
# Where the document has a NaN the standard library parses it, which must not make a difference.
@pytest.mark.parametrize("tail", [b"", b', "nan": NaN}'])
def test_errors_have_triton_texts(body, code, message, tail):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    if text.endswith(b"}") and tail:
        text = text[:-1] + tail
    found = refusal(text)
    assert found[0] is code
    assert found[1].startswith(message)


def test_parameters_cannot_be_an_input():
    assert refusal({"parameters": {}}, inputs(("parameters", "STRING", [1]))) == (
        ErrorCode.INVALID_ARG,
        "Keyword 'parameters' for nested schema also given as input tensor name",
    )


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_halves_cannot_come_as_json(datatype):
    code, message = refusal({"A": [1]}, inputs(("A", datatype, [1])))
    assert code is ErrorCode.INVALID_ARG
    assert message.startswith(f"receiving {datatype} data via JSON is not supported.")


@pytest.mark.parametrize("tail", [b"}", b', "nan": NaN}'])
def test_repeated_member_has_first_value_twice(tail):
    header, _, data = decode_generate(
        "m", "", b'{"text_input": "a", "text_input": 5, "n": 1, "n": 2' + tail, LLM, LIMIT
    )
    # Admission refuses tensors that are there twice.
    assert [spec.name for spec in header.inputs] == ["text_input"] * 2
    assert [bytes(buffer) for buffer in data] == [encode_bytes_elements([b"a"])] * 2
    assert header.parameters["n"] == 1


def test_integers_that_64_bits_cannot_hold_are_doubles():
    header, _, _ = decode({"a": (1 << 63) - 1, "b": 1 << 63, "c": -(1 << 63), "d": 1 << 64})
    assert [type(value) for value in header.parameters.values()] == [int, float, int, float]


def test_tensors_together_are_bounded_when_json_grows():
    declared = inputs(("A", "FP64", [-1]), ("S", "STRING", [-1]))
    assert decode({"A": [1] * 4}, declared, 32)[2] == {"A": [1.0] * 4}
    assert refusal({"A": [1] * 4, "S": ["abcd"]}, declared, 39) == (
        ErrorCode.INVALID_ARG,
        "request size of 32 bytes with input 'S' of size 8 bytes exceeds the maximum allowed input size of 39. "
        "Use --http-max-input-size to increase the limit.",
    )
    assert refusal({"A": [1] * 5}, declared, 39)[1].startswith("request size of 0 bytes with input 'A' of size 40 ")


# --- responses ------------------------------------------------------------------------------------------------------


def response(parameters=None, **outputs):
    specs, data = [], []
    for name, value in outputs.items():
        if isinstance(value, np.ndarray):
            datatype = next(d for d in DataType if d.numpy == value.dtype)
            specs.append(TensorSpec(name, datatype, value.shape))
            data.append(value.tobytes())
        else:
            specs.append(TensorSpec(name, DataType.BYTES, (len(value),)))
            data.append(encode_bytes_elements(value))
    return InferResponse(ResponseHeader("m", "1", specs), data, parameters=parameters or {})


def test_response_is_flat_sorted_and_scalars_are_bare():
    answer = response(
        {"reason": "stop", "count": 2, "done": True, "score": 0.5},
        text_output=[b"hi"],
        a=np.array([[1, 2]], "<i4"),
        z=np.zeros((0,), "<f4"),
        one=np.array([[1.5]], "<f4"),
        flag=np.array([True]),
    )
    text = encode_generate("7", answer)
    assert text == (
        b'{"a":[1,2],"count":2,"done":true,"flag":true,"id":"7","model_name":"m","model_version":"1","one":1.5,'
        b'"reason":"stop","score":0.5,"text_output":"hi","z":[]}'
    )


def test_response_without_an_id_has_none():
    assert json.loads(encode_generate("", response())) == {"model_name": "m", "model_version": "1"}


def test_precedence_of_equal_names():
    answer = response({"model_name": "p", "a": "p"}, a=[b"o"], id=[b"o"])
    assert json.loads(encode_generate("7", answer)) == {"model_name": "m", "model_version": "1", "a": "p", "id": "7"}
    assert json.loads(encode_generate("", answer))["id"] == "o"


def test_text_is_escaped_onto_one_line():
    text = encode_generate("", response(text_output=['a\n"\u2028'.encode()]))
    assert b"\n" not in text
    assert json.loads(text)["text_output"] == 'a\n"\u2028'


def test_numbers_that_json_lacks_are_bare():
    text = encode_generate(
        "", response({"p": float("nan")}, x=np.array([np.inf, 1], "<f8"), y=np.array([np.nan], "<f4"))
    )
    assert b'"p":NaN' in text
    assert b'"x":[Infinity,1.0]' in text
    assert b'"y":NaN' in text


def test_output_that_json_cannot_carry_is_an_error():
    with pytest.raises(InferError) as raised:
        encode_generate("", response(h=np.ones(1, "<f2")))
    assert raised.value.code is ErrorCode.INVALID_ARG
    with pytest.raises(InferError, match="not UTF-8"):
        encode_generate("", response(s=[b"\xff"]))
