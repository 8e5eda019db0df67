"""The file of --ready-file: what it has, when it is there, and paths that are refused."""

import json
import logging
import os
import stat
from pathlib import Path

import pytest

from naiad.core.errors import InferError
from naiad.core.version import __version__
from naiad.options.options import ServerOptions
from naiad.options.sources.command_line import parse_options
from naiad.server.reporting.ready_file import ReadyFile, ready_document

BOUND = {"grpc": 41, "http": 42, "metrics": 43}


def options(*flags: str) -> ServerOptions:
    return parse_options(["--model-repository=/models", *flags])


def test_document_has_process_version_urls_ports(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    ReadyFile(str(path)).write(options(), BOUND, is_ready=True)
    assert json.loads(path.read_text()) == {
        "version": __version__,
        "pid": os.getpid(),
        "ready": True,
        "grpc": {"url": "127.0.0.1:41", "port": 41},
        "http": {"url": "http://127.0.0.1:42", "port": 42},
        "metrics": {"url": "http://127.0.0.1:43/metrics", "port": 43},
    }


@pytest.mark.parametrize(
    ("flags", "bound", "services"),
    [
        (["--http-port=9", "--grpc-port=9"], {"http": 9, "metrics": 43}, {"http": 9, "grpc": 9, "metrics": 43}),
        (["--allow-http=false", "--allow-metrics=false"], {"grpc": 41}, {"grpc": 41}),
        (["--grpc-address=unix:/s"], {"grpc": 0, "http": 42, "metrics": 43}, {"grpc": 0, "http": 42, "metrics": 43}),
    ],
)
def test_document_has_exactly_the_open_services(flags: list[str], bound: dict[str, int], services: object) -> None:
    document = ready_document(options(*flags), bound, is_ready=True)
    assert {name: each["port"] for name, each in document.items() if isinstance(each, dict)} == services


def test_document_says_when_not_ready() -> None:
    assert ready_document(options(), BOUND, is_ready=False)["ready"] is False


def test_other_users_may_read_the_file(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        ReadyFile(str(tmp_path / "ready.json")).write(options(), BOUND, is_ready=True)
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "ready.json").stat().st_mode) == 0o644


def test_exit_removes_the_file(tmp_path: Path) -> None:
    file = ReadyFile(str(tmp_path / "ready.json"))
    file.write(options(), BOUND, is_ready=True)
    file.remove()
    assert not list(tmp_path.iterdir())
    file.remove()


def test_exit_leaves_the_file_of_a_successor(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    file = ReadyFile(str(path))
    file.write(options(), BOUND, is_ready=True)
    path.write_text("of another server")
    file.remove()
    assert path.read_text() == "of another server"


def test_start_removes_what_a_killed_server_left(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.write_text("of a killed server")
    ReadyFile(str(path))
    assert not path.exists()


@pytest.mark.parametrize(("name", "reason"), [("missing/ready.json", "there is no folder"), (".", "is a folder")])
def test_unusable_path_is_refused_with_reason(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(InferError, match=f"--ready-file .*{reason}"):
        ReadyFile(str(tmp_path / name))


def test_failed_write_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    file = ReadyFile(str(folder / "ready.json"))
    folder.rmdir()
    with caplog.at_level(logging.ERROR):
        file.write(options(), BOUND, is_ready=True)
    assert "--ready-file" in caplog.text
    file.remove()


def test_without_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = ReadyFile("")
    file.write(options(), BOUND, is_ready=True)
    file.remove()
    assert not list(tmp_path.iterdir())
