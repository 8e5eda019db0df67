"""The rate limiter with several server processes: resources are the server's, whoever executes and whoever dies."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from support.bls_models import code_input, run_code, write_script
from support.model_repository import add_sub_config, write_identity, write_model
from support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

DATA = np.ones((1, 16), np.float32)
OWN_CHANNEL = [("grpc.use_local_subchannel_pool", 1)]
WORKER = """
import os
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        with open({log!r}, "a") as log:
            log.write(f"{{os.getppid()}} begins {{time.monotonic_ns()}}\\n")
            log.flush()
            time.sleep(0.01)
            while os.path.exists({lasting!r}):
                time.sleep(0.01)
            log.write(f"{{os.getppid()}} ends {{time.monotonic_ns()}}\\n")
        made = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            made.append(pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)]
            ))
        return made
"""


def limiter(count: int) -> str:
    return f'rate_limiter {{ resources [ {{ name: "R" global: true count: {count} }} ] }}'


class Scene:
    """A server of two processes, models that log when they execute and in which process."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "executions"
        self.lasting = directory / "lasting"
        """Executions do not end while this file exists."""
        root = directory / "models"
        worker = WORKER.format(log=str(self.log), lasting=str(self.lasting))
        for name in ("one", "two"):
            config = add_sub_config("python", extra=f"instance_group [ {{ kind: KIND_CPU {limiter(2)} }} ]")
            write_model(root, name, config, {"1/model.py": worker})
        write_identity(root, "free")
        for name, count in (("caller", 2), ("called", 2), ("modest", 1)):
            write_script(root, name, group=limiter(count))
        flags = ("--processes=2", "--rate-limit=execution_count", "--rate-limit-resource=R:3")
        self.server = ServerProcess(directory / "log", f"--model-repository={root}", *flags)

    def clients(self, count: int) -> list[grpcclient.InferenceServerClient]:
        """Connections are shared out evenly."""
        return [
            grpcclient.InferenceServerClient(self.server.grpc_url, channel_args=OWN_CHANNEL) for _ in range(count)
        ]

    def events(self) -> list[tuple[int, str]]:
        """Return the process and what it did, in the order of time."""
        lines = [line.split() for line in self.log.read_text().splitlines() if line.count(" ") == 2]
        return [(int(pid), verb) for pid, verb, _ in sorted(lines, key=lambda line: int(line[2]))]

    def metric(self, name: str) -> list[float]:
        text = self.server.get("/metrics", url=self.server.metrics_url).body.decode()
        return [
            float(line.split()[-1])
            for line in text.splitlines()
            if line.startswith(f"{name}{{") and 'resource="R"' in line
        ]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("scene"))
    try:
        made.server.wait_ready()
        yield made
    finally:
        made.lasting.unlink(missing_ok=True)
        made.server.stop()


def ask(client: grpcclient.InferenceServerClient, model: str, names: tuple[str, ...] = ("INPUT0", "INPUT1")) -> float:
    tensors = [grpcclient.InferInput(name, list(DATA.shape), "FP32") for name in names]
    for each in tensors:
        each.set_data_from_numpy(DATA)
    return float(client.infer(model, tensors, client_timeout=120).as_numpy("OUTPUT0")[0, 0])


def wait_for(condition: Callable[[], object], scene: Scene, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, scene.server.log_text()
        time.sleep(0.02)


def test_executions_of_all_processes_take_turns(scene: Scene) -> None:
    scene.log.write_text("")
    clients = scene.clients(4)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: ask(clients[n % 4], ("one", "two")[n // 4 % 2]), range(32)))
    assert answers == [2.0] * 32
    events = scene.events()
    # Two of them would need 4 of the resource, of which there are 3.
    assert [verb for _, verb in events] == ["begins", "ends"] * (len(events) // 2)
    assert {pid for pid, _ in events} == set(scene.server.members())
    for client in clients:
        client.close()


def test_what_is_held_is_told_once_for_all_processes(scene: Scene) -> None:
    (client,) = scene.clients(1)
    scene.lasting.touch()
    scene.log.write_text("")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, client, "one")
        wait_for(scene.events, scene)
        assert scene.metric("naiad_rate_limiter_limit") == [3]
        assert scene.metric("naiad_rate_limiter_held") == [2]
        scene.lasting.unlink()
        assert asked.result() == 2.0
    wait_for(lambda: scene.metric("naiad_rate_limiter_held") == [0], scene)
    client.close()


def test_a_call_that_needs_what_its_caller_holds_is_refused_in_each_process(scene: Scene) -> None:
    error = run_code(scene.server, "result = run('called', 'result = 1')", "caller")
    assert error["code"] == "UNAVAILABLE"
    assert "would wait for itself for ever (caller -> called -> caller)" in error["message"]
    assert run_code(scene.server, "result = run('modest', 'result = 1')", "caller") == 1


def test_calls_that_wait_for_resources_of_each_others_processes_are_refused_one_by_one(
    scene: Scene, tmp_path: Path
) -> None:
    """Each process has one execution that holds 1 of 3, and calls what needs 2."""
    clients = scene.clients(2)
    code = f"""
open({str(tmp_path)!r} + f"/{{os.getppid()}}", "w").close()
while len(os.listdir({str(tmp_path)!r})) < 2:
    time.sleep(0.01)
result = run("called", "result = 1")
"""

    def run(client: grpcclient.InferenceServerClient) -> object:
        found = client.infer("modest", [code_input(code)], client_timeout=120)
        return json.loads(found.as_numpy("RESULT")[0])

    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(run, clients))
    (error,) = (each for each in made if each != 1)
    assert made.count(1) == 1, "the other could go on"
    assert error["code"] == "UNAVAILABLE"
    assert "the call of model 'called' by model 'modest' would wait for ever" in error["message"]
    wait_for(lambda: scene.metric("naiad_rate_limiter_held") == [0], scene)
    for client in clients:
        client.close()


def test_a_killed_process_gives_back_what_it_held(scene: Scene) -> None:
    scene.log.write_text("")
    scene.lasting.touch()
    clients = scene.clients(2)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask, client, "one") for client in clients]
        # One of them executes and holds the resource, for ever; the other process waits for it.
        wait_for(lambda: len(scene.events()) == 1 and scene.metric("naiad_rate_limiter_waiting") == [1], scene)
        ((victim, _),) = scene.events()
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: len(scene.events()) == 2, scene)
        scene.lasting.unlink()
        results = []
        for each in asked:
            try:
                results.append(each.result(timeout=120))
            except InferenceServerException:
                results.append("failed")
    assert sorted(map(str, results)) == ["2.0", "failed"]
    scene.server.wait_ready()
    assert victim not in scene.server.members()
    # The one that has taken its place shares them, too.
    more = scene.clients(2)
    assert [ask(client, model) for client in more for model in ("one", "two")] == [2.0] * 4
    wait_for(lambda: scene.metric("naiad_rate_limiter_held") == [0], scene)
    for client in (*clients, *more):
        client.close()


def test_a_need_that_can_never_be_met_fails_the_start_once(tmp_path: Path) -> None:
    group = f"instance_group [ {{ kind: KIND_CPU {limiter(4)} }} ]"
    write_identity(tmp_path / "models", "greedy", extra=group)
    server = ServerProcess(
        tmp_path / "log",
        f"--model-repository={tmp_path / 'models'}",
        "--processes=2",
        "--rate-limit=execution_count",
        "--rate-limit-resource=R:3",
    )
    try:
        assert server.wait_exit() == 1
        assert 'Resource count for "R" is limited to 3' in server.log_text()
    finally:
        server.stop()
