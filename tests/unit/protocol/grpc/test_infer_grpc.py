import struct

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import SharedMemoryRegion
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec, decode_bytes_elements
from naiad.protocol.grpc import infer as infer_grpc
from naiad.protocol.grpc.infer import InferRequestDecoder, encode_response, identify
from naiad.protocol.header_memory import SIGHTINGS
from naiad.protocol.service_pb2 import InferParameter, ModelInferRequest, ModelInferResponse


class AdmittingDecoder(InferRequestDecoder):
    """Its requests are admitted at once, as the engine does."""

    def decode(self, message):
        decoded = super().decode(message)
        decoded[0].admission = "admitted"
        return decoded


def add_sub(request_id="", size=64):
    message = ModelInferRequest(model_name="add_sub", model_version="1", id=request_id)
    for name in ("INPUT0", "INPUT1"):
        message.inputs.add(name=name, datatype="FP32", shape=[1, size // 4])
        message.raw_input_contents.append(name[-1:].encode() * size)
    message.outputs.add(name="OUTPUT0")
    return message


def decode(message):
    return AdmittingDecoder().decode(message.SerializeToString())


def refusal(message):
    with pytest.raises(InferError) as caught:
        decode(message)
    return caught.value


def one_input(datatype="FP32", shape=(1,), **contents):
    message = ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="x", datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    return message


class TestDecode:
    def test_header_id_and_data(self):
        header, request_id, data = decode(add_sub("42"))
        assert (header.model_name, header.model_version, request_id) == ("add_sub", "1", "42")
        assert header.inputs == tuple(TensorSpec(n, DataType.FP32, (1, 16)) for n in ("INPUT0", "INPUT1"))
        assert [output.name for output in header.outputs] == ["OUTPUT0"]
        assert [bytes(content) for content in data] == [b"0" * 64, b"1" * 64]

    @pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda b: memoryview(bytearray(b))])
    @pytest.mark.parametrize("size", [64, 100_000])
    def test_any_buffer(self, wrap, size):
        decoder = AdmittingDecoder()
        message = wrap(add_sub("7", size).SerializeToString())
        for _ in range(2):
            _, request_id, data = decoder.decode(message)
            assert request_id == "7"
            assert [bytes(content) for content in data] == [b"0" * size, b"1" * size]

    def test_large_data_are_views_on_the_message(self):
        decoder = AdmittingDecoder()
        message = bytearray(add_sub(size=100_000).SerializeToString())
        for _ in range(2):
            data = decoder.decode(message)[2]
            assert all(isinstance(content, memoryview) and content.obj is message for content in data)

    @pytest.mark.parametrize("ids", [("", ""), ("1", "2"), ("1", ""), ("", "1"), ("9", "10"), ("a" * 300, "b" * 300)])
    def test_equal_headers_share_object_for_any_id(self, ids):
        decoder = AdmittingDecoder()
        for _ in range(SIGHTINGS):
            decoder.decode(add_sub("other").SerializeToString())
        first, second = (decoder.decode(add_sub(i).SerializeToString()) for i in ids)
        assert decoder.decode(add_sub(ids[0]).SerializeToString())[0] is second[0]
        assert (first[1], second[1]) == ids

    def test_equal_headers_share_object_for_any_size(self):
        decoder = AdmittingDecoder()
        headers = set()
        for size in [0] * SIGHTINGS + [0, 1, 127, 128, 5000]:
            message = ModelInferRequest(model_name="m", raw_input_contents=[b"x" * size])
            message.inputs.add(name="s", datatype="BYTES", shape=[1])
            header, _, data = decoder.decode(message.SerializeToString())
            headers.add(header)
            assert bytes(data[0]) == b"x" * size
        # From then on there is one.
        assert len(headers) <= SIGHTINGS + 1

    def test_headers_that_differ_stay_apart(self):
        decoder = AdmittingDecoder()
        messages = [
            ModelInferRequest(model_name=name, model_version=version, id=request_id)
            for name in ("ab", "a", "\x1a\x01")
            for version in ("", "1", "\x1a")
            for request_id in ("", "1", "22")
        ]
        for message in messages * 2:
            header, request_id, _ = decoder.decode(message.SerializeToString())
            assert (header.model_name, header.model_version) == (message.model_name, message.model_version)
            assert request_id == message.id

    def test_empty_message(self):
        header, request_id, data = AdmittingDecoder().decode(b"")
        assert (header.model_name, header.inputs, request_id, data) == ("", (), "", [])

    def test_fields_in_reverse_order(self):
        serialized = add_sub("5").SerializeToString()
        raw_start = serialized.index(b"\x3a")
        header, request_id, data = AdmittingDecoder().decode(serialized[raw_start:] + serialized[:raw_start])
        assert (header.model_name, request_id) == ("add_sub", "5")
        assert [bytes(content) for content in data] == [b"0" * 64, b"1" * 64]

    def test_unknown_fields_are_skipped(self):
        header, request_id, data = AdmittingDecoder().decode(b"\x7a\x02hi" + add_sub("5").SerializeToString())
        assert (header.model_name, request_id, len(data)) == ("add_sub", "5", 2)

    def test_last_of_repeated_singular_fields_counts(self):
        later = ModelInferRequest(model_name="later", id="6").SerializeToString()
        header, request_id, _ = AdmittingDecoder().decode(add_sub("5").SerializeToString() + later)
        assert (header.model_name, request_id) == ("later", "6")

    def test_surplus_raw_contents_are_ignored(self):
        decoder = AdmittingDecoder()
        message = add_sub()
        message.raw_input_contents.append(b"surplus")
        for _ in range(2):
            assert len(decoder.decode(message.SerializeToString())[2]) == 2

    def test_zero_size_tensor(self):
        message = one_input(shape=(0, 4))
        message.raw_input_contents.append(b"")
        header, _, data = decode(message)
        assert (header.inputs[0].shape, data) == ((0, 4), [b""])

    def test_cache_is_bounded(self, monkeypatch):
        monkeypatch.setattr(infer_grpc, "_MAX_HEADERS", 64)
        monkeypatch.setattr(infer_grpc, "_MAX_LAYOUTS", 64)
        decoder = AdmittingDecoder()
        hot = add_sub().SerializeToString()
        for number in range(3 * infer_grpc._MAX_HEADERS):
            message = add_sub()
            message.parameters["sequence_id"].int64_param = number
            assert decoder.decode(message.SerializeToString())[0].sequence_id == number
            decoder.decode(hot + b"\x3a\x00" * (number % 3000))
        assert len(decoder._headers) <= infer_grpc._MAX_HEADERS
        assert len(decoder._layouts) <= infer_grpc._MAX_LAYOUTS

    def test_flood_of_headers_evicts_repeated_one_briefly(self):
        decoder = AdmittingDecoder()
        hot = add_sub().SerializeToString()
        new = 0
        for number in range(3 * infer_grpc._MAX_HEADERS):
            message = add_sub()
            message.parameters["sequence_id"].int64_param = number
            decoder.decode(message.SerializeToString())
            before = decoder.decode(hot)[0]
            decoder.decode(hot)
            new += decoder.decode(hot)[0] is not before
        assert new <= 4

    def test_large_headers_are_not_kept(self):
        decoder = AdmittingDecoder()
        message = add_sub()
        message.parameters["prompt"].string_param = "x" * infer_grpc._MAX_CACHED_PREFIX_BYTES
        decoder.decode(message.SerializeToString())
        decoder.decode(add_sub().SerializeToString())
        assert not decoder._headers


