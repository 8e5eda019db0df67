import json
import struct

import pytest

from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError
from naiad.core.model import ModelMetadata
from naiad.core.request import SharedMemoryRegion
from naiad.core.tensor import TensorSpec
from naiad.protocol.header_memory import SIGHTINGS
from naiad.protocol.json.infer.binary import decode_raw
from naiad.protocol.json.infer.infer import InferJsonDecoder


def tensor(**changes):
    return {"name": "A", "shape": [1, 2], "datatype": "FP32", "data": [0.5, 2], **changes}


def body(*inputs, **members):
    return json.dumps({"inputs": list(inputs) or [tensor()], **members}).encode()


def admitted(decoded):
    """Note, as the engine does, that a request was admitted."""
    decoded[0].admission = "admitted"
    return decoded


def decode(text, json_length=None):
    return InferJsonDecoder().decode("m", "", text, json_length)


def binary(tail, *sizes, **members):
    inputs = [
        {"name": f"I{i}", "shape": [size], "datatype": "UINT8", "parameters": {"binary_data_size": size}}
        for i, size in enumerate(sizes)
    ]
    text = json.dumps({**members, "inputs": inputs}, separators=(",", ":")).encode()
    return text + tail, len(text)


def refusal(text, json_length=None):
    with pytest.raises(InferError) as caught:
        decode(text, json_length)
    return caught.value.triton_code, caught.value.message


def test_json_request_has_header_id_and_data():
    header, request_id, data = decode(body(id="r1"))
    assert (header.model_name, header.model_version, request_id) == ("m", "", "r1")
    assert header.inputs == (TensorSpec("A", DataType.FP32, (1, 2)),)
    assert [bytes(buffer) for buffer in data] == [struct.pack("<2f", 0.5, 2)]


def test_reserved_parameters_become_fields_and_others_stay_parameters():
    parameters = {
        "sequence_id": 7,
        "sequence_start": True,
        "sequence_end": True,
        "priority": 3,
        "timeout": 250,
        "binary_data_output": True,
        "text": "x",
        "count": 1,
        "flag": False,
        "ratio": 1.5,
    }
    header, _, _ = decode(body(parameters=parameters))
    assert (header.sequence_id, header.sequence_start, header.sequence_end) == (7, True, True)
    assert (header.priority, header.timeout_us, header.binary_output_default) == (3, 250, True)
    assert header.parameters == {"text": "x", "count": 1, "flag": False, "ratio": 1.5}


def test_sequence_id_may_be_a_string():
    header, _, _ = decode(body(parameters={"sequence_id": "s"}))
    assert header.sequence_id == "s"


def test_requested_outputs_carry_their_parameters():
    region = {"shared_memory_region": "r", "shared_memory_offset": 8, "shared_memory_byte_size": 16}
    outputs = [
        {"name": "X", "parameters": {"binary_data": True}},
        {"name": "Y", "parameters": {"classification": 3}},
        {"name": "Z", "parameters": region},
    ]
    x, y, z = decode(body(outputs=outputs))[0].outputs
    assert (x.name, x.binary, x.classification) == ("X", True, 0)
    assert (y.binary, y.classification) == (False, 3)
    assert z.shared_memory == SharedMemoryRegion("r", 8, 16)


def test_shared_memory_input_has_region_without_data():
    entry = tensor(parameters={"shared_memory_region": "r", "shared_memory_byte_size": 8})
    del entry["data"]
    header, _, data = decode(body(entry))
    assert header.shared_memory == {"A": SharedMemoryRegion("r", 0, 8)}
    assert data == [b""]


def test_binary_tail_is_cut_in_input_order():
    _, _, data = decode(*binary(b"abcde", 2, 0, 3))
    assert [bytes(buffer) for buffer in data] == [b"ab", b"", b"cde"]


def test_large_tail_is_not_copied():
    text, length = binary(bytes(100_000), 100_000)
    received = bytearray(text)
    _, _, (data,) = decode(memoryview(received), length)
    received[-1] = 7
    assert data[-1] == 7


