"""What a server answers over gRPC to calls that are wrong: framing, metadata, messages, tensors, parameters."""

import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from naiad.protocol.service_pb2 import ModelInferRequest
from support.model_repository import write_identity
from support.process_resources import ProcessResources
from support.raw_http2 import (
    DATA,
    END_STREAM,
    GRPC_INFER,
    GRPC_LIVE,
    Http2Answer,
    Http2Peer,
    frame,
    grpc_head,
    grpc_message,
)
from support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]

INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 3, 4, 5, 8, 12, 13
GENERATED_ID = re.compile(r"\[request id: [a-z0-9-]+\] ")


def identity_request(
    raw: bytes = bytes(16), datatype: str = "FP32", shape: tuple[int, ...] = (1, 4), model: str = "identity"
) -> ModelInferRequest:
    request = ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT0", datatype=datatype, shape=shape)
    request.raw_input_contents.append(raw)
    return request


GOOD = identity_request().SerializeToString()


@pytest.fixture(scope="module", autouse=True)
def nothing_leaks(server: ServerProcess) -> Iterator[None]:
    """After all that is done here, the server holds what it held before."""
    with Http2Peer(server.grpc_url) as peer:
        assert peer.call(1, GRPC_INFER, GOOD).grpc_status == 0
    resources = ProcessResources(server.process.pid)
    yield
    resources.assert_back()
    assert "Traceback" not in server.log_text()


@pytest.fixture
def peer(server: ServerProcess) -> Iterator[Http2Peer]:
    """A connection that must still work after the test."""
    with Http2Peer(server.grpc_url) as opened:
        yield opened
        assert opened.call(2**31 - 1, GRPC_INFER, GOOD).grpc_status == 0


@pytest.fixture(scope="module")
def channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc_url) as opened:
        yield opened


def refusal(channel: grpc.Channel, request: ModelInferRequest | bytes, path: str = GRPC_INFER) -> tuple[int, str]:
    message = request if isinstance(request, bytes) else request.SerializeToString()
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(path)(message, timeout=60)
    return caught.value.code().value[0], caught.value.details()


def send_body(peer: Http2Peer, body: bytes, **fields: str) -> Http2Answer:
    peer.send(peer.headers(1, grpc_head(GRPC_LIVE, **fields)) + frame(DATA, END_STREAM, 1, body))
    return peer.answer(1)


class TestMetadata:
    @pytest.mark.parametrize("content_type", ["text/plain", "application/json", "application/grpcx", ""])
    def test_wrong_content_type(self, peer: Http2Peer, content_type: str) -> None:
        answer = send_body(peer, grpc_message(b""), content_type=content_type)
        assert answer.fields[":status"] == "415"
        assert b"application/grpc" in answer.body

    @pytest.mark.parametrize("content_type", ["application/grpc+proto", "application/grpc;charset=utf-8"])
    def test_content_types_of_grpc(self, peer: Http2Peer, content_type: str) -> None:
        assert send_body(peer, grpc_message(b""), content_type=content_type).grpc_status == 0

    def test_wrong_method(self, peer: Http2Peer) -> None:
        head = [(":method", "GET"), *grpc_head()[1:]]
        peer.send(peer.headers(1, head, end=True))
        assert peer.answer(1).fields[":status"] == "405"

    @pytest.mark.parametrize("timeout", ["", "1", "S", "-1S", "123456789S", "1.5S", "1x"])
    def test_malformed_timeout(self, peer: Http2Peer, timeout: str) -> None:
        answer = send_body(peer, grpc_message(b""), grpc_timeout=timeout)
        assert answer.grpc_status == INTERNAL
        assert "malformed grpc-timeout" in answer.grpc_message

    def test_timeout_that_has_passed(self, peer: Http2Peer) -> None:
        slow = identity_request(model="slow_identity").SerializeToString()
        assert peer.call(1, GRPC_INFER, slow, grpc_timeout="10m").grpc_status == DEADLINE_EXCEEDED

    def test_unknown_encoding(self, peer: Http2Peer) -> None:
        answer = send_body(peer, grpc_message(b""), grpc_encoding="snappy")
        assert answer.grpc_status == UNIMPLEMENTED
        assert "'snappy' is not supported" in answer.grpc_message
        assert "gzip" in answer.fields["grpc-accept-encoding"]

    @pytest.mark.parametrize(
        "path",
        [
            "/inference.GRPCInferenceService/Nonsense",
            "/inference.GRPCInferenceService/",
            "/inference.Other/ModelInfer",
            "/",
            "/ModelInfer",
            "/inference.GRPCInferenceService/ModelInfer/",
            "/grpc.health.v1.Health/List",
        ],
    )
    def test_unknown_method(self, peer: Http2Peer, path: str) -> None:
        answer = peer.call(1, path, b"")
        assert answer.grpc_status == UNIMPLEMENTED
        assert answer.grpc_message


