"""Loading and unloading with stock tritonclient, over every transport, in control mode EXPLICIT."""

import contextlib
import http.client
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from support.model_repository import write_identity, write_model
from support.model_zoo import python_source, tensors, write_python
from support.server_process import ServerProcess, serving
from support.transport import new_transport

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

DATA = np.arange(4, dtype=np.float32).reshape(1, 4)
CONFIG = {
    "name": "scale",
    "backend": "python",
    "max_batch_size": 8,
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
}
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "member" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } }
] }
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("controlled")


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    write_identity(root, "started")
    write_identity(root, "slow", parameters={"execute_delay_ms": "700"})
    write_model(root, "broken", "nam: 1\n")
    with serving(
        tmp_path_factory.mktemp("log") / "log",
        f"--model-repository={root}",
        "--model-control-mode=explicit",
        "--load-model=started",
        "--allow-client-model-files=true",
    ) as running:
        yield running


def infer(transport, name: str, version: str = "") -> np.ndarray:
    return transport.infer(name, {"INPUT0": DATA}, version=version)["OUTPUT0"]


def failure(call, *arguments, **more) -> str:
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **more)
    return str(caught.value)


def scale(factor: int) -> str:
    return python_source({"OUTPUT0": f"INPUT0 * {factor}"}, inputs=["INPUT0"])


def write_scale(root: Path, name: str, factor: int, version: int = 1) -> Path:
    config = tensors({"INPUT0": "FP32 [ -1 ]"}, {"OUTPUT0": "FP32 [ -1 ]"})
    return write_model(
        root, name, f'backend: "python" max_batch_size: 8\n{config}', {f"{version}/model.py": scale(factor)}
    )


def write_loading(root: Path, name: str, initialize: str) -> None:
    write_python(root, name, tensors({"I": "FP32 [ 1 ]"}, {"O": "FP32 [ 1 ]"}), {}, initialize=initialize)


def test_only_named_models_are_loaded_at_start(transport):
    client = transport.client
    assert client.is_server_ready()
    assert client.is_model_ready("started")
    rows = transport.index()
    assert rows["started"] == ("1", "READY", "")
    assert rows["broken"] == ("", "", "")


def test_load_infer_reload_unload(transport, root):
    client = transport.client
    name = f"scale_{transport.name}"
    model = write_scale(root, name, 2)
    client.load_model(name)
    assert client.is_model_ready(name)
    np.testing.assert_array_equal(infer(transport, name), DATA * 2)
    (model / "1" / "model.py").write_text(scale(30))
    client.load_model(name)
    np.testing.assert_array_equal(infer(transport, name), DATA * 30)
    write_scale(root, name, 4, version=2)
    client.load_model(name)
    np.testing.assert_array_equal(infer(transport, name), DATA * 4)
    assert "version 1 is not at ready state" in failure(infer, transport, name, "1")
    (model / "2" / "model.py").write_text("this is no Python\n")
    text = failure(client.load_model, name)
    assert f"load failed for model '{name}': version 2 is at UNAVAILABLE state: " in text
    np.testing.assert_array_equal(infer(transport, name), DATA * 4)
    assert client.is_server_ready()
    client.unload_model(name)
    assert not client.is_model_ready(name)
    assert transport.index()[name] in (("1", "UNAVAILABLE", "unloaded"), ("2", "UNAVAILABLE", "unloaded"))
    assert f"'{name}' has no available versions" in failure(infer, transport, name)
    shutil.rmtree(model)


def test_override_of_the_configuration(transport, root):
    client = transport.client
    client.load_model("started", config=json.dumps({"backend": "identity", "max_batch_size": 3, **io()}))
    assert transport.config("started").max_batch_size == 3
    client.load_model("started")
    assert client.is_model_ready("started")


def io():
    return {key: CONFIG[key] for key in ("input", "output")}


def test_files_of_model_that_is_not_in_repository(transport):
    client = transport.client
    files = {"file:7/model.py": scale(5).encode()}
    client.load_model("scale", config=json.dumps(CONFIG), files=files)
    np.testing.assert_array_equal(infer(transport, "scale", "7"), DATA * 5)
    client.unload_model("scale")
    assert "failed to load 'scale', failed to poll from model repository" in failure(client.load_model, "scale")


def test_ensemble_and_its_members(transport, root):
    client = transport.client
    if not (root / "wrapped").exists():
        write_identity(root, "member")
        write_model(root, "wrapped", ENSEMBLE)
    client.load_model("wrapped")
    np.testing.assert_array_equal(infer(transport, "wrapped"), DATA)
    assert client.is_model_ready("member")
    client.unload_model("wrapped", unload_dependents=True)
    assert not client.is_model_ready("member")


