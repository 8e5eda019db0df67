"""What live, ready and model-ready say in every state of a server, over HTTP and gRPC alike."""

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support.model_repository import write_identity, write_model
from support.server_process import ServerProcess
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

StartServer = Callable[..., ServerProcess]

GATED = """
import os, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        gate = os.path.join(args["model_repository"], "gate")
        while os.path.exists(gate):
            time.sleep(0.01)
        if os.path.exists(os.path.join(args["model_repository"], "bad")):
            raise RuntimeError("it is bad")

    def execute(self, requests):
        os._exit(1)
"""
CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


class Health:
    """The three answers, which must be the same over both protocols."""

    def __init__(self, server: ServerProcess) -> None:
        self._clients = [
            httpclient.InferenceServerClient(server.http_url),
            grpcclient.InferenceServerClient(server.grpc_url),
        ]

    def __call__(self, model: str) -> tuple[bool, bool, bool | None]:
        answers = self.answers(model)
        assert answers[0] == answers[1]
        return answers[0]

    def answers(self, model: str) -> list[tuple[bool, bool, bool | None]]:
        """Return what each protocol says, one after the other: what changes by itself may change between the two."""
        return [self._ask(client, model) for client in self._clients]

    def _ask(self, client, model: str) -> tuple[bool, bool, bool | None]:
        answers = []
        for ask in (client.is_server_live, client.is_server_ready, lambda: client.is_model_ready(model)):
            try:
                answers.append(ask())
            except InferenceServerException as error:
                # The gRPC client passes on what the HTTP client makes a False of.
                if not re.search("Server exiting|unknown model", str(error)):
                    raise
                answers.append(False)
        return answers[0], answers[1], answers[2]

    def close(self) -> None:
        for client in self._clients:
            client.close()


@contextmanager
def started(start_server: StartServer, root: Path, *flags: str) -> Iterator[tuple[ServerProcess, Health]]:
    server = start_server(root, "--model-control-mode=explicit", "--load-model=base", *flags)
    server.wait_ready()
    health = Health(server)
    yield server, health
    health.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    write_identity(root, "base")
    write_model(root, "extra", CONFIG, {"1/model.py": GATED})
    return root


def in_background(server: ServerProcess, name: str) -> threading.Thread:
    thread = threading.Thread(target=server.post, args=(f"/v2/repository/models/{name}/load",))
    thread.start()
    return thread


def wait_state(server: ServerProcess, name: str, state: str) -> None:
    deadline = time.monotonic() + 60
    while not any(
        row["name"] == name and row.get("state") == state for row in server.post("/v2/repository/index").json
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)


EVERYWHERE = ["all", "any", "none", "base", "extra"]


@pytest.mark.parametrize("rule", EVERYWHERE)
def test_the_truth_table(start_server: StartServer, root: Path, rule: str) -> None:
    """users.md 7: live/ready/model-ready in each state, for each rule."""
    gate, bad = root / "extra" / "gate", root / "extra" / "bad"
    flag = [] if rule == "extra" else [f"--ready-models={rule}"]
    with started(start_server, root, *flag) as (server, health):
        if rule == "extra":
            return _named_only(start_server, root)
        gate.touch()
        loading = in_background(server, "extra")
        wait_state(server, "extra", "LOADING")
        assert health("extra") == (True, True, False), "an extra load"
        gate.unlink()
        loading.join()
        assert health("extra") == (True, True, True), "loaded"
        (root / "extra" / "1" / "weights").touch()
        gate.touch()
        loading = in_background(server, "extra")
        wait_until(lambda: server.log_text().count("loading: extra:1") == 2)
        assert health("extra") == (True, True, True), "a reload"
        gate.unlink()
        loading.join()
        bad.touch()
        (root / "extra" / "1" / "more").touch()
        assert server.post("/v2/repository/models/extra/load").status == 400
        assert health("extra") == (True, True, True), "a reload that failed"
        assert server.post("/v2/repository/models/extra/unload").status == 200
        assert health("extra") == (True, True, False), "unloaded on purpose"
        assert server.post("/v2/repository/models/extra/load").status == 400
        assert health("extra") == (True, True, False), "a first load that failed"
        bad.unlink()
        assert server.post("/v2/repository/models/extra/load").status == 200
        assert health("extra") == (True, True, True), "and one that did not"
    return None