class TestFraming:
    @pytest.mark.parametrize(
        ("body", "status", "text"),
        [
            (b"", UNIMPLEMENTED, "a unary call needs one request message, got none"),
            (b"\0\0\0", INTERNAL, "the request ends within a message"),
            (grpc_message(b"abc", length=4), INTERNAL, "the request ends within a message"),
            (grpc_message(b"", length=2**31 - 1), INTERNAL, "the request ends within a message"),
            (grpc_message(b"", length=2**32 - 1), RESOURCE_EXHAUSTED, "Received message larger than max"),
            (grpc_message(b"abcdefgh", length=3), INTERNAL, "malformed message prefix"),
            (grpc_message(b"abc", length=2), INTERNAL, "the request ends within a message"),
            (grpc_message(b"") * 2, UNIMPLEMENTED, "a unary call takes one request message, got more"),
            (grpc_message(b"", flag=2), INTERNAL, "malformed message prefix: compressed flag 2"),
            (grpc_message(b"", flag=255), INTERNAL, "malformed message prefix: compressed flag 255"),
            (grpc_message(b"", flag=1), INTERNAL, "compressed message without a grpc-encoding"),
        ],
    )
    def test_lengths_and_flags_that_lie(self, peer: Http2Peer, body: bytes, status: int, text: str) -> None:
        answer = send_body(peer, body)
        assert answer.grpc_status == status
        assert answer.grpc_message.startswith(text)

    @pytest.mark.parametrize(
        ("encoding", "data"),
        [
            ("gzip", b"garbage"),
            ("gzip", b""),
            ("deflate", b"garbage"),
            ("gzip", zlib.compress(b"not gzip")),
            ("deflate", zlib.compress(bytes(1000))[:-3]),
        ],
    )
    def test_broken_compression(self, peer: Http2Peer, encoding: str, data: bytes) -> None:
        answer = send_body(peer, grpc_message(data, flag=1), grpc_encoding=encoding)
        assert answer.grpc_status == INTERNAL
        assert "cannot decompress the message" in answer.grpc_message

    def test_announced_length_takes_no_memory(self, server: ServerProcess, peer: Http2Peer) -> None:
        before = ProcessResources(server.process.pid).resident_bytes()
        for stream_id in range(1, 201, 2):
            peer.send(peer.headers(stream_id, grpc_head(GRPC_INFER)))
            peer.send(frame(DATA, 0, stream_id, grpc_message(b"x", length=2**31 - 1)))
        peer.send(peer.headers(201) + frame(DATA, END_STREAM, 201, grpc_message(b"")))
        assert peer.answer(201).grpc_status == 0
        assert ProcessResources(server.process.pid).resident_bytes() - before < 2**25

    def test_calls_cut_off_by_reset_or_end(self, server: ServerProcess) -> None:
        for end in (frame(3, 0, 1, bytes(4)), b""):
            with Http2Peer(server.grpc_url) as peer:
                peer.send(peer.headers(1, grpc_head(GRPC_INFER)))
                peer.send(frame(DATA, 0, 1, grpc_message(GOOD)[:-1]) + end)


