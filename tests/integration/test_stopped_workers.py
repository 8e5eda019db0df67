"""A worker that is stopped (a debugger, a frozen container) costs its own requests time, and no other ones.

The batch that it does not read is longer than its pipe holds: a blocking writer would have to wait.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from support.model_repository import write_model
from support.server_process import Answer, ServerProcess

_CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT64 dims: [ 3 ] } ]
dynamic_batching {
  default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 5000000 }
}
"""
# The time limit leaves a busy machine the time to start another worker.
_MODEL = """
import json
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            self.count += 1
            said = np.array([os.getpid(), self.count, len(json.loads(request.parameters())["note"])], np.int64)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", said)]))
        return responses
"""
LONG = "x" * 300_000


class Pair:
    """A server with two models, one of whose workers can be stopped."""

    def __init__(self, server: ServerProcess, callers: ThreadPoolExecutor) -> None:
        self._server = server
        self._callers = callers
        self.pid = self.ask("frozen")[0]

    def infer(self, model: str, note: str = "") -> Answer:
        tensor = {"name": "X", "datatype": "FP32", "shape": [1], "data": [0]}
        content = {"parameters": {"note": note}, "inputs": [tensor]}
        return self._server.post(f"/v2/models/{model}/infer", content)

    def ask(self, model: str, note: str = "") -> list[int]:
        """Return the worker's pid, how many requests it has executed, and the length of the note."""
        answer = self.infer(model, note)
        assert answer.status == 200, answer.body
        said: list[int] = answer.json["outputs"][0]["data"]
        return said

    def begin_long(self) -> "Future[Answer]":
        """Have a batch sent to the stopped worker that its pipe does not hold."""
        os.kill(self.pid, signal.SIGSTOP)
        answer = self._callers.submit(self.infer, "frozen", LONG)
        self._server.wait_requests("frozen", executing=1)
        return answer

    def assert_others_answer(self) -> None:
        """The other model does, and what waits for the stopped worker has its time limit."""
        for _ in range(10):
            assert self.ask("lively")[2] == 0
        late = self.infer("frozen")
        assert (late.status, late.json["error"]) == (503, "Request timeout expired")


@pytest.fixture
def pair(tmp_path: Path, start_server) -> Iterator[Pair]:
    root = tmp_path / "models"
    for name in ("frozen", "lively"):
        write_model(root, name, _CONFIG, {"1/model.py": _MODEL})
    server = start_server(root)
    server.wait_ready()
    with ThreadPoolExecutor(2) as callers:
        made = Pair(server, callers)
        try:
            yield made
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(made.pid, signal.SIGCONT)


def test_batch_of_stopped_worker_is_executed_once(pair: Pair) -> None:
    answer = pair.begin_long()
    pair.assert_others_answer()
    assert not answer.done()
    os.kill(pair.pid, signal.SIGCONT)
    assert answer.result(60).json["outputs"][0]["data"] == [pair.pid, 2, len(LONG)]
    assert pair.ask("frozen") == [pair.pid, 3, 0]


def test_the_next_worker_executes_an_unread_batch(pair: Pair) -> None:
    answer = pair.begin_long()
    pair.assert_others_answer()
    os.kill(pair.pid, signal.SIGKILL)
    said = answer.result(60)
    assert said.status == 200
    pid, count, length = said.json["outputs"][0]["data"]
    assert pid != pair.pid
    assert (count, length) == (1, len(LONG))