def _named_only(start_server: StartServer, root: Path) -> None:
    server = start_server(root, "--model-control-mode=explicit", "--load-model=base", "--ready-models=extra")
    server.wait_started()
    health = Health(server)
    assert health("extra") == (True, False, False)
    assert server.post("/v2/repository/models/extra/load").status == 200
    assert health("extra") == (True, True, True)
    assert server.post("/v2/repository/models/extra/unload").status == 200
    assert health("extra") == (True, False, False)
    health.close()


@pytest.mark.parametrize(
    ("rule", "ready"), [("all", False), ("any", True), ("none", True), ("base", True), ("extra", False)]
)
def test_a_worker_that_is_down(start_server: StartServer, root: Path, rule: str, ready: bool) -> None:
    flags = ["--load-model=extra", f"--ready-models={rule}"]
    with started(start_server, root, *flags) as (server, health):
        (root / "extra" / "gate").touch()  # the next worker does not get ready
        body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}]}
        assert server.post("/v2/models/extra/infer", body).status != 200
        # One after the other: what is asked over two protocols meanwhile may get two answers.
        wait_until(lambda: server.get("/v2/models/extra/ready").status != 200)
        assert health("extra") == (True, ready, False)
        assert health("base") == (True, ready, True)
        (root / "extra" / "gate").unlink()


def test_draining(start_server: StartServer, root: Path) -> None:
    with started(start_server, root, "--drain-seconds=600") as (server, health):
        server.signal(signal.SIGTERM)
        server.wait_log("no longer ready")
        assert health("base") == (True, False, True)


def test_answers_come_soon_while_a_model_initializes(start_server: StartServer, root: Path) -> None:
    busy = GATED.replace("time.sleep(0.01)", "sum(range(10000))")
    (root / "extra" / "1" / "model.py").write_text(busy)
    (root / "extra" / "gate").touch()
    with started(start_server, root) as (server, _), httpclient.InferenceServerClient(server.http_url) as client:
        loading = in_background(server, "extra")
        wait_state(server, "extra", "LOADING")
        durations = []
        for _ in range(200):
            start = time.perf_counter()
            assert client.is_server_ready()
            durations.append(time.perf_counter() - start)
        (root / "extra" / "gate").unlink()
        loading.join()
        assert sorted(durations)[100] < 0.5


SAYS = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.flag = os.path.join(args["model_repository"], "away")

    %s is_ready(self):
        return not os.path.exists(self.flag)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", q.inputs()[0].as_numpy())]) for q in requests]
"""


@pytest.mark.parametrize("define", ["def", "async def"])
def test_model_decides_its_own_readiness(start_server: StartServer, tmp_path: Path, define: str) -> None:
    root = tmp_path / "models"
    directory = write_model(root, "says", CONFIG, {"1/model.py": SAYS % define})
    server = start_server(root)
    server.wait_ready()
    health = Health(server)
    wait_until(lambda: health.answers("says") == [(True, True, True)] * 2)
    (directory / "away").touch()
    # The server stays ready, and requests are executed: as in Triton, only the readiness of the model changes.
    wait_until(lambda: health.answers("says") == [(True, True, False)] * 2)
    given = httpclient.InferInput("IN", [1], "FP32")
    given.set_data_from_numpy(np.ones(1, np.float32))
    with httpclient.InferenceServerClient(server.http_url) as client:
        assert client.infer("says", [given]).as_numpy("OUT").item() == 1
    (directory / "away").unlink()
    wait_until(lambda: health.answers("says") == [(True, True, True)] * 2)