def test_inline_and_tail_data_mix():
    text = body(tensor(), {"name": "B", "shape": [3], "datatype": "INT8", "parameters": {"binary_data_size": 3}})
    _, _, data = decode(text + b"xyz", len(text))
    assert [bytes(buffer) for buffer in data] == [struct.pack("<2f", 0.5, 2), b"xyz"]


@pytest.mark.parametrize("members", [{}, {"id": "x"}, {"id": 'quo"te'}])
def test_repeated_json_shares_one_header(members):
    decoder = InferJsonDecoder()
    for _ in range(SIGHTINGS - 1):
        admitted(decoder.decode("m", "", *binary(b"ab", 2, **members)))
    first, first_id, _ = admitted(decoder.decode("m", "", *binary(b"ab", 2, **members)))
    second, second_id, data = decoder.decode("m", "", *binary(b"cd", 2, **members))
    assert first is second
    assert first_id == second_id == members.get("id", "")
    assert data == [b"cd"]


def test_requests_differing_in_id_share_header():
    decoder = InferJsonDecoder()
    for number in range(SIGHTINGS - 1):
        admitted(decoder.decode("m", "", *binary(b"ab", 2, id=f"x{number}")))
    first, first_id, _ = admitted(decoder.decode("m", "", *binary(b"ab", 2, id="1")))
    second, second_id, _ = decoder.decode("m", "", *binary(b"ab", 2, id="two"))
    assert first is second
    assert (first_id, second_id) == ("1", "two")


def test_header_is_separate_per_model_and_version():
    decoder = InferJsonDecoder()
    text, length = binary(b"ab", 2)
    headers = [decoder.decode(*model, text, length)[0] for model in (("m", ""), ("n", ""), ("m", "1"))]
    assert [(h.model_name, h.model_version) for h in headers] == [("m", ""), ("n", ""), ("m", "1")]


def test_equal_json_requests_of_equal_types_share_header():
    decoder = InferJsonDecoder()
    headers = [
        admitted(decoder.decode("m", "", body(tensor(data=[i, i]), parameters={"p": p}), None))[0]
        for i, p in enumerate([1] * (SIGHTINGS + 1) + [True])
    ]
    assert headers[-3] is headers[-2]
    assert headers[-1].parameters["p"] is True


def test_caches_are_bounded():
    decoder = InferJsonDecoder(cached_headers=2)
    for p in [0] * (SIGHTINGS + 1):
        first = admitted(decoder.decode("m", "", *binary(b"", 0, parameters={"p": p})))[0]
    assert decoder.decode("m", "", *binary(b"", 0, parameters={"p": 0}))[0] is first
    for p in [1, 2, 3] * (SIGHTINGS + 1):
        admitted(decoder.decode("m", "", *binary(b"", 0, parameters={"p": p})))
    assert decoder.decode("m", "", *binary(b"", 0, parameters={"p": 0}))[0] is not first


INTERNAL, INVALID = ErrorCode.INTERNAL, ErrorCode.INVALID_ARG


