"""What a client encodes a server decodes to the same, and the other way round: JSON, binary and gRPC."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import RequestedOutput, RequestHeader, SharedMemoryRegion
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec, encode_bytes_elements
from naiad.protocol.grpc import client as grpc_client
from naiad.protocol.grpc.infer import InferRequestDecoder, encode_response
from naiad.protocol.json import client as json_client
from naiad.protocol.json.infer.infer import InferJsonDecoder
from naiad.protocol.json.response import encode as encode_json_response
from naiad.protocol.json.response import encode_in_slices
from support.long_run import examples

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
SHAPES = st.lists(st.integers(0, 3), max_size=4).map(tuple)
RESERVED = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output")
KEYS = NAMES.filter(lambda key: key not in RESERVED and not key.startswith("triton_"))
VALUES = st.one_of(
    TEXT, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)
)
PARAMETERS = st.dictionaries(KEYS, VALUES, max_size=3)
REGIONS = st.builds(SharedMemoryRegion, NAMES, st.integers(0, 2**40), st.integers(1, 2**40))
NOT_IN_JSON = (DataType.FP16, DataType.BF16)
IN_JSON = [datatype for datatype in DataType if datatype not in NOT_IN_JSON]


def raw_of(draw, spec):
    count = spec.element_count
    if spec.datatype is DataType.BYTES:
        return encode_bytes_elements(draw(st.lists(st.binary(max_size=9), min_size=count, max_size=count)))
    if spec.datatype is DataType.BOOL:
        return bytes(draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)))
    return draw(st.binary(min_size=spec.byte_size, max_size=spec.byte_size))


def json_raw_of(draw, spec):
    count = spec.element_count
    if spec.datatype is DataType.BYTES:
        texts = draw(st.lists(TEXT, min_size=count, max_size=count))
        return encode_bytes_elements([text.encode() for text in texts])
    return raw_of(draw, spec)


@st.composite
def tensors(draw, datatypes=tuple(DataType), raw=raw_of, max_size=3):
    names = draw(st.lists(NAMES, unique=True, max_size=max_size))
    specs = [TensorSpec(name, draw(st.sampled_from(datatypes)), draw(SHAPES)) for name in names]
    return specs, [raw(draw, spec) for spec in specs]


@st.composite
def requested_outputs(draw, *, is_json):
    name, kind = draw(NAMES), draw(st.sampled_from(["plain", "classes", "region", "binary"]))
    if kind == "region":
        return RequestedOutput(name, shared_memory=draw(REGIONS))
    classification = draw(st.integers(1, 1000)) if kind == "classes" else 0
    return RequestedOutput(name, binary=is_json and kind == "binary", classification=classification)


@st.composite
def requests(draw, *, is_json, datatypes=tuple(DataType), raw=raw_of):
    specs, data = draw(tensors(datatypes, raw))
    regions = {}
    for position, spec in enumerate(specs):
        if draw(st.integers(0, 5)) == 0:
            regions[spec.name] = draw(REGIONS)
            data[position] = b""
    header = RequestHeader(
        model_name=draw(NAMES),
        model_version=draw(st.sampled_from(["", "1", "27"])),
        inputs=specs,
        outputs=draw(st.lists(requested_outputs(is_json=is_json), max_size=3)),
        parameters=draw(PARAMETERS),
        priority=draw(st.integers(0, 2**64 - 1)),
        timeout_us=draw(st.integers(0, 2**63 - 1)),
        sequence_id=draw(st.one_of(st.integers(0, 2**64 - 1), TEXT)),
        sequence_start=draw(st.booleans()),
        sequence_end=draw(st.booleans()),
        binary_output_default=is_json and draw(st.booleans()),
        wants_empty_final=not is_json and draw(st.booleans()),
        shared_memory=regions,
    )
    return header, draw(TEXT), data


def assert_same_request(found, expected):
    (header, request_id, data), (expected_header, expected_id, expected_data) = found, expected
    for name in (
        "model_name",
        "model_version",
        "inputs",
        "outputs",
        "priority",
        "timeout_us",
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "binary_output_default",
        "wants_empty_final",
        "shared_memory",
    ):
        assert getattr(header, name) == getattr(expected_header, name), name
    assert typed(header.parameters) == typed(expected_header.parameters)
    assert request_id == expected_id
    for spec, content, expected_content in zip(header.inputs, data, expected_data, strict=True):
        assert_same_data(spec, content, expected_content)


def typed(parameters):
    return {key: (type(value), value) for key, value in parameters.items()}


def assert_same_data(spec, found, expected):
    """NaNs of any bits are equal: JSON writes all of them alike."""
    if bytes(found) != bytes(expected):
        arrays = [np.frombuffer(each, spec.datatype.numpy) for each in (found, expected)]
        assert spec.datatype.numpy.kind == "f"
        np.testing.assert_array_equal(*arrays)


@given(requests(is_json=True, datatypes=tuple(IN_JSON), raw=json_raw_of))
def test_json_requests_survive(request):
    header = request[0]
    parts, json_length = json_client.encode_request(*request, binary_inputs=False)
    assert json_length is None
    body = b"".join(parts)
    assert_same_request(InferJsonDecoder().decode(header.model_name, header.model_version, body, None), request)


@given(requests(is_json=True))
def test_binary_requests_survive(request):
    header = request[0]
    parts, json_length = json_client.encode_request(*request)
    body = b"".join(parts)
    decoded = InferJsonDecoder().decode(header.model_name, header.model_version, body, json_length)
    assert_same_request(decoded, request)
    for content, expected in zip(decoded[2], request[2], strict=True):
        assert bytes(content) == bytes(expected)


@given(requests(is_json=False))
def test_grpc_requests_survive(request):
    decoder = InferRequestDecoder()
    message = b"".join(grpc_client.encode_request(*request))
    for _ in range(2):
        assert_same_request(decoder.decode(message), request)


def test_large_inputs_are_not_copied():
    spec = TensorSpec("A", DataType.UINT8, (200_000,))
    header, data = RequestHeader(model_name="m", inputs=[spec]), memoryview(bytes(200_000))
    assert any(part is data for part in json_client.encode_request(header, "", [data])[0])
    assert any(part is data for part in grpc_client.encode_request(header, "", [data]))


@pytest.mark.parametrize("datatype", NOT_IN_JSON)
def test_json_refuses_datatypes_without_json_form(datatype):
    header = RequestHeader(model_name="m", inputs=[TensorSpec("A", datatype, (1,))])
    with pytest.raises(InferError, match=f"input 'A' is {datatype.value}.*binary") as raised:
        json_client.encode_request(header, "", [bytes(2)], binary_inputs=False)
    assert raised.value.code is ErrorCode.INVALID_ARG


def test_json_refuses_strings_that_are_not_utf8():
    header = RequestHeader(model_name="m", inputs=[TensorSpec("A", DataType.BYTES, (1,))])
    with pytest.raises(InferError, match=r"input 'A' .*UTF-8.*binary"):
        json_client.encode_request(header, "", [encode_bytes_elements([b"\xff"])], binary_inputs=False)


def test_grpc_refuses_integers_beyond_64_bits():
    with pytest.raises(InferError, match="parameter 'p'"):
        grpc_client.encode_request(RequestHeader(model_name="m", parameters={"p": 1 << 63}), "", [])


# --- responses ------------------------------------------------------------------------------------------------------


@st.composite
def responses(draw, datatypes=tuple(DataType), raw=raw_of):
    specs, data = draw(tensors(datatypes, raw))
    header = ResponseHeader(draw(NAMES), draw(st.sampled_from(["1", "27"])), specs)
    return draw(TEXT), InferResponse(header, data, parameters=draw(PARAMETERS))


def assert_same_response(found, expected):
    (request_id, response), (expected_id, expected_response) = found, expected
    assert request_id == expected_id
    for name in ("model_name", "model_version", "outputs"):
        assert getattr(response.header, name) == getattr(expected_response.header, name)
    assert typed(response.parameters) == typed(expected_response.parameters)
    for spec, content, wanted in zip(response.header.outputs, response.data, expected_response.data, strict=True):
        assert_same_data(spec, content, wanted)


def json_body(response, asked):
    parts, json_length = encode_json_response(response[0], asked, response[1])
    return b"".join(parts), json_length


@given(responses(tuple(IN_JSON), json_raw_of))
def test_json_responses_survive(response):
    body, json_length = json_body(response, RequestHeader(model_name="m"))
    assert json_length is None
    assert_same_response(json_client.decode_response(body, json_length), response)


@given(responses(), st.booleans())
def test_binary_responses_survive(response, is_listed):
    outputs = [RequestedOutput(spec.name, binary=True) for spec in response[1].header.outputs] if is_listed else []
    asked = RequestHeader(model_name="m", outputs=outputs, binary_output_default=not is_listed)
    body, json_length = json_body(response, asked)
    assert_same_response(json_client.decode_response(memoryview(body), json_length), response)


@given(responses())
def test_grpc_responses_survive(response):
    message = b"".join(encode_response(*response))
    assert_same_response(grpc_client.decode_response(memoryview(message)), response)


def test_long_json_responses_survive():
    spec = TensorSpec("A", DataType.FP32, (100_000,))
    response = InferResponse(ResponseHeader("m", "1", [spec]), [np.arange(100_000, dtype=np.float32).tobytes()])
    slices = encode_in_slices("7", RequestHeader(model_name="m"), response)
    try:
        while True:
            next(slices)
    except StopIteration as end:
        parts, json_length = end.value
    assert_same_response(json_client.decode_response(b"".join(parts), json_length), ("7", response))


@given(responses(), st.data())
@settings(max_examples=examples(200))
def test_damaged_responses_raise_infer_error(response, data):
    bodies = [
        b"".join(encode_response(*response)),
        json_body(response, RequestHeader(model_name="m", binary_output_default=True))[0],
    ]
    for body, decode in zip(bodies, (grpc_client.decode_response, json_client.decode_response), strict=True):
        damaged = bytearray(body)
        for _ in range(data.draw(st.integers(1, 3))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        arguments = () if decode is grpc_client.decode_response else (data.draw(st.none() | st.integers(0, 300)),)
        with contextlib.suppress(InferError):
            decode(bytes(damaged), *arguments)
