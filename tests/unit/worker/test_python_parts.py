"""Small parts of the Python backend: settings, exits, log lines, what needs to be asked, what runs on Python 3.8."""

import ast
import gc
import io
import json
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import naiad.worker
from naiad.backend.python.backend import find_model_file, may_complete
from naiad.backend.workers.process.worker_process import LineSplitter, describe_exit, log_line
from naiad.backend.workers.worker_settings import read_settings, worker_environment
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError
from naiad.worker.api.logger import LineStream, Logger, set_sink
from naiad.worker.control import ControlSocket
from support.backend_parts import make_context

WORKER_FILES = sorted(Path(naiad.worker.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", WORKER_FILES, ids=lambda path: path.name)
def test_worker_supports_python_3_8_without_naiad(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert all(name.startswith("naiad.worker") for name in imported if name.startswith("naiad"))
    assert not any(name.startswith(("ml_dtypes", "google")) for name in imported)


# --- settings -------------------------------------------------------------------------------------------------------


def context(parameters=None, backend_config=None, **fields):
    config = ModelConfig(name="m", **fields)
    for name, value in (parameters or {}).items():
        config.parameters[name].string_value = value
    return make_context(config, backend_config=backend_config, usable_cores=8)


def test_settings_have_defaults_and_can_be_set():
    assert read_settings(context()).execute_timeout_s == 0
    assert read_settings(context()).stacks_after_s == 0
    assert read_settings(context({"stacks_after_s": "1.5"})).stacks_after_s == 1.5
    settings = read_settings(
        context(
            {"execute_timeout_s": "0.5", "restart_limit": "2", "FORCE_CPU_ONLY_INPUT_TENSORS": "no"},
            {
                "stub-timeout-seconds": "5",
                "transport-max-byte-size": "1000",
                "shm-default-byte-size": "7",
                "shm-growth-byte-size": "7",
                "shm-region-prefix-name": "x",
                "thread-pool-size": "3",
            },
        )
    )
    assert (settings.execute_timeout_s, settings.restart_limit) == (0.5, 2)
    assert (settings.start_timeout_s, settings.transport_bytes) == (5, 1000)


@pytest.mark.parametrize(
    ("parameters", "backend_config", "said"),
    [
        ({"execute_timeout_s": "soon"}, {}, "parameter 'execute_timeout_s' is 'soon'; use a number"),
        ({"execute_timeout_s": "-1"}, {}, "parameter 'execute_timeout_s' is '-1'"),
        ({"execute_timeout_s": "nan"}, {}, "parameter 'execute_timeout_s' is 'nan'"),
        ({"FORCE_CPU_ONLY_INPUT_TENSORS": "maybe"}, {}, "use 'yes' or 'no'"),
        ({"tensor_parallel_size": "two"}, {}, "'tensor_parallel_size' is 'two'; use a number of ranks from 1 to 64"),
        ({"torch_distributed": "mpi"}, {}, "'torch_distributed' is 'mpi'; use 'gloo' or 'nccl'"),
        ({"EXECUTION_ENV_PATH": "x.tar.gz"}, {}, "'EXECUTION_ENV_PATH' is 'x.tar.gz': .*x.tar.gz does not exist"),
        ({}, {"stub-timeout-seconds": "x"}, "--backend-config=python,stub-timeout-seconds=x"),
        ({}, {"transport-max-bytes": "1"}, "--backend-config=python,transport-max-bytes is not known"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(parameters, backend_config, said):
    with pytest.raises(InferError, match=said) as caught:
        read_settings(context(parameters, backend_config))
    assert caught.value.code is ErrorCode.INVALID_ARG


def test_threads_times_workers_do_not_exceed_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name in ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    group = {"instance_group": [{"count": 3}]}
    assert worker_environment(context(**group))["OMP_NUM_THREADS"] == "2"
    assert worker_environment(context())["MKL_NUM_THREADS"] == "8"
    assert worker_environment(context({"tensor_parallel_size": "4"}))["MKL_NUM_THREADS"] == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    environment = worker_environment(context(**group))
    assert environment["OMP_NUM_THREADS"] == "5"
    assert "MKL_NUM_THREADS" not in environment


@pytest.mark.parametrize("is_charged", [True, False])
def test_quota_disables_busy_polling_in_workers(monkeypatch, is_charged):
    monkeypatch.setattr("naiad.backend.workers.worker_settings.is_charged_for_waiting", lambda: is_charged)
    assert ("NAIAD_WORKER_NEVER_AWAKE" in worker_environment(context())) == is_charged


# --- files ----------------------------------------------------------------------------------------------------------


def test_missing_and_misnamed_files(tmp_path):
    with pytest.raises(InferError, match=r"Python model file not found in '.*/1/model.py'") as caught:
        find_model_file(make_context(ModelConfig(name="m"), tmp_path))
    assert caught.value.code is ErrorCode.NOT_FOUND
    with pytest.raises(InferError, match=r"Model name must end with '.py'"):
        find_model_file(make_context(ModelConfig(name="m", default_model_filename="model.txt"), tmp_path))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class TritonPythonModel:\n    def execute(self, requests): ...", False),
        ("class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(c): return c", True),
        ("class TritonPythonModel:\n    auto_complete_config = complete", True),
        ("class TritonPythonModel(Base):\n    pass", True),
        ("@completing\nclass TritonPythonModel:\n    pass", True),
        ("from elsewhere import TritonPythonModel", True),
        ("this is no python", True),
    ],
)
def test_only_models_that_may_complete_are_asked(tmp_path, source, expected):
    path = tmp_path / "model.py"
    path.write_text(source)
    assert may_complete(path) is expected


def test_models_are_parsed_in_several_threads(tmp_path):
    path = tmp_path / "model.py"
    path.write_text("x = [" + "(1, [2]), " * 1000 + "]\nclass TritonPythonModel:\n    pass\n")

    def give_way(*_):
        """Let another thread run while this one parses."""
        time.sleep(0.001)

    gc.callbacks.append(give_way)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert not any(pool.map(may_complete, [path] * 4))
    finally:
        gc.callbacks.remove(give_way)


# --- exits and log --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returncode", "oom_kills", "said"),
    [
        (1, 0, "exited with code 1"),
        (0, 0, "exited with code 0"),
        (-11, 0, "was killed by SIGSEGV"),
        (-11, 1, "was killed by SIGSEGV"),
        (-9, 0, "was killed by SIGKILL"),
        (-9, 1, "was killed by SIGKILL, probably by the kernel because memory ran out"),
        (-63, 0, "was killed by signal 63"),
    ],
)
def test_exits_in_words(returncode, oom_kills, said):
    assert describe_exit(returncode, oom_kills) == said


def test_lines_of_native_code_are_put_together():
    splitter = LineSplitter()
    assert splitter.split(b"one\ntw") == ["one"]
    assert splitter.split(b"o\n\n\xff") == ["two"]
    assert splitter.rest() == ["\ufffd"]
    assert splitter.split(b"x" * 70_000) == ["x" * 70_000]


def test_lines_carry_model_place_and_ids(caplog):
    with caplog.at_level(logging.INFO, "naiad.model"):
        log_line("m", logging.WARNING, "/models/m/1/model.py", 12, "100 % {done}", "a\0b")
        log_line("m", logging.INFO, "f.py", 1, "idle", "")
        log_line("m", logging.DEBUG, "f.py", 1, "not shown", "")
    first, second = caplog.records
    assert first.getMessage() == "[request id: a, b] model 'm': 100 % {done}"
    assert (first.filename, first.lineno, first.levelno) == ("model.py", 12, logging.WARNING)
    assert second.getMessage() == "model 'm': idle"


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