class TestWrongGuesses:
    """The decoder guesses where the id is; what it finds there may look right by accident or by intent."""

    output = ModelInferRequest(outputs=[{"name": "o"}]).SerializeToString()

    def test_id_tag_inside_a_model_name(self):
        decoder = AdmittingDecoder()
        decoder.decode(b"\x0a\x06abcdef")
        decoder.decode(b"\x0a\x01a" + self.output)
        with pytest.raises(InferError):
            decoder.decode(b"\x0a\x06a" + b"\x1a\x01z" + b"bcdef")

    def test_tail_beyond_cacheable_part_of_large_message(self):
        decoder = AdmittingDecoder()
        head = b"\x0a\x01m"
        request_id = ModelInferRequest(id="1" * 10).SerializeToString()
        message = ModelInferRequest()
        kept = infer_grpc._MAX_CACHED_PREFIX_BYTES - len(head) - len(request_id)
        message.parameters["p"].string_param = "x" * (kept - 12)
        filler = message.SerializeToString()
        assert len(filler) == kept
        assert not decoder.decode(head + filler)[0].outputs
        assert decoder.decode(head + filler + self.output)[0].outputs
        assert decoder.decode(head + request_id + filler + self.output)[0].outputs

    def test_id_length_in_several_bytes(self):
        decoder = AdmittingDecoder()
        decoder.decode(b"\x0a\x01m" + b"\x1a\x01a" + self.output)
        with pytest.raises(InferError):
            decoder.decode(b"\x0a\x01m" + b"\x1a\x80" + b"\x01" * 128 + self.output)