class TestMessages:
    @pytest.mark.parametrize(
        "message",
        [
            GOOD[:-1],
            GOOD[:9],
            b"\xff",
            b"\xff\xff\xff",
            b"\x0a\xff\xff\xff\xff\x0f",
            b"\x0a\x03\xff\xfe\xfd",
            b"\x0b",
            b"\x07",
            bytes(100),
        ],
    )
    @pytest.mark.parametrize(
        "method", ["ModelInfer", "ModelMetadata", "ModelConfig", "ModelReady", "ModelStatistics"]
    )
    def test_bytes_that_are_no_message(self, channel: grpc.Channel, method: str, message: bytes) -> None:
        code, text = refusal(channel, message, f"/inference.GRPCInferenceService/{method}")
        assert code == INVALID_ARGUMENT
        assert text.startswith("Unable to parse request")

    @pytest.mark.parametrize("length", [b"\x11", b"\xff\xff\xff\xff\x07", b"\xff" * 9 + b"\x01", b"\xff" * 11])
    def test_raw_contents_whose_length_lies(self, channel: grpc.Channel, length: bytes) -> None:
        code, text = refusal(channel, GOOD + b"\x3a" + length + bytes(16))
        assert code == INVALID_ARGUMENT
        assert text.startswith("Unable to parse request")

    def test_fields_of_a_wrong_type_are_unknown_ones(self, channel: grpc.Channel) -> None:
        assert refusal(channel, b"\x08\x01") == (NOT_FOUND, "Request for unknown model: '' is not found")

    def test_nesting_of_the_wire_format(self, channel: grpc.Channel) -> None:
        groups = b"\x4b" * 10_000 + b"\x4c" * 10_000
        assert refusal(channel, GOOD + groups)[0] == INVALID_ARGUMENT

    @pytest.mark.parametrize("version", ["x", "1.0", "-2", "1 ", "\N{ARABIC-INDIC DIGIT ONE}"])
    def test_version_that_is_no_version(self, channel: grpc.Channel, version: str) -> None:
        request = identity_request()
        request.model_version = version
        code, text = refusal(channel, request)
        assert code == INVALID_ARGUMENT
        assert text.startswith("failed to get model version from specified version string")

    @pytest.mark.parametrize("method", ["ModelInfer", "ModelMetadata", "ModelConfig"])
    @pytest.mark.parametrize(
        ("name", "version", "text"),
        [
            ("nothing", "", "Request for unknown model: 'nothing' is not found"),
            ("identity", "3", "Request for unknown model: 'identity' version 3 is not found; known versions: 1"),
            ("", "", "Request for unknown model: '' is not found"),
            ("ü 100 %\n", "", "Request for unknown model: 'ü 100 %\\n' is not found"),
        ],
    )
    def test_unknown_model(self, channel: grpc.Channel, method: str, name: str, version: str, text: str) -> None:
        # The requests of all these methods begin with name and version.
        request = ModelInferRequest(model_name=name, model_version=version)
        assert refusal(channel, request, f"/inference.GRPCInferenceService/{method}") == (NOT_FOUND, text)

    def test_unknown_model_wins_over_anything_else(self, channel: grpc.Channel) -> None:
        request = identity_request(datatype="NONSENSE", model="nothing")
        assert refusal(channel, request) == (NOT_FOUND, "Request for unknown model: 'nothing' is not found")


def with_contents(datatype: str, raw: bytes | None = None, **contents: Any) -> ModelInferRequest:
    request = ModelInferRequest(model_name="identity")
    made = request.inputs.add(name="INPUT0", datatype=datatype, shape=[1, 1])
    for field, values in contents.items():
        getattr(made.contents, field).extend(values)
    if raw is not None:
        request.raw_input_contents.append(raw)
    return request


class TestTensors:
    """Protocol notes 3 and 5."""

    @pytest.mark.parametrize(
        ("request_", "text"),
        [
            (identity_request(shape=(1, -1)), "All input dimensions should be specified for input 'INPUT0'"),
            (identity_request(shape=(-1, 4)), "inference request batch-size must be <= 8 for 'identity'"),
            (identity_request(shape=(1, -(2**63))), "All input dimensions should be specified"),
        ],
    )
    def test_negative_dimensions(self, channel: grpc.Channel, request_: ModelInferRequest, text: str) -> None:
        code, message = refusal(channel, request_)
        assert code == INVALID_ARGUMENT
        assert GENERATED_ID.sub("", message).startswith(text)

    @pytest.mark.parametrize(
        ("request_", "text"),
        [
            (with_contents("FP32"), "unable to find data for input tensor 'INPUT0' for model 'identity' in request."),
            (
                with_contents("FP32", bytes(4), fp32_contents=[1]),
                "contents field must not be specified when using raw_input_contents for 'INPUT0' for model "
                "'identity'",
            ),
            (
                with_contents("FP32", int_contents=[1]),
                "unexpected explicit tensor data for input tensor 'INPUT0' for model 'identity' of type 'INT32', "
                "expected datatype 'FP32'",
            ),
            (
                with_contents("FP32", fp32_contents=[1], fp64_contents=[1]),
                "unexpected explicit tensor data for input tensor 'INPUT0' for model 'identity', binary data was "
                "already supplied.",
            ),
            (with_contents("NONSENSE", bytes(4)), "inference input 'INPUT0' data-type is 'NONSENSE'"),
            (with_contents("", bytes(4)), "inference input 'INPUT0' data-type is ''"),
        ],
    )
    def test_data_in_the_wrong_place(self, channel: grpc.Channel, request_: ModelInferRequest, text: str) -> None:
        code, message = refusal(channel, request_)
        assert (code, message[: len(text)]) == (INVALID_ARGUMENT, text)

    def test_typed_contents_of_a_wrong_number(self, channel: grpc.Channel) -> None:
        code, text = refusal(channel, with_contents("FP32", fp32_contents=[1, 2, 3]))
        assert code == INVALID_ARGUMENT
        assert "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 4, got 12" in text

    def test_raw_contents_left_over_are_ignored(self, channel: grpc.Channel) -> None:
        request = identity_request()
        request.raw_input_contents.append(b"left over")
        assert channel.unary_unary(GRPC_INFER)(request.SerializeToString(), timeout=60)


