import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.core.datatype import BY_NAME, DataType
from naiad.core.errors import InferError
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.protocol.grpc.infer import InferRequestDecoder, encode_response
from naiad.protocol.service_pb2 import InferParameter, ModelInferRequest, ModelInferResponse
from support.long_run import examples

names = st.text(max_size=12)
sizes = st.one_of(st.integers(0, 300), st.sampled_from([4095, 4096, 5000, 20_000]))
contents = st.builds(lambda size, byte: bytes([byte]) * size, sizes, st.integers(0, 255))
shapes = st.lists(st.integers(-1, 1 << 40), max_size=3)
parameters = st.one_of(
    st.builds(lambda v: InferParameter(bool_param=v), st.booleans()),
    st.builds(lambda v: InferParameter(int64_param=v), st.integers(-(2**63), 2**63 - 1)),
    st.builds(lambda v: InferParameter(string_param=v), names),
    st.builds(lambda v: InferParameter(double_param=v), st.floats(allow_nan=False)),
)
reserved_keys = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout")
custom_keys = names.filter(lambda k: k not in reserved_keys and not k.startswith("triton_"))


@st.composite
def requests(draw):
    message = ModelInferRequest(
        model_name=draw(names), model_version=draw(st.sampled_from(["", "1", "12"])), id=draw(names)
    )
    for key, parameter in draw(st.dictionaries(custom_keys, parameters, max_size=2)).items():
        message.parameters[key].CopyFrom(parameter)
    for raw in draw(st.lists(contents, max_size=3)):
        message.inputs.add(name=draw(names), datatype=draw(st.sampled_from(list(BY_NAME))), shape=draw(shapes))
        message.raw_input_contents.append(raw)
    for name in draw(st.lists(names, max_size=2)):
        message.outputs.add(name=name)
    return message


def check(decoded, message):
    header, request_id, data = decoded
    assert (header.model_name, header.model_version, request_id) == (
        message.model_name,
        message.model_version,
        message.id,
    )
    assert [(i.name, i.datatype.value, list(i.shape)) for i in header.inputs] == [
        (i.name, i.datatype, list(i.shape)) for i in message.inputs
    ]
    assert [o.name for o in header.outputs] == [o.name for o in message.outputs]
    assert header.parameters == {
        k: getattr(p, p.WhichOneof("parameter_choice")) for k, p in message.parameters.items()
    }
    assert [bytes(content) for content in data] == list(message.raw_input_contents)


@given(st.lists(requests(), min_size=1, max_size=4), st.lists(st.tuples(st.integers(0, 3), names), max_size=8))
@settings(max_examples=examples(300))
def test_decode_agrees_with_protobuf_after_other_messages(messages, picks):
    decoder = InferRequestDecoder()
    for message in messages:
        check(decoder.decode(message.SerializeToString()), message)
    for pick, request_id in picks:
        message = messages[pick % len(messages)]
        message.id = request_id
        check(decoder.decode(memoryview(message.SerializeToString())), message)


def top_level_fields(message):
    """Split a message's bytes into its fields, by serializing each alone."""
    pieces = []
    for descriptor, value in message.ListFields():
        if descriptor.is_repeated and not (
            descriptor.message_type and descriptor.message_type.GetOptions().map_entry
        ):
            values = list(value)
        else:
            values = [value]
        for one in values:
            piece = ModelInferRequest()
            if descriptor.message_type and descriptor.message_type.GetOptions().map_entry:
                for key in one:
                    getattr(piece, descriptor.name)[key].CopyFrom(one[key])
            elif descriptor.is_repeated:
                getattr(piece, descriptor.name).append(one)
            else:
                setattr(piece, descriptor.name, one)
            pieces.append(piece.SerializeToString())
    return pieces


@given(requests(), requests(), st.randoms())
@settings(max_examples=examples(200))
def test_decode_agrees_with_protobuf_in_any_field_order(message, other, random):
    pieces = top_level_fields(message)
    random.shuffle(pieces)
    shuffled = b"".join(pieces)
    decoder = InferRequestDecoder()
    for serialized in (other.SerializeToString(), shuffled, message.SerializeToString(), shuffled):
        check(decoder.decode(serialized), ModelInferRequest.FromString(serialized))


@given(requests(), st.data())
@settings(max_examples=examples(500))
def test_damaged_messages_raise_or_agree_with_protobuf(message, data):
    decoder = InferRequestDecoder()
    good = message.SerializeToString()
    decoder.decode(good)
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    outcomes = []
    for fresh in (decoder, InferRequestDecoder()):
        try:
            header, request_id, buffers = fresh.decode(bytes(damaged))
        except InferError as error:
            outcomes.append(error.message)
        else:
            parsed = ModelInferRequest.FromString(bytes(damaged))
            assert (header.model_name, header.model_version, request_id) == (
                parsed.model_name,
                parsed.model_version,
                parsed.id,
            )
            assert [(i.name, i.shape) for i in header.inputs] == [(i.name, tuple(i.shape)) for i in parsed.inputs]
            outcomes.append([bytes(b) for b in buffers])
    assert outcomes[0] == outcomes[1]


@given(st.binary(max_size=200))
@settings(max_examples=examples(500))
def test_random_bytes_raise_nothing_but_infer_error(message):
    with contextlib.suppress(InferError):
        InferRequestDecoder().decode(message)


@given(
    names,
    names,
    st.lists(st.tuples(names, st.sampled_from(list(DataType)), shapes), max_size=3),
    st.lists(st.one_of(contents, st.just(bytes(70_000))), min_size=3, max_size=3),
    st.dictionaries(names, st.one_of(st.booleans(), names, st.integers(-(2**63), 2**63 - 1)), max_size=2),
)
def test_encoded_responses_parse_back_equal(request_id, model_name, outputs, data, response_parameters):
    header = ResponseHeader(model_name, "1", [TensorSpec(n, d, tuple(s)) for n, d, s in outputs])
    response = InferResponse(header, data[: len(outputs)], parameters=response_parameters)
    parts = encode_response(request_id, response)
    parsed = ModelInferResponse.FromString(b"".join(parts))
    assert (parsed.id, parsed.model_name, parsed.model_version) == (request_id, model_name, "1")
    assert [(o.name, o.datatype, tuple(o.shape)) for o in parsed.outputs] == [
        (n, d.value, tuple(s)) for n, d, s in outputs
    ]
    assert list(parsed.raw_output_contents) == data[: len(outputs)]
    assert {
        k: getattr(p, p.WhichOneof("parameter_choice")) for k, p in parsed.parameters.items()
    } == response_parameters
    assert encode_response(request_id, response) == parts or response_parameters
