"""What a server answers over HTTP to requests that are wrong, byte for byte; protocol notes 2 to 4 as tables."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.model_repository import write_identity
from support.process_resources import ProcessResources
from support.raw_http1 import HttpAnswer, HttpPeer, http_request
from support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]

IDENTITY = "/v2/models/identity/infer"
ADD_SUB = "/v2/models/add_sub/infer"


def infer_body(datatype: str = "FP32", shape: Any = (1, 4), data: Any = (1, 2, 3, 4), **members: Any) -> bytes:
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": shape, "data": data}
    return json.dumps({"inputs": [tensor], **members}).encode()


GOOD = http_request(IDENTITY, infer_body())


def binary_request(sizes: list[Any], tail: bytes, *, json_length: object = None, shape: Any = (1, 4)) -> bytes:
    """A request to add_sub or, with one size, to identity, whose JSON announces `sizes`."""
    inputs = [
        {"name": f"INPUT{i}", "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": size}}
        for i, size in enumerate(sizes)
    ]
    document = json.dumps({"inputs": inputs}).encode()
    length = len(document) if json_length is None else json_length
    path = IDENTITY if len(sizes) == 1 else ADD_SUB
    return http_request(path, document + tail, headers={"Inference-Header-Content-Length": str(length)})


@pytest.fixture(scope="module", autouse=True)
def nothing_leaks(server: ServerProcess) -> Iterator[None]:
    """After all that is done here, the server holds what it held before."""
    assert ask(server, GOOD).status == 200
    resources = ProcessResources(server.process.pid)
    yield
    assert ask(server, GOOD).status == 200
    resources.assert_back()
    assert "Traceback" not in server.log_text()


@pytest.fixture(autouse=True)
def still_serving(server: ServerProcess) -> Iterator[None]:
    """After each test a good request is answered."""
    yield
    answer = ask(server, GOOD)
    assert answer.status == 200
    assert json.loads(answer.body)["outputs"][0]["data"] == [1, 2, 3, 4]


def ask(server: ServerProcess, data: bytes) -> HttpAnswer:
    with HttpPeer(server.http_url) as peer:
        peer.send(data)
        return peer.answer()


def refusal(server: ServerProcess, data: bytes) -> tuple[int, str]:
    """Return status and message; the connection must be good for another request."""
    with HttpPeer(server.http_url) as peer:
        peer.send(data)
        answer = peer.answer()
        assert answer.headers.get("connection", "") != "close"
        peer.send(GOOD)
        assert peer.answer().status == 200
    return answer.status, answer.error


def last_words(server: ServerProcess, *pieces: bytes, half_close: bool = False) -> HttpAnswer:
    """Return the answer after which the server closes the connection."""
    with HttpPeer(server.http_url) as peer:
        for piece in pieces:
            peer.send(piece)
        if half_close:
            peer.half_close()
        answer = peer.answer()
        assert answer.headers["connection"] == "close"
        assert peer.is_closed_by_server()
    return answer


class TestPaths:
    @pytest.mark.parametrize(
        "path",
        [
            "//",
            "/v2/",
            "/v3",
            "/v2/nothing",
            "/v2/health",
            "/v2/health/live/",
            "/v2/models//infer",
            "/v2/models/identity/versions/1/versions/1/infer",
            "/v2/models/identity/versions/-1/infer",
            "/v2/models/identity/versions/-1",
            "/v2/models/identity/infer/",
            "/v2/models/identity/generates",
            "/%00",
            "/v2/models/../../etc/passwd",
        ],
    )
    @pytest.mark.parametrize("body", [None, b"{}"])
    def test_unknown_path(self, server: ServerProcess, path: str, body: bytes | None) -> None:
        status, message = refusal(server, http_request(path, body))
        assert (status, message[:11]) == (404, "Not Found: ")
        assert message.endswith("requests for a model go to /v2/models/NAME/infer")

    def test_metrics_are_on_another_port(self, server: ServerProcess) -> None:
        status, message = refusal(server, http_request("/metrics", None))
        port = server.metrics_url.rpartition(":")[2]
        assert (status, message) == (404, f"Not Found: metrics have a port of their own, --metrics-port ({port})")

    @pytest.mark.parametrize(
        ("method", "path", "allowed"),
        [
            ("GET", IDENTITY, "POST"),
            ("PUT", IDENTITY, "POST"),
            ("DELETE", "/v2/models/identity", "GET, HEAD"),
            ("POST", "/v2", "GET, HEAD"),
            ("POST", "/v2/health/ready", "GET, HEAD"),
            ("GET", "/v2/repository/index", "POST"),
            ("GET", "/v2/repository/models/identity/load", "POST"),
            ("OPTIONS", "/v2/models/stats", "GET, HEAD"),
        ],
    )
    def test_wrong_method(self, server: ServerProcess, method: str, path: str, allowed: str) -> None:
        answer = ask(server, http_request(path, b"", method=method))
        assert (answer.status, answer.error) == (405, f"Method Not Allowed: {path} takes {allowed}")
        assert answer.headers["allow"] == allowed

    @pytest.mark.parametrize("suffix", ["", "/config", "/infer"])
    @pytest.mark.parametrize(
        ("model", "text"),
        [
            ("nothing", "Request for unknown model: 'nothing' is not found"),
            ("nothing/versions/3", "Request for unknown model: 'nothing' is not found"),
            ("identity/versions/3", "Request for unknown model: 'identity' version 3 is not found"),
            ("identity/versions/99999999999999999999", "Request for unknown model: 'identity' version "),
            ("a%20%22%C3%BC", "Request for unknown model: 'a \"ü' is not found"),
        ],
    )
    def test_unknown_model(self, server: ServerProcess, model: str, text: str, suffix: str) -> None:
        body = infer_body() if suffix == "/infer" else None
        status, message = refusal(server, http_request(f"/v2/models/{model}{suffix}", body))
        assert status == 404
        assert message.startswith(text)

    def test_unknown_model_is_not_ready(self, server: ServerProcess) -> None:
        request = http_request("/v2/models/nothing/ready")
        assert refusal(server, request) == (400, "Model version not ready")

    def test_unknown_model_wins_over_anything_in_the_body(self, server: ServerProcess) -> None:
        status, text = refusal(server, http_request("/v2/models/nothing/infer", b"\xff{{{"))
        assert (status, text) == (404, "Request for unknown model: 'nothing' is not found")

    @pytest.mark.parametrize(
        ("path", "text"),
        [
            ("/v2/models/nothing/stats", "requested model 'nothing' is not available"),
            (
                "/v2/models/identity/versions/3/stats",
                "requested model version is not available for model 'identity'",
            ),
        ],
    )
    def test_statistics_of_the_unknown(self, server: ServerProcess, path: str, text: str) -> None:
        assert refusal(server, http_request(path)) == (400, text)

    @pytest.mark.parametrize(
        ("path", "body", "status", "text"),
        [
            ("/v2/repository/models/identity/load", b"", 400, "explicit model load / unload is not allowed"),
            ("/v2/repository/models/identity/unload", b"{}", 400, "explicit model load / unload is not allowed"),
            (
                "/v2/repository/mine/models/identity/load",
                b"",
                501,
                "'repository_name' specification is not supported",
            ),
            ("/v2/repository/index", b'{"ready": 1}', 400, ""),
            ("/v2/repository/index", b"{", 400, "failed to parse the request JSON buffer: "),
        ],
    )
    def test_repository(self, server: ServerProcess, path: str, body: bytes, status: int, text: str) -> None:
        got, message = refusal(server, http_request(path, body))
        assert got == status
        assert message.startswith(text)

    @pytest.mark.parametrize("method", ["POST", "PUT"])
    def test_metrics_are_only_read(self, server: ServerProcess, method: str) -> None:
        answer = server.request(method, "/metrics", b"", url=server.metrics_url)
        assert answer.status == 405


class TestJson:
    @pytest.mark.parametrize(
        "body",
        [
            b"{",
            b"[1,2",
            b"nonsense",
            b'{"inputs": [}',
            b'{"inputs": []} trailing',
            b'{"inputs": [], }',
            b"{'inputs': []}",
            b'{"inputs": [\x00]}',
            b'{"id": "\xff\xfe", "inputs": []}',
            b'{"id": "\xed\xa0\x80", "inputs": []}',
            b'{"id": "\\ud800", "inputs": []}',
            b'{"id": "a\nb", "inputs": []}',
            b"\xef\xbb\xbf",
            b"\xff\xff\xff\xff",
        ],
    )
    def test_what_is_not_json(self, server: ServerProcess, body: bytes) -> None:
        status, text = refusal(server, http_request(IDENTITY, body))
        assert status == 400
        assert text.startswith("failed to parse the request JSON buffer: ")

    def test_syntax_error_is_reported_with_place(self, server: ServerProcess) -> None:
        _, text = refusal(server, http_request(IDENTITY, b'{"inputs": [}'))
        assert text.startswith("failed to parse the request JSON buffer: Expecting value. at 12; got ")

    @pytest.mark.parametrize(
        "body",
        [
            b'{"inputs": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
            b"[" * 10_000,
            b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
            infer_body(data="HERE").replace(b'"HERE"', b"[" * 10_000 + b"1, 2, 3, 4" + b"]" * 10_000),
        ],
    )
    def test_what_is_nested_too_deeply(self, server: ServerProcess, body: bytes) -> None:
        status, text = refusal(server, http_request(IDENTITY, body))
        assert status == 400
        assert "nested" in text

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"inputs": {}}, "inputs"),
            ({"inputs": 1}, "inputs"),
            ({"inputs": None}, "inputs"),
            ({"outputs": {}}, "outputs"),
            ({"outputs": "OUTPUT0"}, "outputs"),
            ({"outputs": [{}]}, "name"),
            ({"outputs": [{"name": 1}]}, "name"),
            ({"outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": "yes"}}]}, "binary_data"),
            ({"id": 7}, "id"),
            ({"id": None}, "id"),
            ({"parameters": {"priority": -1}}, "priority"),
            ({"parameters": {"priority": "high"}}, "priority"),
            ({"parameters": {"timeout": 1.5}}, "timeout"),
            ({"parameters": {"sequence_id": 1.5}}, "sequence_id"),
            ({"parameters": {"sequence_start": 1}}, "sequence_start"),
            ({"parameters": {"sequence_end": "no"}}, "sequence_end"),
            ({"parameters": {"binary_data_output": 1}}, "binary_data_output"),
        ],
    )
    def test_member_of_the_wrong_type(self, server: ServerProcess, change: dict[str, Any], field: str) -> None:
        status, text = refusal(server, http_request(IDENTITY, infer_body(**change)))
        assert status == 400
        assert text.startswith(f"Unable to parse '{field}': ")

    @pytest.mark.parametrize("body", [b"{}", b"[]", b"1", b"null", b'"text"', b'{"outputs": []}'])
    def test_document_without_inputs(self, server: ServerProcess, body: bytes) -> None:
        status, text = refusal(server, http_request(IDENTITY, body))
        assert status == 400
        assert text.startswith("Unable to parse 'inputs': attempt to access ")

    @pytest.mark.parametrize(
        ("member", "value", "text"),
        [
            ("name", 1, "Unable to parse 'name': attempt to access JSON non-string as string"),
            ("datatype", ["FP32"], "Unable to parse 'datatype': attempt to access JSON non-string as string"),
            ("shape", 4, "Unable to parse 'shape': attempt to access JSON non-array as array"),
            ("shape", [-1, 4], "Unable to parse 'shape': "),
            ("shape", [1.0, 4], "Unable to parse 'shape': "),
            ("shape", ["1", 4], "Unable to parse 'shape': "),
            ("shape", [1, 2**64], "Unable to parse 'shape': "),
            ("shape", [1, 2**63], "Unable to parse 'shape': "),
            ("data", {}, "Unable to parse 'data': attempt to access JSON non-array as array"),
            ("data", 4, "Unable to parse 'data': attempt to access JSON non-array as array"),
            ("data", [1, 2, 3, "4"], "Unable to parse 'data': attempt to access JSON non-number as double"),
            ("data", [1, 2, 3, True], "Unable to parse 'data': attempt to access JSON non-number as double"),
            ("data", [1, 2, 3, None], "Unable to parse 'data': attempt to access JSON non-number as double"),
            ("data", [1, 2, 3, {}], "Unable to parse 'data': attempt to access JSON non-number as double"),
            ("data", [1, 2, 3, 1e300], "Unable to parse 'data': a number is out of range for FP32"),
            ("data", [1, 2, 3], "Unable to parse 'data': Shape does not match true shape of 'data' field"),
            ("data", [1, 2, 3, 4, 5], "Unable to parse 'data': Shape does not match true shape of 'data' field"),
            ("data", [], "Unable to parse 'data': Shape does not match true shape of 'data' field"),
            ("shape", [1, 10**15], "Unable to parse 'data': Shape does not match true shape of 'data' field"),
            ("shape", [2**62, 2**62], "Unable to parse 'data': Shape does not match true shape of 'data' field"),
        ],
    )
    def test_input_of_the_wrong_type(self, server: ServerProcess, member: str, value: Any, text: str) -> None:
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4], member: value}
        status, message = refusal(server, http_request(IDENTITY, json.dumps({"inputs": [tensor]}).encode()))
        assert (status, message[: len(text)]) == (400, text)

    @pytest.mark.parametrize("member", ["name", "datatype", "shape"])
    def test_input_without(self, server: ServerProcess, member: str) -> None:
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        del tensor[member]
        status, message = refusal(server, http_request(IDENTITY, json.dumps({"inputs": [tensor]}).encode()))
        text = f"Unable to parse '{member}': attempt to access non-existing object member '{member}'"
        assert (status, message[: len(text)]) == (400, text)

    @pytest.mark.parametrize(
        ("model", "datatype", "data", "text"),
        [
            ("identity_int8", "INT8", [1.5], "Unable to parse 'data': attempt to access JSON non-signed-integer"),
            ("identity_int8", "INT8", [float("nan")], "Unable to parse 'data': attempt to access JSON non-signed"),
            ("identity_uint8", "UINT8", [-1], "Unable to parse 'data': "),
            ("identity_uint64", "UINT64", [2**64], "Unable to parse 'data': "),
            ("identity_int64", "INT64", [2**63], "Unable to parse 'data': "),
            ("identity_bool", "BOOL", [1], "Unable to parse 'data': attempt to access JSON non-boolean as boolean"),
            ("identity_string", "BYTES", [1], "Unable to parse JSON bytes array: attempt to access JSON non-string"),
            ("identity_string", "BYTES", [None], "Unable to parse JSON bytes array: "),
        ],
    )
    def test_elements_of_the_wrong_type(
        self, server: ServerProcess, model: str, datatype: str, data: Any, text: str
    ) -> None:
        body = infer_body(datatype, [1, 1], data)
        status, message = refusal(server, http_request(f"/v2/models/{model}/infer", body))
        assert (status, message[: len(text)]) == (400, text)

    def test_not_number_is_allowed_where_float_is(self, server: ServerProcess) -> None:
        answer = ask(server, http_request(IDENTITY, infer_body(data=[float("nan"), float("inf"), float("-inf"), 0])))
        assert answer.status == 200
        assert b"[NaN,Infinity,-Infinity,0.0]" in answer.body

    @pytest.mark.parametrize("datatype", ["FP16", "BF16"])
    def test_half_floats(self, server: ServerProcess, datatype: str) -> None:
        path = f"/v2/models/identity_{datatype.lower()}/infer"
        status, text = refusal(server, http_request(path, infer_body(datatype)))
        assert status == 400
        assert text.startswith(f"receiving {datatype} data via JSON is not supported")

    @pytest.mark.parametrize(
        ("parameters", "text"),
        [
            ({"triton_enable_empty_final_response": True}, "parameter keys starting with 'triton_' are reserved"),
            ({"mine": []}, "parameter 'mine' has invalid type. It should be either 'int', 'bool', or 'string'."),
            ({"mine": {}}, "parameter 'mine' has invalid type."),
            ({"mine": None}, "parameter 'mine' has invalid type."),
        ],
    )
    def test_request_parameters(self, server: ServerProcess, parameters: dict[str, Any], text: str) -> None:
        status, message = refusal(server, http_request(IDENTITY, infer_body(parameters=parameters)))
        assert (status, message[: len(text)]) == (400, text)

    @pytest.mark.parametrize("parameters", [[], 1, "x", True])
    def test_parameters_that_are_no_object(self, server: ServerProcess, parameters: Any) -> None:
        status, text = refusal(server, http_request(IDENTITY, infer_body(parameters=parameters)))
        assert status == 400
        assert "attempt to get members for non-object" in text

    @pytest.mark.parametrize(
        ("tensor", "found"),
        [
            ({}, "no field is set"),
            ({"data": [1], "parameters": {"binary_data_size": 4}}, "set 'data' 'binary_data_size'"),
            (
                {"parameters": {"binary_data_size": 4, "shared_memory_region": "r"}},
                "set 'binary_data_size' 'shared_memory_region'",
            ),
        ],
    )
    def test_no_or_several_sources_of_data(self, server: ServerProcess, tensor: dict[str, Any], found: str) -> None:
        document = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], **tensor}]}
        status, text = refusal(server, http_request(IDENTITY, json.dumps(document).encode()))
        assert status == 400
        assert text.startswith("Input must set only one of the following fields: ")
        assert text.endswith(f"{found} (input 'INPUT0')")

    def test_unknown_members_are_ignored(self, server: ServerProcess) -> None:
        assert ask(server, http_request(IDENTITY, infer_body(unknown={"deep": [1, {}]}))).status == 200

    @pytest.mark.parametrize("datatype", ["", "FLOAT", "fp32", "TYPE_FP32"])
    def test_unknown_datatype(self, server: ServerProcess, datatype: str) -> None:
        status, text = refusal(server, http_request(IDENTITY, infer_body(datatype)))
        assert status == 400
        assert "datatype" in text
        assert "INPUT0" in text


class TestValidation:
    """Protocol notes 3: what the model's configuration decides."""

    def test_order_outputs_before_inputs_before_shapes(self, server: ServerProcess) -> None:
        bad_shape = {"name": "INPUT0", "datatype": "INT8", "shape": [1, 1, 1], "data": [1]}
        document: dict[str, Any] = {
            "id": "o",
            "inputs": [bad_shape, {**bad_shape, "name": "B"}],
            "outputs": [{"name": "X"}],
        }
        texts = []
        for repair in ({}, {"outputs": []}, {"inputs": [bad_shape]}, {"inputs": [{**bad_shape, "datatype": "FP32"}]}):
            document.update(repair)
            status, text = refusal(server, http_request(IDENTITY, json.dumps(document).encode()))
            assert status == 400
            texts.append(text.removeprefix("[request id: o] ")[:29])
        assert texts == [
            "unexpected inference output 'X' for"[:29],
            "expected 1 inputs but got 2 inputs"[:29],
            "inference input 'INPUT0' data-type"[:29],
            "unexpected shape for input 'I"[:29],
        ]

    def test_refusal_carries_the_id_of_its_log_line(self, server: ServerProcess) -> None:
        for request_id in ("bad-shape-17", ""):
            answer = ask(server, http_request(IDENTITY, infer_body(shape=[4], id=request_id)))
            assert answer.status == 400
            answered_id = answer.headers["triton-request-id"]
            assert answered_id == request_id or not request_id
            server.wait_log(rf"W.*\[request id: {answered_id}\] HTTP request for model 'identity' .*unexpected shape")


