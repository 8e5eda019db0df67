"""The server of the demonstrations: a real one, with a model that any installation has."""

import io
from pathlib import Path

import psutil
import pytest
import tritonclient.grpc
import tritonclient.http
from rich.console import Console

from naiad.tools.demo.demo_server import DemoSettings, NotReadyError, serving
from support.model_repository import write_identity


def test_server_serves_within_the_block_only(tmp_path: Path) -> None:
    write_identity(tmp_path)
    with serving(tmp_path, DemoSettings(tmp_path), Console(file=io.StringIO()), "identity") as running:
        with tritonclient.http.InferenceServerClient(running.http_url) as client:
            assert client.is_server_ready()
        with tritonclient.grpc.InferenceServerClient(running.grpc_url) as client:
            assert client.is_server_ready()
    assert not psutil.pid_exists(running.pid)


def test_output_of_a_failed_start_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "config.pbtxt").write_text('backend: "no-such-backend"')
    with (
        pytest.raises(NotReadyError, match="no-such-backend"),
        serving(tmp_path, DemoSettings(tmp_path), Console(file=io.StringIO()), "broken"),
    ):
        pass
