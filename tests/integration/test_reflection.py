"""gRPC's reflection of a real server, asked by grpcio's client and by hand."""

from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2 as pb
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from support.server_process import ServerProcess

METHODS = [f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha")]
SERVICE = "inference.GRPCInferenceService"


@pytest.fixture
def channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc_url) as opened:
        yield opened


def test_client_without_proto_files_calls_a_model(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert set(database.get_services()) == {
        SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    pool = DescriptorPool(database)
    for method in pool.FindServiceByName(SERVICE).methods:
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        if method.name == "ModelMetadata":
            call = channel.unary_unary(f"/{SERVICE}/{method.name}", request.SerializeToString, response.FromString)
            metadata = call(request(name="identity"), timeout=60)
            assert [tensor.datatype for tensor in metadata.inputs] == ["FP32"]
            return
    pytest.fail("reflection shows no ModelMetadata")


def ask(channel: grpc.Channel, method: str, requests: list[bytes]) -> Iterator[bytes]:
    return channel.stream_stream(method)(iter(requests), timeout=120)


@pytest.mark.parametrize("method", METHODS)
def test_stream_goes_on_after_errors(channel: grpc.Channel, method: str) -> None:
    requests = [
        pb.ServerReflectionRequest(file_containing_symbol="inference.Nonesuch"),
        pb.ServerReflectionRequest(file_by_filename="grpc_service.proto"),
    ]
    call = ask(channel, method, [request.SerializeToString() for request in requests])
    answers = [pb.ServerReflectionResponse.FromString(answer) for answer in call]
    assert answers[0].error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert len(answers[1].file_descriptor_response.file_descriptor_proto) == 2
    assert call.code() is grpc.StatusCode.OK


def test_many_large_answers_are_all_sent(channel: grpc.Channel) -> None:
    request = pb.ServerReflectionRequest(file_containing_symbol=SERVICE).SerializeToString()
    sizes = [len(answer) for answer in ask(channel, METHODS[0], [request] * 400)]
    assert len(sizes) == 400
    assert min(sizes) > 10_000


def test_broken_message_ends_its_call_alone(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        list(ask(channel, METHODS[0], [b"\x3a\xff"]))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "ServerReflectionRequest" in raised.value.details()
    assert len(list(ask(channel, METHODS[0], [b"\x3a\x00"]))) == 1