# Texts recorded from a Triton server.
@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (b"{}", INTERNAL, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        (b"[]", INTERNAL, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        (b"1", INTERNAL, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        (b'{"inputs":{}}', INTERNAL, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        (body(id=3), INTERNAL, "Unable to parse 'id': attempt to access JSON non-string as string"),
        (body(parameters=[1]), INTERNAL, "failed to get request params.: attempt to get members for non-object"),
        (body(tensor(name=3)), INTERNAL, "Unable to parse 'name': attempt to access JSON non-string as string"),
        (body(tensor(datatype="FP99")), INVALID, "invalid datatype for input A"),
        (
            body(tensor(datatype=3)),
            INTERNAL,
            "Unable to parse 'datatype': attempt to access JSON non-string as string",
        ),
        (body(tensor(shape=2)), INTERNAL, "Unable to parse 'shape': attempt to access JSON non-array as array"),
        (
            body(tensor(shape=[-1, 2])),
            INTERNAL,
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            body({"name": "A", "datatype": "FP32", "data": [1]}),
            INTERNAL,
            "Unable to parse 'shape': attempt to access non-existing object member 'shape'",
        ),
        (
            body(parameters={"priority": -1}),
            INTERNAL,
            "Unable to parse 'priority': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            body(parameters={"sequence_start": 1}),
            INTERNAL,
            "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean",
        ),
        (
            body(parameters={"foo": [1]}),
            INVALID,
            "parameter 'foo' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        (
            body(parameters={"triton_x": 1}),
            INVALID,
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
        ),
        (
            body(outputs=[{"name": "O", "parameters": {"classification": "2"}}]),
            INTERNAL,
            "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            body(outputs=[{}]),
            INTERNAL,
            "Unable to parse 'name': attempt to access non-existing object member 'name'",
        ),
        (
            body({"name": "A", "shape": [1], "datatype": "FP32"}),
            INVALID,
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            "'shared_memory_region' in 'parameters'. But no field is set",
        ),
        (
            body(tensor(parameters={"binary_data_size": 4})),
            INVALID,
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            "'shared_memory_region' in 'parameters'. But set 'data' 'binary_data_size'",
        ),
        (
            body({"name": "A", "shape": [1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}),
            INVALID,
            "unexpected size for input 'A', expecting 4 additional bytes for model 'm'",
        ),
    ],
)
def test_refuses_with_the_code_and_text_of_triton(text, code, message):
    found_code, found_message = refusal(text)
    assert (found_code, found_message[: len(message)]) == (code, message)


@pytest.mark.parametrize(
    ("inputs", "ending"),
    [
        ([tensor(name="A"), tensor(name="B", data=["x", 1])], 'as double; got "x", expected a number'),
        (
            [tensor(name="A"), tensor(name="B", data=[1])],
            "got 1 elements, expected 2 for 'shape' [1, 2]: correct one of the two (input 'B')",
        ),
        ([tensor(name="A"), {"name": "B", "shape": [1], "datatype": "FP32"}], "no field is set (input 'B')"),
        ([tensor(name="A"), tensor(name=3)], 'such as "name": "INPUT0" (inputs[1])'),
        ([tensor(name="A"), "B"], "no field is set (inputs[1])"),
        ([tensor(datatype="float32")], "input A; expected one of BOOL, UINT8"),
    ],
)
def test_error_names_wrong_input_after_triton_text(inputs, ending):
    _, message = refusal(body(*inputs))
    assert ending in message
    assert message.count("input 'B'") <= 1


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (b"abc", "unexpected size for input 'I1', expecting 1 additional bytes for model 'm'"),
        (b"a", "unexpected size for input 'I0', expecting 1 additional bytes for model 'm'"),
        (b"abcde", "unexpected additional input data for model 'm'"),
    ],
)
def test_refuses_a_tail_of_another_size_than_announced(tail, message):
    code, found = refusal(*binary(tail, 2, 2))
    assert code is INVALID
    assert found.startswith(f"{message}; got {len(tail)} bytes after the JSON, expected 4")


@pytest.mark.parametrize("length", [-3, 9999])
def test_refuses_a_json_length_outside_the_body(length):
    text, _ = binary(b"ab", 2)
    expected = f"inference header size should be in range (0, {len(text)}), got: {length}"
    assert refusal(text, length) == (INVALID, expected)


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"nope",
        b'{"inputs":[}',
        b'{"inputs":' + b"[" * 500,
        b'{"id":"\xff","inputs":[]}',
        b'{"id":"\\ud800","inputs":[]}',
        b'{"inputs":[{"data":[1e999]}]}x',
        b'{"inputs":[NaN,"\\ud800"]}',
    ],
)
def test_what_is_not_json_is_a_parse_error(text):
    code, message = refusal(text)
    assert code is INTERNAL
    assert message.startswith("failed to parse the request JSON buffer: ")


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1E+400", "1.5e0309", "9" * 4301, "-" + "9" * 5000])
@pytest.mark.parametrize("place", ["data", "parameter", "shape"])
def test_number_beyond_a_double_is_refused(number, place):
    """Triton's parser refuses it; Python's would make infinity of it, or ask for sys.set_int_max_str_digits."""
    member = {
        "data": f'"data":[1,{number}]',
        "parameter": f'"parameters":{{"p":{number}}}',
        "shape": f'"shape":[{number}]',
    }
    text = f'{{"inputs":[{{"name":"IN","shape":[2],"datatype":"FP32",{member[place]}}}]}}'.encode()
    code, message = refusal(text)
    assert code is INTERNAL
    assert message.startswith("failed to parse the request JSON buffer: Number too big to be stored in double; got ")
    assert len(message) < 400