class TestParameters:
    @pytest.mark.parametrize(
        ("key", "value", "text"),
        [
            ("sequence_id", {"bool_param": True}, "invalid value type for 'sequence_id' parameter, expected int64"),
            (
                "sequence_start",
                {"int64_param": 1},
                "invalid value type for 'sequence_start' parameter, expected bool",
            ),
            ("sequence_end", {"string_param": "x"}, "invalid value type for 'sequence_end' parameter, expected bool"),
            ("priority", {"string_param": "1"}, "invalid value type for 'priority' parameter, expected int64_param"),
            ("priority", {"int64_param": -1}, "invalid value for 'priority', expected value >= 0."),
            ("timeout", {"uint64_param": 1}, "invalid value type for 'timeout' parameter, expected int64_param"),
            ("timeout", {}, "invalid value type for 'timeout' parameter, expected int64_param"),
            (
                "mine",
                {"uint64_param": 1},
                "invalid value type for 'mine' parameter, expected int64_param, bool_param",
            ),
            ("mine", {}, "invalid value type for 'mine' parameter, expected"),
            ("triton_x", {"bool_param": True}, "parameter keys starting with 'triton_' are reserved"),
            (
                "triton_enable_empty_final_response",
                {"int64_param": 1},
                "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param",
            ),
        ],
    )
    def test_of_the_wrong_type(self, channel: grpc.Channel, key: str, value: dict[str, Any], text: str) -> None:
        request = identity_request()
        request.parameters[key].SetInParent()
        for field, content in value.items():
            setattr(request.parameters[key], field, content)
        code, message = refusal(channel, request)
        assert (code, message[: len(text)]) == (INVALID_ARGUMENT, text)

    def test_refusal_carries_the_id_of_its_log_line(self, channel: grpc.Channel, server: ServerProcess) -> None:
        request = identity_request(shape=(4,))
        request.id = "grpc bad shape"
        code, text = refusal(channel, request)
        assert code == INVALID_ARGUMENT
        assert text.startswith("[request id: grpc bad shape] unexpected shape")
        server.wait_log(r"W.*\[request id: grpc bad shape\] gRPC request for model 'identity' .*unexpected shape")


def test_limits_of_size(start_server: StartServer, tmp_path: Path) -> None:
    """One server with small limits: larger requests are refused with the limit, also when it unfolds to more."""
    write_identity(tmp_path / "models")
    limited = start_server(
        tmp_path / "models",
        "--grpc-max-message-size=65536",
        "--http-max-input-size=4096",
        "--http-max-body-size=65536",
    )
    limited.wait_ready()
    with Http2Peer(limited.grpc_url) as peer:
        answer = peer.call(1, GRPC_INFER, bytes(65537))
        assert (answer.grpc_status, answer.grpc_message) == (
            RESOURCE_EXHAUSTED,
            "Received message larger than max (65537 vs. 65536 bytes); send less",
        )
        bomb = zlib.compress(bytes(50_000_000))
        peer.send(peer.headers(3, grpc_head(grpc_encoding="deflate")))
        peer.send(frame(DATA, END_STREAM, 3, grpc_message(bomb, flag=1)))
        assert peer.answer(3).grpc_status == RESOURCE_EXHAUSTED
        assert peer.call(5, GRPC_INFER, GOOD).grpc_status == 0
    json_body = b'{"inputs": [], "pad": "' + b"x" * 5000 + b'"}'
    answer = limited.request("POST", "/v2/models/identity/infer", json_body)
    assert answer.status == 400
    assert "exceeds the maximum allowed input size of 4096 bytes" in answer.json["error"]
    answer = limited.request("POST", "/v2/models/identity/infer", bytes(65537))
    assert answer.status == 413
    assert "65537" in answer.json["error"]
    assert "65536" in answer.json["error"]
