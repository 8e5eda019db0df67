"""The server process of the demonstrations, with a program in place of naiad."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from naiad.tools.demo import server
from naiad.tools.demo.server import DemoSettings, NotReadyError, serving

_READY = """
import http.server, sys
sys.stderr.write("a warning of a framework\\n" * 100_000)
sys.stderr.flush()
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *arguments):
        pass
http.server.HTTPServer(("127.0.0.1", {port}), Ready).serve_forever()
"""


def serve_with(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    def command(root: Path, http_port: int, grpc_port: int) -> list[str]:
        return [sys.executable, "-c", program.replace("{port}", str(http_port))]

    monkeypatch.setattr(server, "_command", command)


def test_server_with_a_long_log_becomes_ready(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve_with(monkeypatch, _READY)
    settings = DemoSettings(tmp_path, ready_within_s=20.0)
    with serving(tmp_path, settings, Console(file=io.StringIO()), "model") as running:
        assert running.process.poll() is None


def test_output_of_a_failed_start_is_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve_with(monkeypatch, "import sys; sys.exit('no such model')")
    with (
        pytest.raises(NotReadyError, match="no such model"),
        serving(tmp_path, DemoSettings(tmp_path), Console(file=io.StringIO()), "model"),
    ):
        pass
