"""Small parts of the worker: its Python 3.8, its log lines."""

import ast
import io
import json
import logging
import socket
import threading
from pathlib import Path

import pytest

import naiad.worker
from naiad.worker.api.logger import LineStream, Logger, set_sink
from naiad.worker.control_socket import ControlSocket

WORKER_FILES = sorted(Path(naiad.worker.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", WORKER_FILES, ids=lambda path: path.name)
def test_worker_supports_python_3_8_without_naiad(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert all(name.startswith("naiad.worker") for name in imported if name.startswith("naiad"))
    assert not any(name.startswith(("ml_dtypes", "google")) for name in imported)


@pytest.fixture
def sink(monkeypatch):
    lines: list[tuple[int, str, str]] = []

    def take(level: int, file: str, line: int, text: str) -> None:
        lines.append((level, Path(file).name, text))

    monkeypatch.setattr("naiad.worker.api.logger._sink", None)
    set_sink(take)
    return lines


def test_logger_levels_and_place(sink):
    Logger.log("plain")
    Logger.log("bad", Logger.ERROR)
    Logger.log_info("i")
    Logger.log_warn("w")
    Logger.log_error("e")
    Logger.log_verbose("v")
    here = Path(__file__).name
    assert sink == [
        (logging.INFO, here, "plain"),
        (logging.ERROR, here, "bad"),
        (logging.INFO, here, "i"),
        (logging.WARNING, here, "w"),
        (logging.ERROR, here, "e"),
        (logging.DEBUG, here, "v"),
    ]


def test_prints_become_lines():
    lines: list[str] = []
    stream = LineStream(lambda level, file, line, text: lines.append(text), 1)
    print("a", "b", file=stream)
    print("be", end="", file=stream)
    print("gun\n\nrest", file=stream, flush=True)
    assert lines == ["a b", "begun", "rest"]
    with pytest.raises(io.UnsupportedOperation):
        stream.read()
    assert (stream.fileno(), stream.encoding, stream.writable()) == (1, "utf-8", True)


def test_incomplete_last_line_is_sent_at_exit():
    lines = []
    stream = LineStream(lambda level, file, line, text: lines.append(text), 1)
    stream.write("one\ntwo")
    stream.send_rest()
    stream.send_rest()
    assert lines == ["one", "two"]


def test_lines_that_several_threads_print_are_not_mixed():
    lines = []
    stream = LineStream(lambda level, file, line, text: lines.append(text), 1)
    stream.write("one ")
    other = threading.Thread(target=stream.write, args=("two\n",))
    other.start()
    other.join()
    stream.write("three\n")
    assert lines == ["two", "one three"]


def test_nested_logging_does_not_deadlock():
    """A signal handler may log, and an object that the garbage collector finds."""
    ours, theirs = socket.socketpair()
    side = ControlSocket(theirs)

    def log_twice() -> None:
        with side._lock:
            side.log(logging.INFO, "model.py", 1, "said by a signal handler")

    thread = threading.Thread(target=log_twice, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert json.loads(ours.recv(4096))[4] == "said by a signal handler"
    ours.close()
    theirs.close()
