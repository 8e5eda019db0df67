"""The rate limiter with stock tritonclient: models that share a resource take turns, over every transport."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from support.bls_models import run_code, write_script
from support.model_repository import add_sub_config, write_identity, write_model
from support.model_zoo import python_source
from support.server_process import ServerProcess, serving
from support.transport import Inferred, Transport, new_transport
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

DATA = np.ones((1, 16), np.float32)
WORKER = """
with open({path!r}, "a") as log:
    log.write(f"{name} begins {{time.monotonic_ns()}}\\n")
    time.sleep(0.01)
    log.write(f"{name} ends {{time.monotonic_ns()}}\\n")
"""


def limiter(count: int, priority: int = 1) -> str:
    """The need of `count` units of the global resource R."""
    return f'rate_limiter {{ resources [ {{ name: "R" global: true count: {count} }} ] priority: {priority} }}'


def limited(count: int, priority: int = 1, instances: int = 1) -> str:
    """An instance group that needs `count` units of the global resource R."""
    return f"instance_group [ {{ count: {instances} kind: KIND_CPU {limiter(count, priority)} }} ]\n"


@pytest.fixture(scope="module")
def executions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("executions") / "log"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, executions: Path) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    for name in ("one", "two"):
        each = WORKER.format(path=str(executions), name=name)
        outputs = {"OUTPUT0": "INPUT0 + INPUT1", "OUTPUT1": "INPUT0 - INPUT1"}
        model = python_source(outputs, inputs=["INPUT0", "INPUT1"], each=each)
        config = add_sub_config("python", extra=limited(2, instances=2))
        write_model(root, name, config, {"1/model.py": model})
    slow = {"execute_delay_ms": "20"}
    write_identity(root, "often", parameters=slow, extra=limited(3, 1))
    write_identity(root, "seldom", parameters=slow, extra=limited(3, 3))
    write_identity(root, "free")
    with serving(
        tmp_path_factory.mktemp("log") / "log",
        f"--model-repository={root}",
        "--rate-limit=execution_count",
        "--rate-limit-resource=R:3",
    ) as running:
        yield running


def ask(transport: Transport, model: str, names: tuple[str, ...] = ("INPUT0",)) -> Inferred:
    with transport.new_client() as client:
        return transport.infer(model, dict.fromkeys(names, DATA), client=client)


def rows(server: ServerProcess) -> list[str]:
    return server.get("/metrics", url=server.metrics_url).body.decode().splitlines()


def test_models_that_share_a_resource_never_execute_together(server: ServerProcess, transport, executions: Path):
    executions.write_text("")
    both = ("INPUT0", "INPUT1")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: ask(transport, ("one", "two")[number % 2], both), range(24)))
    assert all(answer["OUTPUT0"].tolist() == [[2.0] * 16] for answer in answers)
    # Two of three instances would need 4 of the resource, of which there are 3.
    events = [line.split()[:2] for line in executions.read_text().splitlines()]
    moments = sorted((int(line.split()[2]), line.split()[1]) for line in executions.read_text().splitlines())
    assert len(events) >= 4
    assert [kind for _, kind in moments] == ["begins", "ends"] * (len(moments) // 2)
    assert {name for name, _ in events} == {"one", "two"}


@pytest.mark.parametrize("transport", ["http1", "grpc"], indirect=True)
def test_executions_are_shared_by_priority(server: ServerProcess, transport):
    def executed(model: str) -> int:
        return server.get(f"/v2/models/{model}/stats").json["model_stats"][0]["execution_count"]

    before = {model: executed(model) for model in ("often", "seldom")}
    deadline = time.monotonic() + 2.0

    def keep_asking(number: int) -> None:
        while time.monotonic() < deadline:
            ask(transport, ("often", "seldom")[number % 2])

    # Enough clients for each model that both always have something waiting; no batching: a request is an execution.
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(keep_asking, range(12)))
    often, seldom = (executed(model) - before[model] for model in ("often", "seldom"))
    # Priority 3 gets a third of the turns of priority 1.
    assert often > 1.5 * seldom > 0


def test_model_without_needs_does_not_wait(server: ServerProcess, transport):
    assert ask(transport, "free")["OUTPUT0"].tolist() == DATA.tolist()


def test_what_is_held_is_a_metric(server: ServerProcess, transport):
    ask(transport, "often")
    assert 'naiad_rate_limiter_limit{device="",resource="R"} 3' in rows(server)
    wait_until(lambda: 'naiad_rate_limiter_held{device="",resource="R"} 0' in rows(server))
    assert 'naiad_rate_limiter_waiting{device="",resource="R"} 0' in rows(server)


def test_what_is_held_is_explained(server: ServerProcess):
    explained = server.get("/v2/models/seldom/explain").json
    assert (
        "executes when 3 R are free. Waiting instances take turns; each execution costs 3 turns."
        in (explained["rules"][-1])
    )
    (resource,) = explained["resources"]
    assert {key: resource[key] for key in ("name", "device", "limit")} == {"name": "R", "device": None, "limit": 3}
    assert 0 <= resource["held"] <= 3
    assert resource["waiting"] >= 0
    assert "resources" not in server.get("/v2/models/free/explain").json


def test_killed_worker_gives_back_what_it_held(tmp_path: Path):
    dying = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        os._exit(3)
"""
    root = tmp_path / "models"
    write_model(root, "dying", add_sub_config("python", extra=limited(1)), {"1/model.py": dying})
    write_identity(root, "living", extra=limited(1))
    with serving(tmp_path / "log", f"--model-repository={root}", "--rate-limit=execution_count") as server:
        transport = new_transport("http1", server)
        with pytest.raises(InferenceServerException):
            ask(transport, "dying", ("INPUT0", "INPUT1"))
        assert ask(transport, "living")["OUTPUT0"].tolist() == DATA.tolist()


def test_call_for_resources_of_caller_reaches_time_limit(tmp_path: Path):
    root = tmp_path / "models"
    for name in ("caller", "called"):
        write_script(root, name, group=limiter(2))
    write_script(root, "modest", group=limiter(1))
    flags = ("--rate-limit=execution_count", "--rate-limit-resource=R:3", "--call-wait-timeout-secs=1")
    with serving(tmp_path / "log", f"--model-repository={root}", *flags) as server:
        error = run_code(server, "result = run('called', 'result = 1')", "caller")
        assert error["code"] == "UNAVAILABLE"
        assert "has waited for 1 s (--call-wait-timeout-secs)" in error["message"]
        assert "(caller -> called)" in error["message"]
        wait_until(lambda: error["message"] in server.log_text())
        assert run_code(server, "result = run('modest', 'result = 1')", "caller") == 1
        assert run_code(server, "result = 2", "called") == 2


def test_need_that_can_never_be_met_fails_load(tmp_path: Path):
    write_identity(tmp_path / "models", "greedy", extra=limited(4))
    server = ServerProcess(
        tmp_path / "log",
        f"--model-repository={tmp_path / 'models'}",
        "--rate-limit=execution_count",
        "--rate-limit-resource=R:3",
    )
    try:
        assert server.wait_exit() == 1
        assert (
            'Resource count for "R" is limited to 3 which will prevent scheduling of one or more model instances, '
            "the minimum required count is 4"
        ) in " ".join(server.log_text().split())
    finally:
        server.stop()
