"""The descriptors that reflection shows, and its answers to valid and to broken requests."""

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as triton

from naiad.core.errors import ErrorCode, InferError
from naiad.operations.table import BY_GRPC_PATH
from naiad.protocol.reflection.answers import ReflectionAnswers
from naiad.protocol.reflection.service_files import served_files
from naiad.protocol.reflection.symbol_index import SymbolIndex

FILES = served_files(list(BY_GRPC_PATH))
ANSWERS = ReflectionAnswers(SymbolIndex(FILES))
NOT_FOUND = grpc.StatusCode.NOT_FOUND.value[0]
INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT.value[0]


def ask(**request: object) -> pb.ServerReflectionResponse:
    message = pb.ServerReflectionRequest(**request)
    answer = pb.ServerReflectionResponse.FromString(ANSWERS.answer(message.SerializeToString()))
    assert answer.original_request == message
    return answer


def test_the_files_describe_all_served_methods() -> None:
    pool = DescriptorPool()
    for file in FILES:
        pool.Add(file)
    for path in BY_GRPC_PATH:
        _, service, method = path.split("/")
        assert pool.FindServiceByName(service).methods_by_name[method] is not None


def test_methods_that_are_not_served_are_left_out() -> None:
    index = SymbolIndex(served_files(["/inference.GRPCInferenceService/ServerLive"]))
    assert index.services == ["inference.GRPCInferenceService"]
    assert index.file_declaring("inference.GRPCInferenceService.ServerLive") is not None
    assert index.file_declaring("inference.GRPCInferenceService.ModelInfer") is None


def test_messages_are_equal_to_tritons() -> None:
    pool = DescriptorPool()
    for file in FILES:
        pool.Add(file)
    request = triton.ModelInferRequest(model_name="m", id="7", raw_input_contents=[b"\x00\x00\x80\x3f"])
    request.inputs.add(name="IN", datatype="FP32", shape=[1])
    request.parameters["priority"].uint64_param = 3
    shown = GetMessageClass(pool.FindMessageTypeByName("inference.ModelInferRequest"))
    read = shown.FromString(request.SerializeToString())
    assert (read.model_name, read.inputs[0].name, read.parameters["priority"].uint64_param) == ("m", "IN", 3)
    config = GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfigResponse"))
    assert config.FromString(triton.ModelConfigResponse(config={"name": "m"}).SerializeToString()).config.name == "m"


@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        ("inference.GRPCInferenceService", "grpc_service.proto"),
        (".inference.GRPCInferenceService.ModelStreamInfer", "grpc_service.proto"),
        ("inference.ModelMetadataResponse.TensorMetadata.shape", "grpc_service.proto"),
        ("inference.InferParameter.parameter_choice", "grpc_service.proto"),
        ("inference.TYPE_FP32", "model_config.proto"),
        ("grpc.health.v1.HealthCheckResponse.SERVING", "grpc/health/v1/health.proto"),
        ("grpc.reflection.v1alpha.ErrorResponse", "grpc/reflection/v1alpha/reflection.proto"),
    ],
)
def test_symbol_is_found_in_its_file(symbol: str, file: str) -> None:
    found = ask(file_containing_symbol=symbol).file_descriptor_response.file_descriptor_proto
    files = [FileDescriptorProto.FromString(data) for data in found]
    assert files[0].name == file
    assert {name for each in files for name in each.dependency} <= {each.name for each in files}
    assert list(ask(file_by_filename=file).file_descriptor_response.file_descriptor_proto) == list(found)


def test_what_does_not_exist_is_not_found() -> None:
    for request in (
        {"file_by_filename": "other.proto"},
        {"file_containing_symbol": "inference.Nonesuch"},
        {"file_containing_extension": {"containing_type": "inference.ModelInferRequest", "extension_number": 100}},
        {"all_extension_numbers_of_type": "inference.Nonesuch"},
    ):
        error = ask(**request).error_response
        assert error.error_code == NOT_FOUND
        assert error.error_message.startswith(("there is no", "message 'inference.ModelInferRequest' has no"))


def test_message_without_extensions_has_no_numbers() -> None:
    numbers = ask(all_extension_numbers_of_type="inference.ModelInferRequest").all_extension_numbers_response
    assert numbers.base_type_name == "inference.ModelInferRequest"
    assert not numbers.extension_number


def test_empty_question_is_an_error() -> None:
    answer = ask(host="h")
    assert (answer.valid_host, answer.error_response.error_code) == ("h", INVALID_ARGUMENT)
    assert "file_containing_symbol" in answer.error_response.error_message


def test_long_names_are_cut_and_messages_refused() -> None:
    assert len(ask(file_containing_symbol="x" * 5000).error_response.error_message) < 300
    with pytest.raises(InferError, match="at most 65536 are allowed") as raised:
        ask(file_containing_symbol="x" * 70000)
    assert raised.value.code is ErrorCode.INVALID_ARG


@given(st.binary(max_size=64))
def test_any_bytes_are_answered_or_refused(message: bytes) -> None:
    try:
        answer = ANSWERS.answer(message)
    except InferError:
        return  # refused; any other exception is a defect
    assert pb.ServerReflectionResponse.FromString(answer).WhichOneof("message_response") is not None