def test_bad_commands(transport):
    client = transport.client
    poll = "failed to poll from model repository"
    assert f"failed to load 'nothing', {poll}" in failure(client.load_model, "nothing")
    assert f"failed to load 'broken', {poll}" in failure(client.load_model, "broken")
    text = failure(client.load_model, "started", config="{bad")
    assert f"failed to load 'started', {poll}: " in text
    assert "Invalid config override" in text
    assert "its name is 'other'" in failure(client.load_model, "started", config=json.dumps({"name": "other"}))
    files = {"file:1/model.py": b"x"}
    assert "without a 'config'" in failure(client.load_model, "started", files=files)
    escape = {"file:../../model.py": b"x"}
    text = failure(client.load_model, "started", config=json.dumps({"backend": "python"}), files=escape)
    assert "must lie in the model's directory" in text
    # No file system has such a name; the server lives on.
    text = failure(client.load_model, "started", config="{}", files={f"file:{'A' * 256}": b"x"})
    assert f"failed to load 'started', {poll}: " in text
    client.unload_model("nothing")
    assert client.is_server_ready()
    assert client.is_model_ready("started")


def test_unload_lets_requests_finish(server, transport):
    client = transport.client
    client.load_model("slow")
    answers: list[np.ndarray] = []
    with contextlib.closing(new_transport(transport.name, server)) as other:
        asking = threading.Thread(target=lambda: answers.append(infer(other, "slow")))
        asking.start()
        while b'model="slow"' not in server.get("/metrics", url=server.metrics_url).body or not busy(server):
            pass
        client.unload_model("slow")
        asking.join(60)
    np.testing.assert_array_equal(answers[0], DATA)


def busy(server: ServerProcess) -> bool:
    text = server.get("/metrics", url=server.metrics_url).body.decode()
    rows = [
        row for row in text.splitlines() if row.startswith("naiad_") and 'model="slow"' in row and "execut" in row
    ]
    return any(float(row.rpartition(" ")[2]) > 0 for row in rows)


def test_loop_goes_on_while_a_model_loads(server, root):
    gate = "os.path.join(args['model_repository'], 'go')"
    write_loading(root, "lazy", f"while not os.path.exists({gate}): time.sleep(0.01)")
    statuses: list[int] = []
    loading = threading.Thread(target=lambda: statuses.append(server.post("/v2/repository/models/lazy/load").status))
    loading.start()
    while b"LOADING" not in server.post("/v2/repository/index").body:
        pass
    assert server.get("/v2/models/started/ready").status == 200
    assert statuses == []
    (root / "lazy" / "go").touch()
    loading.join(60)
    assert statuses == [200]
    assert server.post("/v2/repository/models/lazy/unload").status == 200


def test_reloads_under_load_lose_no_request(server, root):
    write_scale(root, "busy", 2)
    assert server.post("/v2/repository/models/busy/load").status == 200
    stop = threading.Event()
    failures: list[str] = []
    answered = [0]

    def ask() -> None:
        with contextlib.closing(new_transport("http1", server)) as client:
            while not stop.is_set():
                try:
                    infer(client, "busy")
                    answered[0] += 1
                except InferenceServerException as error:
                    failures.append(str(error))

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    for number in range(6):
        os.utime(root / "busy" / "1" / "model.py", ns=(number, number))
        assert server.post("/v2/repository/models/busy/load").status == 200
    stop.set()
    for thread in asking:
        thread.join(60)
    assert failures == []
    assert answered[0] > 0
    assert server.log_text().count("successfully loaded 'busy'") == 7
    assert server.post("/v2/repository/models/busy/unload").status == 200


def test_rest_refusals(server):
    load = "/v2/repository/models/started/load"
    for body, status, text in (
        ({"parameters": {"nope": "x"}}, 400, "unexpected error on creating Triton parameter"),
        ({"parameters": {"config": {}}}, 400, "non-string as string"),
        ({"parameters": {"config": "{}", "file:1/x": "#"}}, 400, "must be in base64"),
        ({"parameters": 5}, 400, "attempt to get members for non-object"),
    ):
        answer = server.post(load, body)
        assert (answer.status, text in answer.json["error"]) == (status, True), answer.body
    answer = server.post("/v2/repository/r/models/started/load")
    assert (answer.status, answer.json["error"]) == (501, "'repository_name' specification is not supported")


def test_server_ends_while_a_model_loads(start_server, tmp_path):
    root = tmp_path / "models"
    write_loading(root, "never", "time.sleep(600)")
    server = start_server(root, "--model-control-mode=explicit", "--exit-timeout-secs=2")
    server.wait_ready()
    loading = threading.Thread(target=end_of_load, args=(server,))
    loading.start()
    while b"LOADING" not in server.post("/v2/repository/index").body:
        pass
    server.signal()
    assert server.wait_exit() == 0  # the load is ended, so that nothing is left
    loading.join(60)


def end_of_load(server: ServerProcess) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        server.post("/v2/repository/models/never/load")
