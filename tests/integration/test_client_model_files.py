"""Loads with `file:` parameters: a Python model is code, so a client needs a key, a restriction, or a flag for it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from naiad.cli.key import new_key
from support.model_repository import write_identity
from support.model_zoo import NO_RESPONSES
from support.server_process import ServerProcess

CONFIG = json.dumps(
    {
        "backend": "python",
        "max_batch_size": 8,
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]}],
    }
)
FILES = {"file:1/model.py": NO_RESPONSES.encode()}
RESTRICTED = (
    "--http-restricted-api=model-repository:admin=secret",
    "--grpc-restricted-protocol=model-repository:admin=secret",
)

Start = Callable[..., ServerProcess]


@pytest.fixture
def start(start_server: Start, tmp_path: Path) -> Start:
    write_identity(tmp_path / "models")

    def make(*flags: str) -> ServerProcess:
        server = start_server(tmp_path / "models", "--model-control-mode=explicit", *flags)
        server.wait_started()
        return server

    return make


def load(server: ServerProcess, protocol: str, headers: dict[str, str] | None = None) -> str:
    """Load a model whose code the client brings; return the refusal, or nothing."""
    module, url = (triton_http, server.http_url) if protocol == "http" else (triton_grpc, server.grpc_url)
    with module.InferenceServerClient(url) as client:
        client.load_model("identity", headers=headers)
        try:
            client.load_model("brought", headers=headers, config=CONFIG, files=FILES)
        except InferenceServerException as error:
            assert not client.is_model_ready("brought", headers=headers)
            return str(error)
        assert client.is_model_ready("brought", headers=headers)
        return ""


def keys(tmp_path: Path, *lines: str) -> str:
    (tmp_path / "keys").write_text("\n".join(lines))
    return f"--api-key-file={tmp_path / 'keys'}"


@pytest.mark.parametrize(("protocol", "status"), [("http", "403"), ("grpc", "PERMISSION_DENIED")])
def test_files_of_unknown_clients_are_refused(start: Start, protocol: str, status: str) -> None:
    refusal = load(start(), protocol)
    assert status in refusal
    assert "--allow-client-model-files=true" in refusal


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_flag_lets_clients_bring_files(start: Start, protocol: str) -> None:
    assert load(start("--allow-client-model-files=true"), protocol) == ""


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_restricted_category_lets_clients_bring_files(start: Start, protocol: str) -> None:
    name = "admin" if protocol == "http" else "triton-grpc-protocol-admin"
    assert load(start(*RESTRICTED), protocol, {name: "secret"}) == ""


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_key_lets_clients_bring_files(start: Start, tmp_path: Path, protocol: str) -> None:
    line, key = new_key("operator", "all")
    assert load(start(keys(tmp_path, line)), protocol, {"authorization": f"Bearer {key}"}) == ""


def test_open_category_is_not_a_key(start: Start, tmp_path: Path) -> None:
    line, _ = new_key("operator", "all")
    server = start(keys(tmp_path, line, "public all -"))
    assert "are not accepted from clients" in load(server, "grpc")


def test_files_are_refused_in_every_process(start: Start) -> None:
    assert "403" in load(start("--processes=2"), "http")
