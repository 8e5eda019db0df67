"""docs/differences.md: what naiad answers on purpose otherwise than Triton, row by row where a request shows it."""

import json
import struct
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from support.raw_http1 import HttpAnswer, HttpPeer, http_request
from support.server_process import ServerProcess


def ask(server: ServerProcess, data: bytes) -> HttpAnswer:
    with HttpPeer(server.http_url) as peer:
        peer.send(data)
        return peer.answer()


def infer(
    server: ServerProcess,
    model: str,
    datatype: str,
    data: list[Any],
    *,
    head: dict[str, str] | None = None,
    **members: Any,
) -> HttpAnswer:
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": [1, len(data)], "data": data}
    body = json.dumps({"inputs": [{**tensor, **members.pop("tensor", {})}], **members}).encode()
    return ask(server, http_request(f"/v2/models/{model}/infer", body, headers=head))


@pytest.mark.parametrize(("datatype", "value"), [("UINT8", 256), ("INT16", 40000), ("INT32", 2**31), ("FP32", 1e39)])
def test_numbers_that_do_not_fit_are_refused(server: ServerProcess, datatype: str, value: float) -> None:
    answer = infer(server, f"identity_{datatype.lower()}", datatype, [value])
    assert answer.status == 400
    assert "out of range for" in answer.error


def test_bytes_that_json_cannot_carry_are_refused(server: ServerProcess) -> None:
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": 5}}
    header = json.dumps({"inputs": [tensor]}).encode()
    fields = {"Inference-Header-Content-Length": str(len(header))}
    body = header + struct.pack("<I", 1) + b"\xff"
    answer = ask(server, http_request("/v2/models/identity_string/infer", body, headers=fields))
    assert answer.status == 400
    assert "ask for it as binary data" in answer.error


@pytest.mark.parametrize(
    ("members", "status"),
    [
        ({"outputs": [{"name": "OUTPUT0"}, {"name": "OUTPUT0"}]}, 400),
        ({"parameters": None}, 200),
        ({"tensor": {"parameters": 5}}, 400),
        ({"parameters": {"big": 2**63}}, 400),
        ({"head": {"Inference-Header-Content-Length": "x"}}, 400),
        ({"head": {"Content-Encoding": "gzip"}}, 400),
    ],
)
def test_requests(server: ServerProcess, members: dict[str, Any], status: int) -> None:
    assert infer(server, "identity", "FP32", [1.0, 2.0], **members).status == status


def test_raw_strings(server: ServerProcess) -> None:
    fields = {"Inference-Header-Content-Length": "0"}
    answer = ask(server, http_request("/v2/models/identity_string/infer", b"hello", headers=fields))
    assert answer.status == 200
    assert answer.body.endswith(struct.pack("<I", 5) + b"hello")


def test_grpc(server: ServerProcess) -> None:
    tensor = grpcclient.InferInput("INPUT0", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"a"]], dtype=object))
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        assert client.is_model_ready("identity", "-1")
        outputs = [grpcclient.InferRequestedOutput("OUTPUT0", class_count=1)]
        with pytest.raises(InferenceServerException, match="class result not available"):
            client.infer("identity_string", [tensor], outputs=outputs)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/v2/health/live", "HEAD", 200),
        ("/v2/models/%69dentity/ready", "GET", 200),
        ("/v2%2Fhealth%2Flive", "GET", 404),
    ],
)
def test_paths(server: ServerProcess, path: str, method: str, status: int) -> None:
    assert ask(server, http_request(path, method=method)).status == status


def test_trace_levels_that_do_not_exist(server: ServerProcess) -> None:
    answer = ask(server, http_request("/v2/trace/setting", b'{"trace_level": ["X"]}'))
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/json"