class TestBinary:
    def test_good_ones_are_answered(self, server: ServerProcess) -> None:
        assert ask(server, binary_request([16], bytes(16))).status == 200
        assert ask(server, binary_request([64, 64], bytes(128), shape=[1, 16])).status == 200

    @pytest.mark.parametrize(
        ("sizes", "tail", "text"),
        [
            ([16], 15, "unexpected size for input 'INPUT0', expecting 1 additional bytes for model 'identity'"),
            ([16], 0, "unexpected size for input 'INPUT0', expecting 16 additional bytes for model 'identity'"),
            ([16], 17, "unexpected additional input data for model 'identity'"),
            ([0], 16, "unexpected additional input data for model 'identity'"),
            ([64, 64], 127, "unexpected size for input 'INPUT1', expecting 1 additional bytes for model 'add_sub'"),
            ([2**63, 64], 128, "unexpected size for input 'INPUT0', expecting "),
            ([2**64 - 1, 1], 0, "unexpected size for input 'INPUT0', expecting "),
        ],
    )
    def test_tail_of_the_wrong_size(self, server: ServerProcess, sizes: list[int], tail: int, text: str) -> None:
        status, message = refusal(server, binary_request(sizes, bytes(tail), shape=[1, 16]))
        assert (status, message[: len(text)]) == (400, text)

    @pytest.mark.parametrize("size", [-1, 2**64, 16.0, "16", None, True, []])
    def test_size_that_is_no_size(self, server: ServerProcess, size: Any) -> None:
        status, text = refusal(server, binary_request([size], bytes(16)))
        assert status == 400
        assert text.startswith("Unable to parse 'binary_data_size': ")

    def test_sizes_that_belong_to_each_other_wrong_way(self, server: ServerProcess) -> None:
        status, text = refusal(server, binary_request([63, 65], bytes(128), shape=[1, 16]))
        assert status == 400
        assert "input byte size mismatch for input 'INPUT0' for model 'add_sub'. Expected 64, got 63" in text

    @pytest.mark.parametrize(
        ("length", "text"),
        [
            (-1, "inference header size should be in range"),
            (10_000, "inference header size should be in range"),
            (2**64, f"request JSON size of {2**64} bytes exceeds the maximum allowed input size"),
            ("x", "Unable to parse Inference-Header-Content-Length"),
            ("1e2", "Unable to parse Inference-Header-Content-Length"),
            ("", "Unable to parse Inference-Header-Content-Length"),
            ("1" * 5000, "Unable to parse Inference-Header-Content-Length"),
        ],
    )
    def test_header_length_that_lies(self, server: ServerProcess, length: object, text: str) -> None:
        status, message = refusal(server, binary_request([16], bytes(16), json_length=length))
        assert (status, message[: len(text)]) == (400, text)

    @pytest.mark.parametrize("length", [1, 20, 100])
    def test_header_length_within_the_json(self, server: ServerProcess, length: int) -> None:
        status, text = refusal(server, binary_request([16], bytes(16), json_length=length))
        assert status == 400
        assert text.startswith("failed to parse the request JSON buffer: ")

    def test_binary_data_without_a_header_length(self, server: ServerProcess) -> None:
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}
        status, text = refusal(server, http_request(IDENTITY, json.dumps({"inputs": [tensor]}).encode()))
        assert status == 400
        assert text.startswith("unexpected size for input 'INPUT0', expecting 16 additional bytes")

    @pytest.mark.parametrize("coding", ["gzip", "deflate"])
    def test_bodies_that_are_not_compressed_as_they_say(self, server: ServerProcess, coding: str) -> None:
        status, _ = refusal(server, http_request(IDENTITY, infer_body(), headers={"Content-Encoding": coding}))
        assert status == 400

    @pytest.mark.parametrize("coding", ["br", "identity, gzip", "nonsense"])
    def test_unknown_codings(self, server: ServerProcess, coding: str) -> None:
        status, text = refusal(server, http_request(IDENTITY, infer_body(), headers={"Content-Encoding": coding}))
        assert status == 501
        assert text.startswith("Unsupported compression type")

    def test_identity_coding_is_none(self, server: ServerProcess) -> None:
        assert (
            ask(server, http_request(IDENTITY, infer_body(), headers={"Content-Encoding": "identity"})).status == 200
        )


