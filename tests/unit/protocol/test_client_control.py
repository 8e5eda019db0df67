"""What a server says about itself and its models, as a client decodes it: JSON and gRPC alike."""

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError
from naiad.core.model import IndexEntry, ModelMetadata, ModelState, ServerMetadata
from naiad.core.slices import finish
from naiad.core.tensor import TensorSpec
from naiad.protocol.grpc import client as grpc_client
from naiad.protocol.grpc import control as grpc_server
from naiad.protocol.json import client as json_client
from naiad.protocol.json.management import control as json_server
from naiad.protocol.status_table import code_of_grpc, code_of_http, status_of
from naiad.telemetry.statistics.version_statistics import (
    BatchStatistics,
    Duration,
    PositionStatistics,
    VersionStatistics,
)

SIDES = pytest.mark.parametrize(
    ("server", "client"), [(json_server, json_client), (grpc_server, grpc_client)], ids=["json", "grpc"]
)
FILES = {"1/model.py": b"\x00\xff", "config.pbtxt": b""}


@SIDES
def test_server_metadata_survives(server, client):
    metadata = ServerMetadata("naiad", "1", ["a", "b"])
    assert client.decode_server_metadata(server.encode_server_metadata(metadata)) == metadata


@SIDES
def test_model_metadata_survives(server, client):
    inputs = [TensorSpec("A ä", DataType.BF16, (-1, 3)), TensorSpec("B", DataType.BYTES, ())]
    metadata = ModelMetadata("m", ["1", "2"], "python", inputs, inputs[:1])
    assert client.decode_model_metadata(server.encode_model_metadata(metadata)) == metadata


@SIDES
def test_repository_index_survives(server, client):
    rows = [
        IndexEntry("never"),
        IndexEntry("a", "1", ModelState.READY),
        IndexEntry("b", "2", ModelState.UNAVAILABLE, "x"),
    ]
    assert client.decode_repository_index(server.encode_repository_index(rows)) == rows


def test_statistics_are_alike_over_both_protocols():
    batch = BatchStatistics(4, Duration(1, 10), Duration(1, 20), Duration(1, 30))
    response = PositionStatistics(*[Duration(number, 100 + number) for number in range(6)])
    row = VersionStatistics("m", "1", success=Duration(3, 4), batch_stats=[batch], response_stats=[response])
    over_json = json_client.decode_statistics(json_server.encode_statistics([row]))
    over_grpc = grpc_client.decode_statistics(finish(grpc_server.statistics_in_slices([row])))
    assert over_json == over_grpc
    assert over_json[0]["inference_stats"]["success"] == {"count": 3, "ns": 4}


def test_model_config_survives():
    config = ModelConfig(name="m", max_batch_size=3)
    assert grpc_client.decode_model_config(grpc_server.encode_model_config(config)) == config


@SIDES
@pytest.mark.parametrize("flag", [True, False])
def test_index_request_survives(server, client, flag):
    assert server.decode_index_request(client.encode_index_request(only_ready=flag)) is flag


@pytest.mark.parametrize("config", ["", '{"name": "m"}'])
@pytest.mark.parametrize("files", [{}, FILES])
def test_load_survives(config, files):
    expected = {f"file:{path}": content for path, content in files.items()} | ({"config": config} if config else {})
    assert json_server.decode_load_parameters(json_client.encode_load(config, files)) == expected
    assert grpc_server.decode_load_request(grpc_client.encode_load("m", config, files)) == ("m", expected)


@pytest.mark.parametrize("flag", [True, False])
def test_unload_survives(flag):
    expected = {"unload_dependents": flag}
    assert json_server.decode_unload_parameters(json_client.encode_unload(unload_dependents=flag)) == expected
    message = grpc_client.encode_unload("m", unload_dependents=flag)
    assert grpc_server.decode_unload_request(message) == ("m", expected)


def test_system_registration_survives():
    body = json_client.encode_system_registration("/k", 4096, 2**40)
    assert json_server.decode_system_registration(body) == ("/k", 4096, 2**40)
    message = grpc_client.encode_system_registration("r", "/k", 4096, 2**40)
    assert grpc_server.decode_system_registration(message) == ("r", "/k", 4096, 2**40)


def test_cuda_registration_survives():
    handle = bytes(range(64))
    body = json_client.encode_cuda_registration(handle, 1, 2**40)
    assert json_server.decode_cuda_registration(body) == (handle, 1, 2**40)
    message = grpc_client.encode_cuda_registration("r", handle, 1, 2**40)
    assert grpc_server.decode_cuda_registration(message) == ("r", handle, 1, 2**40)
    assert grpc_server.decode_name(grpc_client.encode_region_name("r")) == "r"


def test_model_reference_survives():
    assert grpc_server.decode_model_reference(grpc_client.encode_model_reference("m", "2")) == ("m", "2")


@pytest.mark.parametrize("flag", [True, False])
def test_flags_survive(flag):
    assert grpc_client.decode_flag(grpc_server.encode_flag(flag)) is flag


DECODERS = ["decode_server_metadata", "decode_model_metadata", "decode_statistics", "decode_repository_index"]


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("body", [b"", b"[1]", b"7", b'{"a"', b'{"name": 1, "model_stats": 2}', b"\xff"])
def test_other_json_is_an_error(decode, body):
    with pytest.raises(InferError) as raised:
        getattr(json_client, decode)(body)
    assert raised.value.code is ErrorCode.INTERNAL


@pytest.mark.parametrize("decode", [*DECODERS, "decode_flag"])
def test_other_bytes_are_an_error(decode):
    with pytest.raises(InferError, match=r"not a .* message"):
        getattr(grpc_client, decode)(b"\xff\xff")


@pytest.mark.parametrize(
    ("body", "message"),
    [(b'{"error": "no"}', "no"), (b"<html>", "<html>"), (b'{"error": 7}', "7"), (b"[]", "[]"), (b"", "")],
)
def test_message_of_a_failure(body, message):
    assert json_client.decode_error(body) == message


@pytest.mark.parametrize("code", ErrorCode)
def test_codes_survive_their_status(code):
    assert code_of_grpc(status_of(InferError(code, "no")).grpc) is code
    status = status_of(InferError(code, "no")).http
    assert code_of_http(status) is (ErrorCode.INVALID_ARG if status == 400 else code)


def test_statuses_of_other_servers():
    assert (code_of_http(418), code_of_grpc(99)) == (ErrorCode.UNKNOWN, ErrorCode.UNKNOWN)
    assert (code_of_http(401), code_of_grpc(16)) == (ErrorCode.PERMISSION_DENIED, ErrorCode.PERMISSION_DENIED)
