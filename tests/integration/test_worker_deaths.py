"""A worker that dies loses the requests that ran in it; all others wait for a worker and are answered."""

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.model_repository import write_model
from support.server_process import Answer, ServerProcess
from support.waiting import wait_until

StartServer = Callable[..., ServerProcess]

_CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT64 dims: [ 2 ] } ]
"""
_BATCHING = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 300000 }"
_MODEL = """
import os
import signal
import time
import numpy as np
import triton_python_backend_utils as pb_utils

HERE = os.path.dirname(__file__)


class TritonPythonModel:
    def initialize(self, args):
        while os.path.exists(os.path.join(HERE, "gate")):
            time.sleep(0.01)

    def execute(self, requests):
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            what = values.flat[0]
            with open(os.path.join(HERE, "executed"), "ab", buffering=0) as log:
                log.write(f"{request.request_id()} {os.getpid()}\\n".encode())
            if what == -1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(what / 1000)
            said = np.array([what, os.getpid()], np.int64).reshape(*values.shape[:-1], 2)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", said)]))
        return responses
"""
SUICIDE = -1


class Mortal:
    """A model whose workers die when a request says so, or are killed by the test."""

    def __init__(self, start_server: StartServer, root: Path, config: str = "", **parameters: str) -> None:
        text = _CONFIG + config
        self._shape = [1, 1] if "max_batch_size" in config else [1]
        for key, value in parameters.items():
            text += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        self.files = write_model(root, "mortal", text, {"1/model.py": _MODEL}) / "1"
        self.server = start_server(root)
        self.server.wait_ready()

    def infer(self, what: int, request_id: str = "", **parameters: Any) -> Answer:
        tensor = {"name": "X", "datatype": "INT64", "shape": self._shape, "data": [what]}
        content = {"id": request_id, "parameters": parameters, "inputs": [tensor]}
        return self.server.post("/v2/models/mortal/infer", content)

    def executed(self) -> list[tuple[str, int]]:
        """Return ids and workers of the requests that have been executed, in order."""
        lines = [line.rpartition(" ") for line in (self.files / "executed").read_text().splitlines()]
        return [(request_id, int(pid)) for request_id, _, pid in lines]

    def metric(self, family: str) -> Sequence[int]:
        """Return the values of a metric for the instances."""
        text = self.server.get("/metrics", url=self.server.metrics_url).body.decode()
        return [int(value) for value in re.findall(rf"^{family}{{.*}} (\d+)$", text, re.MULTILINE)]

    def index_row(self) -> dict[str, str]:
        (row,) = self.server.post("/v2/repository/index").json
        return dict(row)


@pytest.fixture
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as pool:
        yield pool


def test_requests_wait_while_the_worker_restarts(
    start_server: StartServer, tmp_path: Path, callers: ThreadPoolExecutor
) -> None:
    mortal = Mortal(start_server, tmp_path)
    (mortal.files / "gate").touch()
    assert mortal.infer(SUICIDE, "deadly").status == 503
    wait_until(lambda: mortal.metric("naiad_worker_state") == [1])
    waiting = [callers.submit(mortal.infer, 0, f"waits-{n}") for n in range(8)]
    mortal.server.wait_requests("mortal", waiting=8)
    assert mortal.server.get("/v2/models/mortal/ready").status != 200
    (mortal.files / "gate").unlink()
    assert {answer.result(60).status for answer in waiting} == {200}
    assert mortal.metric("naiad_worker_state") == [0]
    assert mortal.metric("naiad_worker_restarts_total") == [1]


def test_requests_keep_their_timeouts_meanwhile(start_server: StartServer, tmp_path: Path) -> None:
    policy = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 300000 } }"
    mortal = Mortal(start_server, tmp_path, policy)
    (mortal.files / "gate").touch()
    assert mortal.infer(SUICIDE).status == 503
    late = mortal.infer(0)
    assert (late.status, late.json["error"]) == (503, "Request timeout expired")
    (mortal.files / "gate").unlink()


def test_a_restart_that_takes_too_long_refuses(start_server: StartServer, tmp_path: Path) -> None:
    mortal = Mortal(start_server, tmp_path, restart_wait_s="1")
    (mortal.files / "gate").touch()
    assert mortal.infer(SUICIDE).status == 503
    late = mortal.infer(0)
    assert late.status == 503
    assert "was killed by SIGKILL; it is being restarted" in late.json["error"]
    (mortal.files / "gate").unlink()
    wait_until(lambda: mortal.infer(0).status == 200)


def test_batch_that_was_not_begun_is_executed_once(
    start_server: StartServer, tmp_path: Path, callers: ThreadPoolExecutor
) -> None:
    mortal = Mortal(start_server, tmp_path)
    pid = mortal.infer(0, "first").json["outputs"][0]["data"][1]
    os.kill(pid, signal.SIGSTOP)
    answer = callers.submit(mortal.infer, 7, "unread")
    mortal.server.wait_requests("mortal", executing=1)
    os.kill(pid, signal.SIGKILL)
    said = answer.result(60)
    assert said.status == 200, said.body
    assert said.json["outputs"][0]["data"][0] == 7
    assert [request_id for request_id, _ in mortal.executed()] == ["first", "unread"]


def test_a_model_comes_back_after_many_deaths(start_server: StartServer, tmp_path: Path) -> None:
    mortal = Mortal(start_server, tmp_path, restart_limit="2", restart_interval_s="2", refuse_after_deaths="0")
    wait_until(lambda: "requests are refused" in mortal.infer(SUICIDE, "deadly").json["error"])
    row = mortal.index_row()
    assert row["state"] == "UNAVAILABLE"
    assert "2 deaths within 60 s: requests are refused, and it is tried again every 2 s" in row["reason"]
    assert mortal.server.get("/v2/models/mortal/ready").status != 200
    assert mortal.infer(0).status == 503
    wait_until(lambda: mortal.metric("naiad_worker_state") == [3])
    assert mortal.index_row()["state"] == "READY"
    assert mortal.infer(0).status == 200
    assert mortal.metric("naiad_worker_state") == [0]
    mortal.server.wait_log("has started again, on trial")


def test_killed_workers_fail_only_their_own_requests(start_server: StartServer, tmp_path: Path) -> None:
    """One of two workers is killed five times under 24 clients."""
    mortal = Mortal(start_server, tmp_path, "instance_group [ { count: 2 kind: KIND_CPU } ]", restart_limit="100")
    done = threading.Event()
    failures: list[tuple[str, str]] = []
    counts = [0] * 24

    def ask(number: int) -> None:
        while not done.is_set():
            request_id = f"{number}-{counts[number]}"
            answer = mortal.infer(2, request_id)
            counts[number] += 1
            if answer.status != 200:
                failures.append((request_id, json.loads(answer.body)["error"]))

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
    for client in clients:
        client.start()
    killed = []
    try:
        for deaths in range(1, 6):
            before = sum(counts)
            wait_until(lambda before=before: sum(counts) > before + 50)  # type: ignore[misc]
            killed.append(mortal.executed()[-1][1])
            os.kill(killed[-1], signal.SIGKILL)
            wait_until(lambda deaths=deaths: sum(mortal.metric("naiad_worker_restarts_total")) == deaths)  # type: ignore[misc]
            wait_until(lambda: mortal.metric("naiad_worker_state") == [0, 0])
    finally:
        done.set()
        for client in clients:
            client.join()
    executed = mortal.executed()
    workers = dict(executed)
    assert len(executed) == len(workers), "no request is executed twice"
    assert len(failures) <= 5
    for request_id, text in failures:
        assert "was killed by SIGKILL while it executed this request" in text
        # A worker may have begun a request and been killed before the model could note it.
        assert workers.get(request_id, killed[0]) in killed


def test_a_request_that_kills_two_workers_is_refused(
    start_server: StartServer, tmp_path: Path, callers: ThreadPoolExecutor
) -> None:
    mortal = Mortal(start_server, tmp_path, _BATCHING)
    for number in range(2):
        batch = [callers.submit(mortal.infer, what, f"{what}-{number}") for what in (1, 2, SUICIDE)]
        assert batch[-1].result(60).status == 503
        for innocent in batch[:-1]:
            innocent.result(60)
    refused = mortal.infer(SUICIDE, "third")
    assert refused.status == 400
    said = refused.json["error"]
    assert "request 'third' for model 'mortal' is rejected: each time when it was executed" in said
    assert said.count("was killed by SIGKILL") == 2
    # Those that were in its batches are not.
    assert [mortal.infer(what).status for what in (1, 2)] == [200, 200]
    mortal.server.wait_log("request '-1-1' for model 'mortal' is rejected from now on")
    assert [pid for request_id, pid in mortal.executed() if request_id == "third"] == []


def test_repeated_requests_are_not_suspected(start_server: StartServer, tmp_path: Path) -> None:
    """All clients ask the same, so that each death finds it in a batch; it is answered in between."""
    mortal = Mortal(start_server, tmp_path)
    for deaths in range(1, 5):
        with ThreadPoolExecutor(1) as caller:
            asked = caller.submit(mortal.infer, 1000)
            mortal.server.wait_requests("mortal", executing=1)
            wait_until(lambda deaths=deaths: len(mortal.executed()) == 2 * deaths - 1)  # type: ignore[misc]
            os.kill(mortal.executed()[-1][1], signal.SIGKILL)
            assert asked.result(60).status == 503
        assert mortal.infer(1000).status == 200
