"""Loads in progress that an unload, the time limit or the exit of the server ends: nothing of them stays."""

import base64
import json
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.model_repository import write_model
from support.server_process import ServerProcess, serving
from support.waiting import wait_until

HANGS = """
import time
from pathlib import Path

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        if {where!r} == "initialize":
            time.sleep(3600)

    def execute(self, requests):
        Path({marker!r}).touch()
        time.sleep(3600)
"""
TENSORS = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] }
"""
BROUGHT = {
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]}],
}
WARM_UP = """
model_warmup { name: "w" batch_size: 1 inputs { key: "IN" value { data_type: TYPE_FP32 dims: [ 2 ]
zero_data: true } } }
"""
IDENTITY = """
backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 2 ] }
parameters { key: "creation_delay_sec" value { string_value: "%d" } }
"""
MANY = """
model_warmup { name: "w" batch_size: 1 count: 90000 inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: [ 2 ]
zero_data: true } } }
parameters { key: "execute_delay_ms" value { string_value: "100" } }
"""
NAMES = ("initialize", "warmup", "native", "samples", "members")


def write_models(root: Path) -> None:
    for name in ("initialize", "warmup"):
        text = HANGS.format(where=name, marker=str(root.parent / "executed"))
        write_model(root, name, TENSORS + (WARM_UP if name == "warmup" else ""), {"1/model.py": text})
    write_model(root, "native", IDENTITY % 3600)
    write_model(root, "samples", IDENTITY % 0 + MANY)
    maps = 'input_map { key: "INPUT0" value: "I" } output_map { key: "OUTPUT0" value: "O" }'
    write_model(
        root,
        "members",
        'platform: "ensemble"\ninput { name: "I" data_type: TYPE_FP32 dims: [ 2 ] }\n'
        'output { name: "O" data_type: TYPE_FP32 dims: [ 2 ] }\n'
        f'ensemble_scheduling {{ step {{ model_name: "native" {maps} }} }}',
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("ended") / "models"
    write_models(root)
    flags = ("--model-control-mode=explicit", "--allow-client-model-files=true")
    with serving(root.parent / "log", f"--model-repository={root}", *flags) as running:
        yield running


class Load:
    """A load on a thread of its own."""

    def __init__(self, server: ServerProcess, name: str, parameters: dict[str, Any] | None = None) -> None:
        self.answer: Any = None
        self._server, self._name, self._parameters = server, name, parameters or {}
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        path = f"/v2/repository/models/{self._name}/load"
        self.answer = self._server.post(path, {"parameters": self._parameters})

    def join(self) -> str:
        self.thread.join(60)
        assert self.answer.status == 400
        return str(self.answer.json["error"])


def children(server: ServerProcess) -> list[psutil.Process]:
    return psutil.Process(server.process.pid).children(recursive=True)


def rows(server: ServerProcess) -> dict[str, Any]:
    return {row["name"]: row for row in server.post("/v2/repository/index", {}).json}


def is_loading(server: ServerProcess, name: str) -> bool:
    inner = "native" if name == "members" else name
    return bool(rows(server)[inner].get("state") == "LOADING")


@pytest.mark.parametrize("name", NAMES)
def test_unload_ends_a_load(server: ServerProcess, name: str) -> None:
    load = Load(server, name)
    wait_until(lambda: is_loading(server, name))
    if name == "warmup":
        wait_until((server.log.parent / "executed").exists)
    if name == "initialize":
        wait_until(lambda: bool(children(server)))
    assert server.post(f"/v2/repository/models/{name}/unload", {}).status == 200
    assert "the load was ended by an unload of the model" in load.join()
    wait_until(lambda: not children(server))
    assert rows(server)[name].get("state") in (None, "UNAVAILABLE")
    assert server.get("/v2/health/ready").status == 200
    assert server.get(f"/v2/models/{name}/ready").status != 200


def test_files_of_an_ended_load_are_removed(server: ServerProcess) -> None:
    before = set(Path(tempfile.gettempdir()).glob("naiad-model-*"))
    content = base64.b64encode(HANGS.format(where="initialize", marker="").encode()).decode()
    config = json.dumps({"backend": "python", **BROUGHT})
    parameters = {"config": config, "file:1/model.py": content}
    load = Load(server, "brought", parameters)
    wait_until(lambda: rows(server).get("brought", {}).get("state") == "LOADING")
    assert server.post("/v2/repository/models/brought/unload", {}).status == 200
    load.join()
    assert set(Path(tempfile.gettempdir()).glob("naiad-model-*")) <= before
    assert not children(server)


def test_time_limit_ends_a_load(tmp_path: Path, start_server: Any) -> None:
    write_models(tmp_path / "models")
    server = start_server(tmp_path / "models", "--model-control-mode=explicit", "--max-load-seconds=1")
    server.wait_ready()
    for name in ("initialize", "samples"):
        assert "took longer than --max-load-seconds=1" in Load(server, name).join()
        assert not children(server)


@pytest.mark.parametrize("name", ["initialize", "native"])
def test_exit_of_the_server_ends_a_load(tmp_path: Path, start_server: Any, name: str) -> None:
    write_models(tmp_path / "models")
    server = start_server(tmp_path / "models", "--model-control-mode=explicit", "--exit-timeout-secs=30")
    server.wait_ready()
    load = Load(server, name)
    wait_until(lambda: is_loading(server, name))
    if name == "initialize":
        wait_until(lambda: bool(children(server)))
    workers = children(server)
    os.kill(server.process.pid, signal.SIGTERM)
    assert server.process.wait(25) == 0, "it need not wait for its exit timeout"
    assert not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers)
    load.thread.join(20)