def test_large_numbers_and_texts_like_them_are_accepted():
    text = b'{"id":"1e999","inputs":[{"name":"IN","shape":[3],"datatype":"FP64","data":[1e308,1e-999,Infinity]}]}'
    _, request_id, data = decode(text)
    assert request_id == "1e999"
    assert struct.unpack("<3d", data[0]) == (1e308, 0.0, float("inf"))


def test_parse_error_has_position():
    hint = ' at 11; got {"inputs":[} there, expected one JSON object: check its quotes, commas and brackets'
    assert refusal(b'{"inputs":[}')[1].endswith(hint)


def test_invalid_utf8_id_with_tail_is_rejected():
    text = b'{"id":"\xff","inputs":[]}'
    assert refusal(text, len(text))[0] is INVALID


def raw(spec, data, *, batching=True):
    metadata = ModelMetadata("m", ["1"], "", [spec], [])
    return decode_raw("m", "", data, metadata, batching=batching)


def test_raw_body_takes_its_shape_from_the_model():
    spec = TensorSpec("A", DataType.FP32, (-1, 2, -1))
    header, request_id, data = raw(spec, bytes(24))
    assert header.inputs == (TensorSpec("A", DataType.FP32, (1, 2, 3)),)
    assert header.binary_output_default
    assert (request_id, data) == ("", [bytes(24)])


def test_raw_body_of_bytes_is_one_element():
    header, _, data = raw(TensorSpec("A", DataType.BYTES, (-1,)), b"abc", batching=False)
    assert header.inputs[0].shape == (1,)
    assert data == [b"\x03\0\0\0abc"]


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        (TensorSpec("A", DataType.FP32, (-1, -1, -1)), "more than one variable-sized dimension"),
        (TensorSpec("A", DataType.BYTES, (-1, 2)), "must have input shape [1]"),
    ],
)
def test_raw_body_without_deducible_shape_is_rejected(spec, key):
    with pytest.raises(InferError, match=key.replace("[", r"\[")):
        raw(spec, b"")


def test_raw_body_for_several_inputs_is_rejected():
    spec = TensorSpec("A", DataType.FP32, (1,))
    metadata = ModelMetadata("m", ["1"], "", [spec, spec], [])
    with pytest.raises(InferError, match="Raw request must only have 1 input"):
        decode_raw("m", "", b"", metadata, batching=False)


def test_name_with_nul_is_unknown_member():
    header, _, data = decode(body({**tensor(), "\0": 1, "data\0": 2}))
    assert [spec.name for spec in header.inputs] == [tensor()["name"]]
    assert len(data) == 1


def test_unusual_names_fall_back_to_slow_parser():
    entry = {"name": "A", "shape": [1], "datatype": "FP32", "data": [1], "x\0y": 1}
    header, _, _ = InferJsonDecoder().decode("m", "", json.dumps({"inputs": [entry]}).encode(), None)
    assert header.inputs[0].name == "A"


def test_half_surrogate_in_data_has_clear_error():
    text = b'{"inputs": [{"name": "A", "shape": [1], "datatype": "BYTES", "data": ["x\\ude00"]}]}'
    with pytest.raises(InferError, match="half of a surrogate pair"):
        InferJsonDecoder().decode("m", "", text, None)


@pytest.mark.parametrize("half", ["\\ud800", "\\udbff", "\\udc00", "\\uDFFF"])
def test_half_surrogate_as_request_id_is_refused(half):
    text = b'{"id": "x%s", "inputs": [{"name": "A", "shape": [1], "datatype": "FP32", "data": [1]}]}' % half.encode()
    with pytest.raises(InferError, match="half of a surrogate pair"):
        InferJsonDecoder().decode("m", "", text, None)
