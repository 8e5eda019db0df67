"""The start commands of KServe and Seldon, as they are but for the directory of the models and the ports."""

import http.client
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from support.departures import json_body
from support.held_models import Notes, write_held
from support.kubernetes_manifests import DEPLOY, ROOT, container_of_kserve, read_manifests
from support.model_repository import write_identity
from support.server_process import SOURCE, ServerProcess
from support.serving_commands import KSERVE, SELDON_1, SELDON_2

INPUT = np.array([[1, 2, 3, 4]], np.float32)
Start = Callable[..., ServerProcess]


class CommandProcess(ServerProcess):
    """A server started by a command of its own in place of `naiad serve`."""

    def __init__(self, log: Path, command: Sequence[str], path: Path) -> None:
        self.log = log
        self.tls = None
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
            )


@pytest.fixture(scope="module")
def directory_of_commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the installed `tritonserver`, or one with the script that pip would write."""
    installed = Path(sys.executable).parent
    if (installed / "tritonserver").exists():
        return installed
    directory = tmp_path_factory.mktemp("bin")
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["tritonserver"]
    module, _, function = entry.partition(":")
    script = directory / "tritonserver"
    script.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    script.chmod(0o755)
    return directory


def local(command: Sequence[str], models: Path) -> list[str]:
    """The command with a directory of the test, free ports, and addresses of this machine only."""
    store = next(argument for argument in command if argument.startswith(("--model-store=", "--model-repository=")))
    replaced = []
    for argument in command:
        name, _, _ = argument.partition("=")
        if argument == store:
            replaced.append(f"{name}={models}")
        elif name.endswith("-port"):
            replaced.append(f"{name}=0")
        else:
            replaced.append(argument.removeprefix("/opt/tritonserver/bin/"))
    return [*replaced, "--metrics-port=0", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]


@pytest.fixture
def start(directory_of_commands: Path, tmp_path: Path) -> Iterator[Start]:
    running = []

    def start(command: Sequence[str], *, in_shell: bool = False) -> ServerProcess:
        words = local(command, tmp_path / "models")
        words = ["bash", "-c", " ".join(words)] if in_shell else words
        running.append(CommandProcess(tmp_path / "server.log", words, directory_of_commands))
        return running[-1]

    yield start
    for each in running:
        each.stop()


def infer_over_both(running: ServerProcess, model: str) -> None:
    for module, url in ((http_client, running.http_url), (grpc_client, running.grpc_url)):
        with module.InferenceServerClient(url) as client:
            assert client.is_server_live()
            assert client.is_model_ready(model)
            tensor = module.InferInput("INPUT0", INPUT.shape, "FP32")
            tensor.set_data_from_numpy(INPUT)
            result = client.infer(model, [tensor])
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), INPUT)


@pytest.mark.parametrize("command", [KSERVE, SELDON_1], ids=["kserve", "seldon-1"])
def test_command_serves_and_finishes_requests(start: Start, tmp_path: Path, command: Sequence[str]) -> None:
    write_identity(tmp_path / "models")
    notes = Notes(tmp_path / "notes")
    write_held(tmp_path / "models", "slow", notes.where)
    running = start(command)
    running.wait_ready()
    infer_over_both(running, "identity")
    connection = http.client.HTTPConnection(running.http_url, timeout=60)
    connection.request("POST", "/v2/models/slow/infer", json_body("last", (1, 2, 3, 4)))
    notes.wait("last", "began")
    running.signal(signal.SIGTERM)
    running.wait_log(r"Signal \(15\) received")
    notes.release("last")
    response = connection.getresponse()
    assert response.status == 200
    assert json.loads(response.read())["outputs"][0]["data"] == [2, 4, 6, 8]
    assert running.wait_exit() == 0


def test_shell_of_seldon_passes_the_signal(start: Start, tmp_path: Path) -> None:
    """Seldon's agent loads and unloads models over gRPC."""
    write_identity(tmp_path / "models")
    running = start(SELDON_2, in_shell=True)
    running.wait_started()
    with grpc_client.InferenceServerClient(running.grpc_url) as client:
        assert client.is_server_live()
        client.load_model("identity")
        infer_over_both(running, "identity")
        client.unload_model("identity")
        assert not client.is_model_ready("identity")
    running.signal(signal.SIGTERM)
    assert running.wait_exit() == 0


def test_runtime_for_kserve_drains(start: Start, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    (runtime,) = read_manifests((DEPLOY / "kserve" / "servingruntime.yaml").read_text())
    server = container_of_kserve(runtime)
    assert "--drain-seconds=5" in server["args"]
    patient = [argument.replace("--drain-seconds=5", "--drain-seconds=600") for argument in server["args"]]
    running = start([*server["command"], *patient])
    running.wait_ready()
    running.signal(signal.SIGTERM)
    running.wait_log(r"Signal \(15\) received")
    assert running.get("/v2/health/ready").status == 503
    infer_over_both(running, "identity")