class TestFraming:
    """Bytes that are no HTTP, or HTTP that cannot go on: one answer, then the connection ends."""

    @pytest.mark.parametrize(
        ("data", "status"),
        [
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), 400),
            (b"GET /v2/health/live\r\n\r\n", 505),
            (b"hello\r\n\r\n", 400),
            (b"\0\0\0\0\0\0\0\0\r\n\r\n", 400),
            (b"GET / HTTP/0.9\r\n\r\n", 505),
            (b"GET / HTTP/3.0\r\nHost: localhost\r\n\r\n", 400),
            (b"G\xc3\xa4T / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost x\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost: localhost\r\nBad Name: 1\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\0c\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost: localhost\r\n folded: 1\r\n\r\n", 400),
            (b"GET /%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
            (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
            (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
            (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1x\r\n\r\n", 400),
            (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
            (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 40 + b"\r\n\r\n", 400),
            (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999\r\n\r\n", 413),
            (
                b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                400,
            ),
            (b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
            (b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
            (b"POST / HTTP/1.1\r\nHost: localhost\r\nExpect: miracles\r\nContent-Length: 3\r\n\r\n", 417),
            (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 40_000 + b"\r\n\r\n", 431),
            (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 1000 + b"\r\n", 431),
            (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
            (b"a" * 100_000, 414),
            (b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", 400),
        ],
    )
    def test_head(self, server: ServerProcess, data: bytes, status: int) -> None:
        answer = last_words(server, data)
        assert (answer.status, bool(answer.error)) == (status, True)

    def test_head_in_small_pieces_is_refused_as_well(self, server: ServerProcess) -> None:
        head = b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 40_000
        pieces = [head[at : at + 1000] for at in range(0, len(head), 1000)]
        assert last_words(server, *pieces).status == 431

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            (b"x\r\n", 400),
            (b"-1\r\n", 400),
            (b"\r\n", 400),
            (b"0x10\r\n", 400),
            (b"fffffffffffffffff\r\n", 400),
            (b"ffffffffffffffff\r\n", 413),
            (b"3\r\nabcdef\r\n", 400),
            (b"3\nabc\r\n", 400),
            (b"3;" + b"e" * 5000 + b"\r\n", 400),
            (b"0\r\n" + b"A: b\r\n" * 2000, 431),
            (b"1\r\na\r\n" * 65_537, 400),
        ],
    )
    def test_chunked_garbage(self, server: ServerProcess, body: bytes, status: int) -> None:
        head = http_request(IDENTITY, b"", headers={"Transfer-Encoding": "chunked"})
        answer = last_words(server, head, body)
        assert (answer.status, bool(answer.error)) == (status, True)

    def test_good_chunks(self, server: ServerProcess) -> None:
        head = http_request(IDENTITY, b"", headers={"Transfer-Encoding": "chunked"})
        chunks = b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in infer_body())
        assert ask(server, head + chunks + b"0\r\nTrailer: 1\r\n\r\n").status == 200

    @pytest.mark.parametrize("cut", [1, 10, 60])
    def test_head_that_is_cut_off(self, server: ServerProcess, cut: int) -> None:
        answer = last_words(server, GOOD[:cut], half_close=True)
        assert (answer.status, answer.error) == (
            400,
            f"the request headers ended after {cut} bytes, before it was complete",
        )

    @pytest.mark.parametrize("missing", [1, 50])
    def test_body_that_is_cut_off(self, server: ServerProcess, missing: int) -> None:
        answer = last_words(server, GOOD[:-missing], half_close=True)
        received = len(infer_body()) - missing
        assert (answer.status, answer.error) == (
            400,
            f"the request body ended after {received} bytes, before it was complete",
        )

    def test_chunked_body_that_is_cut_off(self, server: ServerProcess) -> None:
        head = http_request(IDENTITY, b"", headers={"Transfer-Encoding": "chunked"})
        assert last_words(server, head, b"20\r\nabc", half_close=True).status == 400

    def test_clients_that_vanish(self, server: ServerProcess) -> None:
        huge = http_request(IDENTITY, b"x", headers={"Content-Length": str(2**33)})
        for data in (b"", b"GET", GOOD[:-5], huge, GOOD * 20) * 5:
            with HttpPeer(server.http_url) as peer:
                peer.send(data)

    def test_announced_length_takes_no_memory(self, server: ServerProcess) -> None:
        before = ProcessResources(server.process.pid).resident_bytes()
        peers = [HttpPeer(server.http_url) for _ in range(8)]
        for peer in peers:
            peer.send(http_request(IDENTITY, b"x" * 1000, headers={"Content-Length": str(2**33)}))
        assert ask(server, GOOD).status == 200
        grown = ProcessResources(server.process.pid).resident_bytes() - before
        for peer in peers:
            peer.__exit__()
        assert grown < 2**26

    def test_length_that_is_too_short_makes_rest_request(self, server: ServerProcess) -> None:
        body = infer_body()
        with HttpPeer(server.http_url) as peer:
            peer.send(http_request(IDENTITY, body, headers={"Content-Length": str(len(body) - 10)}))
            assert peer.answer().status == 400
            answer = peer.answer()
            assert answer.status == 400
            assert peer.is_closed_by_server()


def final_answer(peer: HttpPeer) -> HttpAnswer:
    """Return the next response but the interim ones, which only announce the final one."""
    while (answer := peer.answer()).status == 100:
        pass
    return answer


class TestHalfClosed:
    def test_client_that_sends_no_more_is_answered(self, server: ServerProcess) -> None:
        slow = http_request("/v2/models/slow_identity/infer", infer_body(id="slow"))
        with HttpPeer(server.http_url) as peer:
            peer.send(GOOD + slow + GOOD)
            peer.half_close()
            assert [final_answer(peer).status for _ in range(3)] == [200, 200, 200]
            assert peer.is_closed_by_server()


class TestPipelining:
    def test_error_in_the_middle_leaves_its_peers_alone(self, server: ServerProcess) -> None:
        wrong = [
            (http_request(IDENTITY, b"{"), 400),
            (http_request("/nothing"), 404),
            (http_request(IDENTITY), 405),
            (http_request(IDENTITY, infer_body(shape=[4])), 400),
            (http_request("/v2/models/nothing/infer", infer_body()), 404),
        ]
        with HttpPeer(server.http_url) as peer:
            for request, status in wrong:
                peer.send(GOOD + request + GOOD)
                assert [peer.answer().status for _ in range(3)] == [200, status, 200]

    def test_answers_before_broken_framing_are_given(self, server: ServerProcess) -> None:
        with HttpPeer(server.http_url) as peer:
            peer.send(GOOD * 3 + b"nonsense\r\n\r\n" + GOOD)
            assert [peer.answer().status for _ in range(4)] == [200, 200, 200, 400]
            assert peer.is_closed_by_server()

    def test_answers_keep_order_of_slow_and_fast_requests(self, server: ServerProcess) -> None:
        slow = http_request("/v2/models/slow_identity/infer", infer_body(id="slow"))
        with HttpPeer(server.http_url) as peer:
            peer.send(slow + http_request("/nothing") + http_request(IDENTITY, infer_body(id="fast")))
            assert json.loads(peer.answer().body)["id"] == "slow"
            assert peer.answer().status == 404
            assert json.loads(peer.answer().body)["id"] == "fast"

    def test_hundreds_at_once(self, server: ServerProcess) -> None:
        with HttpPeer(server.http_url) as peer:
            peer.send(b"".join(http_request(IDENTITY, infer_body(id=str(number))) for number in range(500)))
            assert [json.loads(peer.answer().body)["id"] for _ in range(500)] == [str(n) for n in range(500)]

    def test_connection_close_in_the_middle(self, server: ServerProcess) -> None:
        last = http_request(IDENTITY, infer_body(), headers={"Connection": "close"})
        with HttpPeer(server.http_url) as peer:
            peer.send(GOOD + last + GOOD)
            assert [peer.answer().status for _ in range(2)] == [200, 200]
            assert peer.is_closed_by_server()


def test_slow_clients_get_reason_and_are_disconnected(start_server: StartServer, tmp_path: Path) -> None:
    """One server, all kinds of slowness at the same time: each limit is a second, and so is the sweep."""
    write_identity(tmp_path / "models")
    limits = [f"--http-{name}-timeout-seconds=1" for name in ("header", "body", "idle")]
    impatient = start_server(tmp_path / "models", *limits)
    impatient.wait_ready()
    resources = ProcessResources(impatient.process.pid)
    openings = {
        b"": None,
        b"G": 408,
        GOOD[:30]: 408,
        GOOD[:-1]: 408,
        http_request(IDENTITY, b"", headers={"Transfer-Encoding": "chunked"}) + b"5\r\nab": 408,
        http_request(IDENTITY, b"", headers={"Content-Length": "9", "Expect": "100-continue"}): 100,
    }
    peers = [(HttpPeer(impatient.http_url), data, status) for data, status in openings.items()]
    dripping = HttpPeer(impatient.http_url)
    for peer, data, _ in peers:
        peer.send(data)
    for byte in GOOD[:30]:
        dripping.send(bytes([byte]))
        time.sleep(0.1)
    assert dripping.answer().status == 408
    for peer, _, status in [*peers, (dripping, b"", None)]:
        if status is not None:
            answer = peer.answer()
            assert answer.status == status
            if status == 100:
                answer = peer.answer()
            assert "took longer than 1 s" in answer.error or "is too slow" in answer.error
        assert peer.is_closed_by_server()
        peer.__exit__()
    assert ask(impatient, GOOD).status == 200
    resources.assert_back()