class TestMalformed:
    @pytest.mark.parametrize(
        "message",
        [
            b"\x0a",
            b"\x0a\x05abc",
            b"\xff\xff\xff",
            add_sub().SerializeToString()[:-1],
            add_sub().SerializeToString() + b"\x3a",
            add_sub().SerializeToString() + b"\x3a\xff\xff\xff\xff\xff\xff",
            b"\x1a\x01\xff",
            b"\x0a\x01\xff",
        ],
    )
    def test_is_refused_as_unparsable(self, message):
        decoder = AdmittingDecoder()
        decoder.decode(add_sub().SerializeToString())
        for _ in range(2):
            with pytest.raises(InferError, match="Unable to parse request") as caught:
                decoder.decode(message)
            assert (caught.value.code, caught.value.triton_code) == (ErrorCode.INVALID_ARG, ErrorCode.INTERNAL)

    def test_invalid_utf8_id_with_cached_header_is_rejected(self):
        decoder = AdmittingDecoder()
        known = add_sub("a").SerializeToString()
        decoder.decode(known)
        with pytest.raises(InferError, match="Unable to parse request"):
            decoder.decode(known.replace(b"\x1a\x01a", b"\x1a\x01\xff"))

    def test_first_of_two_ids_is_not_utf8(self):
        with pytest.raises(InferError, match="Unable to parse request"):
            AdmittingDecoder().decode(b"\x0a\x01m" + b"\x1a\x01\xff" + b"\x1a\x01a")

    def test_identify(self):
        assert identify(add_sub("9").SerializeToString()) == ("add_sub", "1", "9")
        with pytest.raises(InferError):
            identify(b"\x0a")


class TestParameters:
    @pytest.mark.parametrize(
        ("key", "value", "text"),
        [
            ("sequence_id", {"bool_param": True}, "sequence_id' parameter, expected int64_param or string_param."),
            ("sequence_start", {"int64_param": 1}, "sequence_start' parameter, expected bool_param."),
            ("sequence_end", {"string_param": "1"}, "sequence_end' parameter, expected bool_param."),
            ("priority", {"string_param": "1"}, "priority' parameter, expected int64_param or uint64_param."),
            ("timeout", {"uint64_param": 1}, "timeout' parameter, expected int64_param."),
            ("mine", {"uint64_param": 1}, "mine' parameter, expected int64_param, bool_param, or string_param."),
            ("mine", {}, "mine' parameter, expected int64_param, bool_param, or string_param."),
            ("triton_enable_empty_final_response", {"int64_param": 1}, "response' parameter, expected bool_param."),
        ],
    )
    def test_wrong_type(self, key, value, text):
        message = add_sub()
        message.parameters[key].CopyFrom(InferParameter(**value))
        error = refusal(message)
        assert error.code is ErrorCode.INVALID_ARG
        assert error.message.startswith("invalid value type for '")
        assert error.message.endswith(text)

    def test_negative_priority(self):
        message = add_sub()
        message.parameters["priority"].int64_param = -1
        assert refusal(message).message == "invalid value for 'priority', expected value >= 0."

    def test_negative_timeout(self):
        message = add_sub()
        message.parameters["timeout"].int64_param = -1
        assert refusal(message).message == "invalid value for 'timeout', expected value >= 0."

    def test_reserved_key(self):
        message = add_sub()
        message.parameters["triton_secret"].bool_param = True
        assert refusal(message).message == (
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
            "with 'triton_' are allowed: triton_enable_empty_final_response"
        )

    def test_values(self):
        message = add_sub()
        message.parameters["sequence_id"].int64_param = -1
        message.parameters["sequence_start"].bool_param = True
        message.parameters["sequence_end"].bool_param = True
        message.parameters["priority"].uint64_param = 2**63
        message.parameters["timeout"].int64_param = 5000
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        message.parameters["b"].bool_param = True
        message.parameters["i"].int64_param = -5
        message.parameters["s"].string_param = "ä"
        message.parameters["d"].double_param = 0.5
        header = decode(message)[0]
        assert header.sequence_id == 2**64 - 1
        assert (header.sequence_start, header.sequence_end) == (True, True)
        assert (header.priority, header.timeout_us) == (2**63, 5000)
        assert header.parameters == {"b": True, "i": -5, "s": "ä", "d": 0.5}

    def test_string_sequence_id(self):
        message = add_sub()
        message.parameters["sequence_id"].string_param = "abc"
        assert decode(message)[0].sequence_id == "abc"


