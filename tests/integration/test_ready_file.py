"""--ready-file of real servers: a program finds the ports of the server that it has started."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http

from support.model_repository import write_identity
from support.server_process import ServerProcess
from support.waiting import wait_until

StartServer = Callable[..., ServerProcess]


def wait_for_file(path: Path, running: ServerProcess) -> dict[str, Any]:
    """Return the document as soon as there is a file; it is complete then."""
    wait_until(lambda: path.exists() or running.process.poll() is not None, "there is no ready file")
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@pytest.mark.parametrize("processes", [1, 2])
def test_file_appears_when_ready_and_goes_at_exit(tmp_path: Path, start_server: StartServer, processes: int) -> None:
    write_identity(tmp_path / "models")
    path = tmp_path / "ready.json"
    running = start_server(tmp_path / "models", f"--processes={processes}", f"--ready-file={path}")
    document = wait_for_file(path, running)
    assert document["ready"] is True
    assert document["pid"] == running.process.pid
    http, grpc, metrics = (document[name] for name in ("http", "grpc", "metrics"))
    assert http["url"] == f"http://{running.http_url}"
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{http['port']}") as client:
        assert client.is_server_ready()
        assert client.get_server_metadata()["version"] == document["version"]
    with tritonclient.grpc.InferenceServerClient(grpc["url"]) as client:
        assert client.is_server_ready()
    assert running.get("/metrics", url=f"127.0.0.1:{metrics['port']}").status == 200
    running.signal()
    assert running.wait_exit() == 0
    assert not path.exists()


def test_restarted_process_leaves_the_file(tmp_path: Path, start_server: StartServer) -> None:
    write_identity(tmp_path / "models")
    path = tmp_path / "ready.json"
    running = start_server(tmp_path / "models", "--processes=2", f"--ready-file={path}")
    document = wait_for_file(path, running)
    first = running.members()
    os.kill(first[0], signal.SIGKILL)
    running.wait_log(r"process \d \(pid \d+\) serves")
    assert json.loads(path.read_text()) == document


@pytest.mark.parametrize("processes", [1, 2])
def test_path_without_folder_ends_the_start(tmp_path: Path, start_server: StartServer, processes: int) -> None:
    write_identity(tmp_path / "models")
    flags = f"--processes={processes}", f"--ready-file={tmp_path / 'missing' / 'ready.json'}"
    running = start_server(tmp_path / "models", *flags)
    assert running.wait_exit() == 1
    assert "--ready-file" in running.log_text()
    assert "there is no folder" in running.log_text()
    assert "Started HTTPService" not in running.log_text()
