"""Typical mistakes at a start: each ends it with one readable message with the field, the value and a fix."""

import os
import re
import shlex
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from support import onnx_models
from support.commands import run_command
from support.long_run import mostly_long
from support.model_repository import add_sub_config, write_identity, write_model

PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1")
PYTHON_CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
IMPORT = """import pandaz

class TritonPythonModel:
    def execute(self, requests):
        return []
"""


def report_of(directory: Path, *arguments: str) -> str:
    """Start a server that must not start; return its report, on one line."""
    done = run_command("serve", *PORTS, *arguments, folder=directory, status=1)
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    lines = done.stderr.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("naiad serve: "))
    assert max(map(len, lines[begin:])) <= 100
    return " ".join(line.strip() for line in lines[begin:])


def write_typo(root: Path) -> None:
    write_model(root, "m", 'backend: "identity"\nmax_batch_sise: 4\n')


def write_missing_import(root: Path) -> None:
    write_model(root, "m", PYTHON_CONFIG, {"1/model.py": IMPORT})


def write_corrupt_model(root: Path) -> None:
    content = onnx_models.add_sub()
    write_model(root, "m", add_sub_config("onnxruntime"), {"1/model.onnx": content[: len(content) // 2]})


def write_loose_model(root: Path) -> None:
    write_identity(root, "good")
    (root / "m").mkdir()
    (root / "m" / "model.onnx").write_bytes(onnx_models.add_sub())


@pytest.mark.parametrize("processes", mostly_long(["--processes=1", "--processes=2"], "--processes=1".__eq__))
@pytest.mark.parametrize(
    ("write", "words"),
    [
        (write_typo, ["models/m/config.pbtxt:", "field 'max_batch_sise'", "did you mean 'max_batch_size'?"]),
        (write_missing_import, ["m version 1", "No module named 'pandaz'", "model.py:1)", "pip install pandaz"]),
        (write_corrupt_model, ["models/m", "model.onnx"]),
        (
            write_loose_model,
            [
                "models/m:",
                "model.onnx in a version directory",
                "mkdir models/m/1 && mv models/m/model.onnx models/m/1/",
            ],
        ),
    ],
)
def test_failed_model_is_reported_with_fix(
    tmp_path: Path, write: Callable[[Path], None], words: Sequence[str], processes: str
) -> None:
    write(tmp_path / "models")
    report = report_of(tmp_path, "models", processes)
    for word in [*words, "naiad check models --load", "--exit-on-error=false"]:
        assert word in report
    assert report.count("naiad serve: ") == 1


def test_failure_of_two_processes_is_reported_once(tmp_path: Path) -> None:
    write_typo(tmp_path / "models")
    report = report_of(tmp_path, "models", "--processes=2")
    assert "did you mean 'max_batch_size'?" in report
    assert report.count("naiad serve: ") == 1


def test_suggested_move_repairs_layout(tmp_path: Path) -> None:
    write_loose_model(tmp_path / "models")
    report = report_of(tmp_path, "models")
    command = re.search(r"mkdir \S+ && mv \S+ \S+", report)
    assert command is not None
    for part in command.group().split(" && "):
        subprocess.run(shlex.split(part), cwd=tmp_path, check=True)
    assert (tmp_path / "models" / "m" / "1" / "model.onnx").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--htp-port=1"], ["unknown flag --htp-port", "did you mean --http-port?"]),
        (["--drain-seconds=soon"], ["--drain-seconds: 'soon' is not a number", "such as 2.5"]),
        (["--http-port=many"], ["--http-port: 'many' is not an integer", "such as 8000"]),
        (["--log-format=xml"], ["--log-format: 'xml' is not one of 'default', 'ISO8601', 'json'"]),
        (["--allow-http=maybe"], ["--allow-http: 'maybe' is not a boolean", "use true or false"]),
        (["--log-file=nowhere/log"], ["--log-file nowhere/log: No such file or directory", "choose a file"]),
        (["missing"], ["missing: no such file or directory", "give a model file, a model or a repository"]),
    ],
)
def test_wrong_command_line_is_reported_with_fix(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    write_identity(tmp_path / "models")
    report = report_of(tmp_path, *([] if arguments == ["missing"] else ["models"]), *arguments)
    for word in words:
        assert word in report


@pytest.mark.parametrize("processes", ["--processes=1", "--processes=2"])
def test_port_in_use_names_flag_and_process(tmp_path: Path, processes: str) -> None:
    write_identity(tmp_path / "models")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        report = report_of(tmp_path, "models", processes, f"--http-port={port}")
    for word in (
        f"--http-port {port}: Address already in use",
        f"(pid {os.getpid()}) has the port",
        "choose another",
    ):
        assert word in report


@pytest.mark.parametrize(
    ("name", "hint"), [("identiy", "did you mean 'identity'?"), ("zz*", "expected the name of a model's directory")]
)
def test_absent_model_to_load_gets_suggestion(tmp_path: Path, name: str, hint: str) -> None:
    write_identity(tmp_path / "models")
    report = report_of(tmp_path, "models", "--model-control-mode=explicit", f"--load-model={name}")
    assert f"--load-model={name}: there is no such model in models; {hint}" in report