class TestSharedMemory:
    def shared(self, **parameters):
        message = add_sub()
        del message.raw_input_contents[:]
        message.raw_input_contents.append(b"second")
        for key, value in parameters.items():
            message.inputs[0].parameters[f"shared_memory_{key}"].CopyFrom(InferParameter(**value))
        return message

    def test_raw_contents_skip_inputs_in_shared_memory(self):
        message = self.shared(region={"string_param": "r"}, byte_size={"int64_param": 64}, offset={"int64_param": 8})
        decoder = AdmittingDecoder()
        for _ in range(2):
            header, _, data = decoder.decode(message.SerializeToString())
            assert header.shared_memory == {"INPUT0": SharedMemoryRegion("r", 8, 64)}
            assert data == [b"", b"second"]

    @pytest.mark.parametrize("request_id", ["", "7"])
    def test_headers_are_remembered(self, request_id):
        message = self.shared(region={"string_param": "r"}, byte_size={"int64_param": 64})
        message.id = request_id
        decoder = AdmittingDecoder()
        for _ in range(SIGHTINGS):
            decoder.decode(message.SerializeToString())
        message.raw_input_contents[0] = b"other"
        first, _, _ = decoder.decode(message.SerializeToString())
        again, found_id, data = decoder.decode(message.SerializeToString())
        assert again is first
        assert (found_id, data) == (request_id, [b"", b"other"])
        del message.raw_input_contents[:]
        with pytest.raises(InferError, match="unable to find data for input tensor 'INPUT1'"):
            decoder.decode(message.SerializeToString())
        # Triton: too many are ignored.
        message.raw_input_contents.extend([b"third", b"surplus"])
        assert decoder.decode(message.SerializeToString())[2] == [b"", b"third"]

    @pytest.mark.parametrize(
        ("parameters", "text"),
        [
            (
                {"region": {"string_param": "r"}},
                "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
                "'INPUT0'",
            ),
            (
                {"offset": {"int64_param": 1}},
                "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor "
                "'INPUT0'",
            ),
            (
                {"byte_size": {"int64_param": 1}},
                "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor "
                "'INPUT0'",
            ),
            (
                {"region": {"int64_param": 1}},
                "invalid value type for 'shared_memory_region' parameter for tensor 'INPUT0', expected string_param.",
            ),
            (
                {"region": {"string_param": "r"}, "byte_size": {"uint64_param": 1}},
                "invalid value type for 'shared_memory_byte_size' parameter for tensor 'INPUT0', "
                "expected int64_param.",
            ),
        ],
    )
    def test_errors(self, parameters, text):
        assert refusal(self.shared(**parameters)).message == text

    def test_contents_beside_shared_memory(self):
        message = self.shared(region={"string_param": "r"}, byte_size={"int64_param": 64})
        message.inputs[0].contents.fp32_contents.append(1)
        assert refusal(message).message == (
            "unexpected 'content' provided when using shared memory for input tensor 'INPUT0' for model 'add_sub'"
        )

    def test_outputs(self):
        message = add_sub()
        message.outputs[0].parameters["shared_memory_region"].string_param = "r"
        message.outputs[0].parameters["shared_memory_byte_size"].int64_param = 64
        assert decode(message)[0].outputs[0].shared_memory == SharedMemoryRegion("r", 0, 64)
        message.outputs[0].parameters["classification"].int64_param = 3
        assert refusal(message).message == "output can't set both 'shared_memory_region' and 'classification'"


