"""Models with `isolation: process`: a worker runs the framework, and a crash costs what it executed."""

import os
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from naiad.config.forms.json_form import config_to_json
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from support import onnx_models
from support.model_repository import add_sub_config, write_identity, write_model
from support.sequence_models import write_running_sum
from support.server_process import SOURCE, Answer, ServerProcess, serving
from support.waiting import wait_until

StartServer = Callable[..., ServerProcess]
ISOLATED = 'parameters { key: "isolation" value { string_value: "process" } }\n'
_CRASHING_CONFIG = """
backend: "crashing"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT64 dims: [ 2 ] } ]
"""
CRASHING = """
import os

import numpy as np

from naiad.backend.api import Backend, Model
from naiad.backend.tensor_instance import TensorInstance
from naiad.core.errors import invalid_argument


class CrashingBackend(Backend):
    name = "crashing"

    def load(self, context):
        return CrashingModel(context)


class CrashingModel(Model):
    def __init__(self, context):
        self.context = context

    def create_instance(self, spec):
        return CrashingInstance(self.context)


class CrashingInstance(TensorInstance):
    def run(self, inputs, output_names):
        values = inputs["X"]
        if -1 in values:
            os.abort()
        if -2 in values:
            raise invalid_argument("X is -2, which the framework refuses")
        if -3 in values:
            raise RuntimeError("a bug of the framework")
        return [np.stack([values[:, 0], np.full(len(values), os.getpid())], axis=1)]
"""


def workers(server: ServerProcess) -> list[int]:
    return [child.pid for child in psutil.Process(server.process.pid).children()]


