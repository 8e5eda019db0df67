"""Restricted APIs and forwarded header fields, with stock clients."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from support.model_repository import write_model
from support.server_process import ServerProcess, serving

KEY = {"triton-grpc-protocol-admin": "s3cret"}
_ECHO_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "PARAMETERS" data_type: TYPE_STRING dims: [ 1 ] }
"""
_ECHO_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            text = np.array([request.parameters().encode()], dtype=np.object_)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("PARAMETERS", text)]))
        return answers
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`parameters` answers with its request's parameters; statistics and configuration are restricted."""
    models = tmp_path_factory.mktemp("models")
    write_model(models, "parameters", _ECHO_CONFIG, {"1/model.py": _ECHO_MODEL.encode()})
    with serving(
        tmp_path_factory.mktemp("guarded") / "log",
        f"--model-repository={models}",
        "--http-restricted-api=statistics,model-config:Admin=s3cret",
        "--grpc-restricted-protocol=statistics,model-config:admin=s3cret",
        "--http-header-forward-pattern=MY_HEADER.*|timeout",
        "--grpc-header-forward-pattern=MY_HEADER.*|timeout",
    ) as running:
        yield running


def _parameters(module: Any, url: str, headers: dict[str, str], parameters: dict[str, Any] | None = None) -> Any:
    with module.InferenceServerClient(url) as client:
        tensor = module.InferInput("IN", [1], "INT32")
        tensor.set_data_from_numpy(np.array([1], dtype=np.int32))
        answer = client.infer("parameters", [tensor], headers=headers, parameters=parameters)
        return json.loads(answer.as_numpy("PARAMETERS")[0])


def test_restricted_http_api_asks_for_its_header(guarded: ServerProcess) -> None:
    for path in ("/v2/models/stats", "/v2/models/parameters/stats", "/v2/models/parameters/config"):
        refused = guarded.get(path)
        assert refused.status == 403
        assert refused.json == {"error": "This API is restricted, expecting header 'Admin'"}
        assert guarded.request("GET", path, headers={"admin": "s3cret"}).status == 200
    assert guarded.get("/v2/models/parameters").status == 200


def test_percent_encoding_does_not_open_a_restricted_api(guarded: ServerProcess) -> None:
    for path in (
        "/v2/models/%70arameters/config",
        "/v2/models/parameters/%63onfig",
        "/v2/models/parameters/config?a=b",
    ):
        assert guarded.get(path).status == 403
    assert guarded.get("/v2/models/para%0Ameters/config").status == 403


def test_restricted_grpc_protocol_asks_for_its_metadata(guarded: ServerProcess) -> None:
    with triton_grpc.InferenceServerClient(guarded.grpc_url) as client:
        for call in (client.get_inference_statistics, lambda **more: client.get_model_config("parameters", **more)):
            with pytest.raises(InferenceServerException) as refused:
                call()
            assert refused.value.status() == "StatusCode.UNAVAILABLE"
            expected = "This protocol is restricted, expecting header 'triton-grpc-protocol-admin'"
            assert refused.value.message() == expected
            assert call(headers=KEY) is not None
        assert client.get_model_metadata("parameters").name == "parameters"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_matching_headers_reach_model_of_their_request_only(guarded: ServerProcess, protocol: str) -> None:
    module, url = (triton_http, guarded.http_url) if protocol == "http" else (triton_grpc, guarded.grpc_url)
    first = _parameters(module, url, {"my_header_1": "ada", "other": "no"}, {"own": 1})
    second = _parameters(module, url, {"my_header_1": "bob", "my_header_2": 'a "quoted" \\ one'}, {"own": 1})
    third = _parameters(module, url, {}, {"own": 1})
    assert first == {"own": 1, "my_header_1": "ada"}
    assert second == {"own": 1, "my_header_1": "bob", "my_header_2": 'a "quoted" \\ one'}
    assert third == {"own": 1}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_reserved_header_is_refused(guarded: ServerProcess, protocol: str) -> None:
    module, url = (triton_http, guarded.http_url) if protocol == "http" else (triton_grpc, guarded.grpc_url)
    with pytest.raises(InferenceServerException, match="is reserved for Triton usage and cannot be forwarded"):
        _parameters(module, url, {"timeout": "1"})