class TestClassification:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ({"uint64_param": 1}, "invalid value type for 'classification' parameter, expected int64_param"),
            ({"int64_param": 0}, "invalid value for 'classification' parameter, expected >= 0"),
        ],
    )
    def test_errors(self, value, text):
        message = add_sub()
        message.outputs[0].parameters["classification"].CopyFrom(InferParameter(**value))
        assert refusal(message).message == text

    def test_count(self):
        message = add_sub()
        message.outputs[0].parameters["classification"].int64_param = 3
        assert decode(message)[0].outputs[0].classification == 3


class TestContents:
    @pytest.mark.parametrize(
        ("datatype", "field", "values", "expected"),
        [
            ("BOOL", "bool_contents", [True, False], b"\1\0"),
            ("INT8", "int_contents", [-128, 127], b"\x80\x7f"),
            ("INT16", "int_contents", [-(2**15), 2**15 - 1], b"\0\x80\xff\x7f"),
            ("INT32", "int_contents", [-3, 2**31 - 1], struct.pack("<ii", -3, 2**31 - 1)),
            ("INT64", "int64_contents", [-(2**63)], struct.pack("<q", -(2**63))),
            ("UINT8", "uint_contents", [0, 255], b"\0\xff"),
            ("UINT16", "uint_contents", [1, 65535], b"\1\0\xff\xff"),
            ("UINT32", "uint_contents", [2**32 - 1], b"\xff" * 4),
            ("UINT64", "uint64_contents", [2**64 - 1], b"\xff" * 8),
            ("FP32", "fp32_contents", [1.5, float("inf")], np.array([1.5, np.inf], "<f4").tobytes()),
            ("FP64", "fp64_contents", [0.1], struct.pack("<d", 0.1)),
            ("BYTES", "bytes_contents", [b"", b"a\0b"], b"\0\0\0\0\3\0\0\0a\0b"),
        ],
    )
    def test_to_raw(self, datatype, field, values, expected):
        message = one_input(datatype, (len(values),), **{field: values})
        decoder = AdmittingDecoder()
        for _ in range(2):
            assert decoder.decode(message.SerializeToString())[2] == [expected]

    @pytest.mark.parametrize(
        ("datatype", "field", "value", "limits"),
        [
            ("INT8", "int_contents", 128, "from -128 to 127"),
            ("INT8", "int_contents", -129, "from -128 to 127"),
            ("INT16", "int_contents", 70000, "from -32768 to 32767"),
            ("UINT8", "uint_contents", 300, "from 0 to 255"),
            ("UINT16", "uint_contents", 2**32 - 1, "from 0 to 65535"),
        ],
    )
    @pytest.mark.parametrize("count", [2, 20_000])
    def test_integer_out_of_range(self, datatype, field, value, limits, count):
        message = one_input(datatype, (count,), **{field: [1] * (count - 1) + [value]})
        assert refusal(message).message == (
            f"an integer is out of range for {datatype} in the contents of input tensor 'x' for model 'm'; got "
            f"{value}, expected a value {limits}: change the value or the datatype"
        )

    def test_empty_contents_are_no_bytes(self):
        message = one_input(shape=(0,))
        message.inputs[0].contents.SetInParent()
        assert decode(message)[2] == [b""]

    def test_wrong_field(self):
        assert refusal(one_input("FP32", int64_contents=[1])).message == (
            "unexpected explicit tensor data for input tensor 'x' for model 'm' of type 'INT64', "
            "expected datatype 'FP32'"
        )

    def test_half_precision_has_no_field(self):
        assert "expected datatype 'FP16'" in refusal(one_input("FP16", fp32_contents=[1])).message

    def test_two_fields(self):
        assert refusal(one_input("INT32", int_contents=[1], int64_contents=[1])).message == (
            "unexpected explicit tensor data for input tensor 'x' for model 'm', binary data was already supplied."
        )

    def test_beside_raw_contents(self):
        message = one_input("FP32", fp32_contents=[1])
        message.raw_input_contents.append(b"1234")
        assert refusal(message).message == (
            "contents field must not be specified when using raw_input_contents for 'x' for model 'm'"
        )

    def test_no_data(self):
        decoder = AdmittingDecoder()
        message = add_sub()
        decoder.decode(message.SerializeToString())
        del message.raw_input_contents[1]
        with pytest.raises(InferError) as caught:
            decoder.decode(message.SerializeToString())
        assert caught.value.message == (
            "unable to find data for input tensor 'INPUT1' for model 'add_sub' in request."
        )

    def test_unknown_datatype(self):
        error = refusal(one_input("FP8", fp32_contents=[1]))
        assert error.code is ErrorCode.INVALID_ARG
        assert error.message.startswith("inference input 'x' data-type is 'FP8'")


