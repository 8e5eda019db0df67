"""Host policies of a whole server: where workers, threads of instances and pools of ONNX Runtime run."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support import onnx_models
from support.model_repository import add_sub_config, write_model
from support.server_process import ServerProcess, serving
from support.waiting import wait_until

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(len(CORES) < 2, reason="needs a platform that binds threads, and two cores"),
]

WHERE = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

AT_IMPORT = os.sched_getaffinity(0)

class TritonPythonModel:
    def execute(self, requests):
        assert AT_IMPORT == os.sched_getaffinity(0)
        found = f"{os.getpid()} {os.environ['OMP_NUM_THREADS']} " + " ".join(map(str, sorted(AT_IMPORT)))
        answer = pb_utils.Tensor("WHERE", np.array([found], np.object_))
        return [pb_utils.InferenceResponse([answer]) for _ in requests]
"""
CONFIG = """
backend: "python"
input [ { name: "IN", data_type: TYPE_FP32, dims: [ 1 ] } ]
output [ { name: "WHERE", data_type: TYPE_STRING, dims: [ 1 ] } ]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    for name, group in (
        ("bound", "count: 1 kind: KIND_CPU"),
        ("free", "count: 1 kind: KIND_MODEL"),
        ("last", "count: 1 kind: KIND_CPU host_policy: 'last'"),
    ):
        write_model(root, name, f"{CONFIG} instance_group [ {{ {group} }} ]", {"1/model.py": WHERE})
    group = "instance_group [ { count: 1 kind: KIND_CPU host_policy: 'last' } ]\n"
    threads = "parameters { key: 'intra_op_thread_count' value { string_value: '3' } }"
    config = add_sub_config("onnxruntime", extra=group + threads)
    write_model(root, "sums", config, {"1/model.onnx": onnx_models.add_sub()})
    with serving(
        tmp_path_factory.mktemp("log") / "log",
        f"--model-repository={root}",
        f"--host-policy=cpu,cpu-cores={CORES[0]}",
        f"--host-policy=last,cpu-cores={CORES[-1]}-{CORES[-1]}",
    ) as running:
        yield running


def ask(server: ServerProcess, model: str) -> tuple[int, int, list[int]]:
    """Return the process that answered, how many threads it may have and the cores it runs on."""
    tensor = httpclient.InferInput("IN", [1], "FP32")
    tensor.set_data_from_numpy(np.zeros(1, np.float32))
    with httpclient.InferenceServerClient(server.http_url) as client:
        said = client.infer(model, [tensor]).as_numpy("WHERE")[0].decode().split()
    pid, threads, *cores = map(int, said)
    return pid, threads, cores


def test_workers_run_on_the_cores_of_their_policies(server: ServerProcess) -> None:
    assert ask(server, "bound")[1:] == (1, [CORES[0]])
    assert ask(server, "last")[1:] == (1, [CORES[-1]])
    assert ask(server, "free")[2] == CORES, "there is no policy 'model'"
    assert f"instance 'bound_0_0' runs on cores {CORES[0]}, by host policy 'cpu'" in server.log_text()


def test_replacement_worker_keeps_cores_of_its_predecessor(server: ServerProcess) -> None:
    pid, _, cores = ask(server, "last")
    os.kill(pid, signal.SIGKILL)
    reported: list[tuple[int, int, list[int]]] = []

    def is_back() -> bool:
        try:
            reported.append(ask(server, "last"))
        except InferenceServerException:
            return False
        return reported[-1][0] != pid

    wait_until(is_back, "the worker never came back")
    assert reported[-1][2] == cores


def test_onnx_threads_run_on_cores_of_policy(server: ServerProcess) -> None:
    def of_last() -> int:
        tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
        return sum(sorted(os.sched_getaffinity(int(task.name))) == [CORES[-1]] for task in tasks)

    with httpclient.InferenceServerClient(server.http_url) as client:
        inputs = []
        for name in ("INPUT0", "INPUT1"):
            inputs.append(httpclient.InferInput(name, [1, 16], "FP32"))
            inputs[-1].set_data_from_numpy(np.ones((1, 16), np.float32))
        for _ in range(100):  # enough for the loop to take over
            assert client.infer("sums", inputs).as_numpy("OUTPUT0").sum() == 32
    # That of the instance, two more of the session's pool, and the one that watches the worker of 'last'.
    assert of_last() == 4
    assert sorted(os.sched_getaffinity(server.process.pid)) == CORES, "the loop itself stays free"


def test_impossible_policies_are_refused_at_start(tmp_path: Path, start_server: Callable[..., ServerProcess]) -> None:
    for count in ("1", "2"):
        server = start_server(tmp_path, f"--processes={count}", f"--host-policy=cpu,cpu-cores={CORES[-1] + 900}")
        assert server.wait_exit() == 1
        (error,) = [line for line in server.log_text().splitlines() if "creating server" in line]
        assert f"creating server: Invalid argument - --host-policy=cpu,cpu-cores={CORES[-1] + 900}: this" in error
        assert f"may not use core {CORES[-1] + 900}; it may use core" in error