def infer(server: ServerProcess, model: str, value: int) -> Answer:
    tensor = {"name": "X", "datatype": "INT64", "shape": [1, 1], "data": [value]}
    return server.post(f"/v2/models/{model}/infer", {"inputs": [tensor]})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def isolated(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose models all run in workers."""
    config = add_sub_config("onnxruntime", max_batch_size=32, extra="dynamic_batching { }\n" + ISOLATED)
    write_model(root, "add_sub", config, {"1/model.onnx": onnx_models.add_sub()})
    # No inputs and outputs: they come from the model file.
    write_model(root, "found", f'backend: "onnxruntime"\n{ISOLATED}', {"1/model.onnx": onnx_models.add_sub()})
    for datatype in ("FP32", "STRING", "BF16"):
        write_identity(root, f"identity_{datatype.lower()}", datatype=datatype, parameters={"isolation": "process"})
    config_path = write_running_sum(root, "sum", "oldest { max_candidate_sequences: 4 }") / "config.pbtxt"
    config_path.write_text(config_path.read_text() + ISOLATED)
    write_model(root, "repeat", f'backend: "repeat"\n{ISOLATED}')
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, f"--model-repository={root}", "--model-control-mode=explicit", "--load-model=*") as running:
        running.wait_ready()
        yield running


@pytest.mark.parametrize("client", [httpclient, grpcclient], ids=["http", "grpc"])
def test_onnx_models_answer_batches(isolated: ServerProcess, client: Any) -> None:
    url = isolated.http_url if client is httpclient else isolated.grpc_url
    with client.InferenceServerClient(url) as connection:
        for rows, model in ((1, "add_sub"), (7, "add_sub"), (3, "found")):
            arrays = [np.arange(rows * 16, dtype=np.float32).reshape(rows, 16) * k for k in (1, 3)]
            inputs = [client.InferInput(f"INPUT{n}", [rows, 16], "FP32") for n in range(2)]
            for tensor, array in zip(inputs, arrays, strict=True):
                tensor.set_data_from_numpy(array)
            result = connection.infer(model, inputs)
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), arrays[0] + arrays[1])
            np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), arrays[0] - arrays[1])


def test_the_server_does_not_load_the_framework(isolated: ServerProcess) -> None:
    def maps(pid: int) -> str:
        return Path(f"/proc/{pid}/maps").read_text()

    assert "onnxruntime" not in maps(isolated.process.pid)
    assert sum("onnxruntime" in maps(pid) for pid in workers(isolated)) >= 2


def test_large_tensors_and_strings_come_back(isolated: ServerProcess) -> None:
    with httpclient.InferenceServerClient(isolated.http_url) as client:
        for model, datatype, array in (
            ("identity_fp32", "FP32", np.arange(500_000, dtype=np.float32).reshape(1, -1)),
            ("identity_string", "BYTES", np.array([[b"", b"nul\0inside", "grün".encode()]], np.object_)),
        ):
            tensor = httpclient.InferInput("INPUT0", list(array.shape), datatype)
            tensor.set_data_from_numpy(array)
            assert (client.infer(model, [tensor]).as_numpy("OUTPUT0") == array).all()


def test_decoupled_models_stream(isolated: ServerProcess) -> None:
    results: list[Any] = []
    with grpcclient.InferenceServerClient(isolated.grpc_url) as client:
        client.start_stream(lambda result, error: results.append(error or result))
        inputs = [
            grpcclient.InferInput("IN", [3], "INT32"),
            grpcclient.InferInput("DELAY", [3], "UINT32"),
            grpcclient.InferInput("WAIT", [1], "UINT32"),
        ]
        arrays = [np.array([5, 6, 7], np.int32), np.zeros(3, np.uint32), np.zeros(1, np.uint32)]
        for tensor, array in zip(inputs, arrays, strict=True):
            tensor.set_data_from_numpy(array)
        client.async_stream_infer("repeat", inputs)
        wait_until(lambda: len(results) == 3)
        client.stop_stream()
    assert [int(result.as_numpy("OUT")[0]) for result in results] == [5, 6, 7]


def test_sequences_keep_their_state(isolated: ServerProcess) -> None:
    def step(client: Any, sequence: int, value: float, **flags: bool) -> float:
        tensor = httpclient.InferInput("INPUT", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.array([[value]], np.float32))
        return float(client.infer("sum", [tensor], sequence_id=sequence, **flags).as_numpy("OUTPUT")[0, 0])

    with httpclient.InferenceServerClient(isolated.http_url) as client:
        assert [step(client, number, number, sequence_start=True) for number in (1, 2)] == [1, 2]
        assert [step(client, number, 10) for number in (1, 2)] == [11, 12]
        assert [step(client, number, 10, sequence_end=True) for number in (1, 2)] == [21, 22]


def test_unloading_ends_the_worker(isolated: ServerProcess) -> None:
    before = set(workers(isolated))
    assert isolated.post("/v2/repository/models/identity_bf16/unload").status == 200
    wait_until(lambda: len(before - set(workers(isolated))) == 1)
    assert isolated.post("/v2/repository/models/identity_bf16/load").status == 200
    assert isolated.get("/v2/models/identity_bf16/ready").status == 200


def test_mismatch_with_model_is_load_error(isolated: ServerProcess, tmp_path: Path) -> None:
    wrong = add_sub_config("onnxruntime", max_batch_size=32, extra=ISOLATED).replace("TYPE_FP32", "TYPE_INT8")
    content = {"parameters": {"config": _json_config(wrong)}}
    answer = isolated.post("/v2/repository/models/add_sub/load", content)
    assert answer.status == 400
    assert "unexpected datatype TYPE_INT8 for input 'INPUT0', expecting TYPE_FP32" in answer.json["error"]


def test_model_that_cannot_batch_says_so_at_loading(isolated: ServerProcess, root: Path) -> None:
    config = f'backend: "onnxruntime" max_batch_size: 4 {ISOLATED}'
    write_model(root, "fixed", config, {"1/model.onnx": onnx_models.add_sub((2, 16))})
    answer = isolated.post("/v2/repository/models/fixed/load")
    assert answer.status == 400
    assert "autofill failed for model 'fixed': model does not support batching" in answer.json["error"]
    assert "auto_complete_config" not in answer.json["error"]


def _json_config(text: str) -> str:
    return config_to_json(parse_pbtxt(text, "config.pbtxt").config).decode()


# --- crashes --------------------------------------------------------------------------------------------------------


@pytest.fixture
def crashing(start_server: StartServer, tmp_path: Path) -> ServerProcess:
    """A server with a backend that aborts its process when a request says so, and an ordinary model beside it."""
    packages = tmp_path / "packages"
    info = packages / "naiad_crashing-1.0.dist-info"
    info.mkdir(parents=True)
    (packages / "naiad_crashing.py").write_text(CRASHING)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: naiad-crashing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[naiad.backends]\ncrashing = naiad_crashing:CrashingBackend\n")
    write_model(tmp_path / "models", "mortal", _CRASHING_CONFIG + ISOLATED, {"1/empty": ""})
    write_identity(tmp_path / "models")
    path = os.pathsep.join([str(SOURCE), str(packages)])
    server = start_server(tmp_path / "models", environment={"PYTHONPATH": path})
    server.wait_ready()
    return server


def pid_of(answer: Answer) -> int:
    assert answer.status == 200, answer.body
    return int(answer.json["outputs"][0]["data"][1])


def test_abort_fails_batch_and_worker_starts_again(crashing: ServerProcess) -> None:
    first = pid_of(infer(crashing, "mortal", 1))
    assert first in workers(crashing)
    died = infer(crashing, "mortal", -1)
    assert died.status == 503
    assert "was killed by SIGABRT while it executed this request" in died.json["error"]
    second = pid_of(infer(crashing, "mortal", 2))
    assert second != first
    assert crashing.process.poll() is None


def test_kill_9_fails_only_what_ran(start_server: StartServer, tmp_path: Path) -> None:
    parameters = {"isolation": "process", "execute_delay_ms": "1500"}
    write_identity(tmp_path, "slow", parameters=parameters)
    write_identity(tmp_path, "beside")
    server = start_server(tmp_path)
    server.wait_ready()
    content = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [7]}]}
    (worker,) = workers(server)
    with ThreadPoolExecutor(4) as pool:
        running = pool.submit(server.post, "/v2/models/slow/infer", content)
        server.wait_requests("slow", executing=1)
        waiting = [pool.submit(server.post, "/v2/models/slow/infer", content) for _ in range(2)]
        server.wait_requests("slow", waiting=2)
        os.kill(worker, signal.SIGKILL)
        died = running.result(60)
        assert server.post("/v2/models/beside/infer", content).status == 200
        assert [answer.result(60).status for answer in waiting] == [200, 200]
    assert died.status == 503
    assert "was killed by SIGKILL while it executed this request" in died.json["error"]
    (again,) = workers(server)
    assert again != worker


def test_errors_of_the_framework_keep_code_and_text(crashing: ServerProcess) -> None:
    refused = infer(crashing, "mortal", -2)
    assert (refused.status, refused.json["error"]) == (400, "X is -2, which the framework refuses")
    failed = infer(crashing, "mortal", -3)
    assert failed.status == 500
    assert failed.json["error"] == "executing model 'mortal' failed: RuntimeError: a bug of the framework"
    crashing.wait_log("Traceback")
    assert pid_of(infer(crashing, "mortal", 1))


@pytest.mark.long
def test_the_framework_may_come_from_another_environment(start_server: StartServer, tmp_path: Path) -> None:
    homes = {}
    # The first has what naiad needs, and not naiad itself: that is the server's.
    for name, paths in (("with", [sysconfig.get_path("purelib")]), ("without", [])):
        homes[name] = tmp_path / name
        venv.create(homes[name], symlinks=True)
        packages = next(homes[name].glob("lib/python3*/site-packages"))
        # numpy alone is what every worker needs.
        os.symlink(Path(np.__file__).parent, packages / "numpy")
        for library in Path(np.__file__).parents[1].glob("numpy.libs"):
            os.symlink(library, packages / library.name)
        (packages / "more.pth").write_text("\n".join(map(str, paths)))
        parameters = {"isolation": "process", "EXECUTION_ENV_PATH": str(homes[name])}
        write_identity(tmp_path / "models", name, parameters=parameters)
    server = start_server(tmp_path / "models", "--exit-on-error=false")
    server.wait_started()
    content = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [7]}]}
    answer = server.post("/v2/models/with/infer", content)
    assert answer.status == 200, server.log_text()
    (worker,) = workers(server)
    assert Path(f"/proc/{worker}/cmdline").read_bytes().startswith(bytes(homes["with"]))
    rows = {row["name"]: row for row in server.post("/v2/repository/index").json}
    assert "needs numpy, protobuf, ml_dtypes and orjson in the environment of the worker" in rows["without"]["reason"]


@pytest.mark.long
def test_backend_settings_name_the_environment_of_its_models(start_server: StartServer, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    venv.create(home, symlinks=True)
    packages = next(home.glob("lib/python3*/site-packages"))
    (packages / "more.pth").write_text(sysconfig.get_path("purelib"))
    write_identity(tmp_path / "models", "there")
    write_model(tmp_path / "models", "here", 'backend: "onnxruntime"', {"1/model.onnx": onnx_models.add_sub()})
    server = start_server(tmp_path / "models", f"--backend-config=identity,EXECUTION_ENV_PATH={home}")
    server.wait_ready()
    content = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [7]}]}
    assert server.post("/v2/models/there/infer", content).status == 200
    (worker,) = workers(server)
    assert Path(f"/proc/{worker}/cmdline").read_bytes().startswith(bytes(home))


def test_unknown_isolation_of_a_backend_is_refused(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path, "m")
    server = start_server(tmp_path, "--backend-config=identity,isolation=thread", "--exit-on-error=false")
    server.wait_started()
    (row,) = server.post("/v2/repository/index").json
    assert "--backend-config=identity,isolation=thread: expected process" in row["reason"]


def test_unknown_values_are_configuration_errors(tmp_path: Path) -> None:
    write_identity(tmp_path, parameters={"isolation": "thread"})
    command = [sys.executable, "-m", "naiad", "check", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 1
    assert "parameter 'isolation' has an unknown value" in done.stdout