class TestEncode:
    header = ResponseHeader("m", "2", [TensorSpec("a", DataType.FP32, (1, 2)), TensorSpec("b", DataType.BYTES, (1,))])

    def parse(self, parts):
        return ModelInferResponse.FromString(b"".join(parts))

    @pytest.mark.parametrize("request_id", ["", "17", "ü" * 200])
    def test_parses_back(self, request_id):
        parsed = self.parse(encode_response(request_id, InferResponse(self.header, [b"12345678", b"\1\0\0\0x"])))
        assert (parsed.id, parsed.model_name, parsed.model_version) == (request_id, "m", "2")
        assert [(o.name, o.datatype, list(o.shape)) for o in parsed.outputs] == [
            ("a", "FP32", [1, 2]),
            ("b", "BYTES", [1]),
        ]
        assert list(parsed.raw_output_contents) == [b"12345678", b"\1\0\0\0x"]
        assert decode_bytes_elements(parsed.raw_output_contents[1]) == [b"x"]

    def test_is_what_the_protobuf_library_writes(self):
        parts = encode_response("3", InferResponse(self.header, [b"12345678", b""]))
        assert len(parts) == 1
        assert self.parse(parts).SerializeToString(deterministic=True) == parts[0]

    def test_parameters(self):
        values = {"b": True, "i": -(2**63), "d": 0.5, "s": "ä"}
        parsed = self.parse(encode_response("", InferResponse(self.header, [b"", b""], parameters=values)))
        assert {k: getattr(p, p.WhichOneof("parameter_choice")) for k, p in parsed.parameters.items()} == values

    @pytest.mark.parametrize(("value", "code"), [(b"x", ErrorCode.UNSUPPORTED), (2**63, ErrorCode.INTERNAL)])
    def test_parameters_that_cannot_travel(self, value, code):
        with pytest.raises(InferError, match="esponse parameter 'p'") as caught:
            encode_response("", InferResponse(self.header, [b"", b""], parameters={"p": value}))
        assert caught.value.code is code

    @pytest.mark.parametrize("parameters", [{"p": "\ud800"}, {"\ud800": 1}])
    def test_half_a_surrogate_pair_is_an_error(self, parameters):
        with pytest.raises(InferError, match=r"response parameter 'p?.*' is not valid Unicode") as caught:
            encode_response("", InferResponse(self.header, [b"", b""], parameters=parameters))
        assert caught.value.code is ErrorCode.INTERNAL

    def test_large_outputs_are_parts_of_their_own(self):
        large, small = memoryview(bytes(100_000)), b"tail"
        parts = encode_response("1", InferResponse(self.header, [large, small]))
        assert len(parts) == 3
        assert parts[1] is large
        assert list(self.parse(parts).raw_output_contents) == [bytes(large), small]

    def test_larger_than_a_message(self):
        class Huge(bytes):
            def __len__(self):
                return 2**31 - 1

        with pytest.raises(InferError, match="exceeds gRPC's byte size limit 2147483647") as caught:
            encode_response("", InferResponse(self.header, [Huge(), b""]))
        assert caught.value.code is ErrorCode.INVALID_ARG
