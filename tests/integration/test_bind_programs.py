"""Whole programs that serve functions: signals, logs, exit status, the example."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "bind"
READY = re.compile(r"ready: http://127\.0\.0\.1:(\d+), grpc 127\.0\.0\.1:(\d+)")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT / "src"),
    "PYTHONUNBUFFERED": "",  # a print is one write, with which the log does not mix
    "PYTRITON_TRITON_CONFIG_HTTP_PORT": "0",
    "PYTRITON_TRITON_CONFIG_GRPC_PORT": "0",
    "PYTRITON_TRITON_CONFIG_METRICS_PORT": "0",
    "PYTRITON_TRITON_CONFIG_HTTP_ADDRESS": "127.0.0.1",
    "PYTRITON_TRITON_CONFIG_GRPC_ADDRESS": "127.0.0.1",
}
SLOW = """
import time, numpy as np
from naiad.bind.model_config import Tensor
from naiad.bind.triton import Triton

def slow(requests):
    print("has begun", flush=True)
    time.sleep(0.5)
    return [{"y": each["x"]} for each in requests]

triton = Triton()
triton.bind("slow", slow, [Tensor((1,), np.float32, "x")], [Tensor((1,), np.float32, "y")])
triton.serve()
print("served", triton.is_alive(), flush=True)
"""
ENDS_WITHOUT_STOP = SLOW.replace("triton.serve()", "triton.run()")
LOADS_FOR_LONG = SLOW.replace(
    "triton.serve()",
    """
import threading
from naiad.bind.model_config import ModelConfig, ModelWarmup, WarmupInput
warm = ModelConfig(model_warmup=[ModelWarmup("w", 1, {"x": WarmupInput(np.float32, (1,), zero_data=True)}, 4)])
triton.bind("warm", slow, [Tensor((1,), np.float32, "x")], [Tensor((1,), np.float32, "y")], config=warm)
triton.serve()
""",
)


class Program:
    """A running program; its output is read by a thread."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()

    def wait_for(self, pattern: str) -> "re.Match[str]":
        """Return the first match of a line."""

        def find() -> "re.Match[str] | None":
            return next((found for line in self.lines if (found := re.search(pattern, line))), None)

        with self._changed:
            found = self._changed.wait_for(find, 60)
        assert found, "".join(self.lines)
        return found

    def end(self, number: int) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.join()

    def join(self) -> int:
        status = self.process.wait(60)
        self._reader.join()
        return status


@contextmanager
def program(*arguments: str) -> Iterator[Program]:
    process = subprocess.Popen(
        [sys.executable, *arguments], env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    running = Program(process)
    try:
        yield running
    finally:
        process.kill()
        running.join()


def test_example_is_served_and_used():
    with program(str(EXAMPLE / "server.py")) as running:
        ports = running.wait_for(READY.pattern)
        with http.InferenceServerClient(f"127.0.0.1:{ports[1]}") as client:
            tensor = http.InferInput("data", [2, 2], "FP32")
            tensor.set_data_from_numpy(np.array([[3, 4], [0, 2]], np.float32))
            normalized = client.infer("normalize", [tensor]).as_numpy("normalized")
            np.testing.assert_allclose(normalized, [[0.6, 0.8], [0, 1]], rtol=1e-6)
        with grpc.InferenceServerClient(f"127.0.0.1:{ports[2]}") as client:
            text = grpc.InferInput("texts", [2], "BYTES").set_data_from_numpy(np.array(["a", "bcd"], object))
            assert client.infer("lengths", [text]).as_numpy("lengths").tolist() == [1, 3]
        used = subprocess.run(
            [sys.executable, EXAMPLE / "client.py", f"127.0.0.1:{ports[1]}", f"grpc://127.0.0.1:{ports[2]}"],
            env=ENVIRONMENT,
            text=True,
            capture_output=True,
            check=True,
        )
        assert used.stdout.splitlines()[-1] == "{'left': array([8])}"
        assert running.end(signal.SIGINT) == 0


def test_page_example_prints_what_page_says():
    page = (ROOT / "docs" / "bind.md").read_text()
    blocks = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL))
    with program("-c", blocks["server.py"]) as running:
        port = running.wait_for(READY.pattern)[1]
        code = blocks["client.py"].replace("localhost:8000", f"127.0.0.1:{port}")
        used = subprocess.run(
            [sys.executable, "-c", code], env=ENVIRONMENT, text=True, capture_output=True, check=True
        )
        assert used.stdout == blocks["output"]
        assert running.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_serve_after_requests_in_flight(number: int):
    with program("-c", SLOW) as running:
        port = running.wait_for(READY.pattern)[1]
        with http.InferenceServerClient(f"127.0.0.1:{port}") as client:
            tensor = http.InferInput("x", [1, 1], "FP32").set_data_from_numpy(np.ones((1, 1), np.float32))
            pending = client.async_infer("slow", [tensor])
            running.wait_for("has begun")
            status = running.end(number)
            assert pending.get_result().as_numpy("y").tolist() == [[1]]
        assert status == 0
        running.wait_for("served False")


def test_signal_ends_start_that_takes_long():
    with program("-c", LOADS_FOR_LONG) as running:
        running.wait_for("has begun")
        assert running.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("end", ["", "triton.stop()"])
def test_programs_leave_no_files(end: str):
    with program("-c", f"{ENDS_WITHOUT_STOP}\nprint('STORE', triton._store.path, flush=True)\n{end}") as running:
        assert running.join() == 0
        running.wait_for("served True")
        assert not Path(running.wait_for(r"STORE (/\S+)")[1]).parent.exists()


def test_configured_logging_gets_lines_of_server():
    lines = "import logging; logging.basicConfig(level=logging.INFO, format='MINE %(message)s')" + SLOW
    with program("-c", lines) as running:
        running.wait_for(r"MINE ready: http://127")
        assert running.end(signal.SIGTERM) == 0
        assert not [line for line in running.lines if line.startswith("I")]
