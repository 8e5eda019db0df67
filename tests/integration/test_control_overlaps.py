"""Control calls on models that depend on each other, at the same time, over the wire: no dead ensemble is left."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from support.model_repository import write_identity, write_model
from support.server_process import ServerProcess, serving
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

_SOURCE = """
import os, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        open({begun!r}, "w").close()
        while not os.path.exists({gate!r}):
            time.sleep(0.01)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0",
            pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())]) for request in requests]
"""
_TENSORS = """
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def _ensemble(member: str, version: int = -1) -> str:
    step = f'model_name: "{member}" model_version: {version}'
    maps = 'input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" }'
    return f'platform: "ensemble" {_TENSORS} ensemble_scheduling {{ step [ {{ {step} {maps} }} ] }}'


class Scene:
    """`e` is an ensemble of `c`, which loads while its gate is open; `f` is an ensemble of `e`."""

    def __init__(self, root: Path, running: ServerProcess) -> None:
        self.gate, self.begun = root / "gate", root / "begun"
        self.client = grpc.InferenceServerClient(running.grpc_url)
        self._threads = ThreadPoolExecutor(4)

    def begin(self, call: Callable[..., None], *arguments: object, **options: object) -> "Future[None]":
        return self._threads.submit(call, *arguments, **options)

    def reset(self) -> None:
        self.gate.touch()
        for name in ("f", "e", "c"):
            self.client.unload_model(name)
        self.gate.unlink()
        self.begun.unlink(missing_ok=True)

    def wait_for_load(self) -> None:
        wait_until(self.begun.exists, "the model does not load")

    def served(self) -> set[str]:
        """Return the served models; checks that each of them answers and that the server is ready."""
        rows = self.client.get_model_repository_index().models
        ready = {row.name for row in rows if row.state == "READY"}
        assert self.client.is_server_ready()
        for name in ready:
            data = np.arange(4, dtype=np.float32).reshape(1, 4)
            tensor = grpc.InferInput("INPUT0", data.shape, "FP32").set_data_from_numpy(data)
            assert self.client.infer(name, [tensor]).as_numpy("OUTPUT0").tolist() == data.tolist()
        return ready


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("signals")
    models = tmp_path_factory.mktemp("models")
    source = _SOURCE.format(begun=str(root / "begun"), gate=str(root / "gate"))
    write_model(models, "c", f'backend: "python" {_TENSORS}', {"1/model.py": source})
    write_model(models, "e", _ensemble("c"), {"1/.keep": ""})
    write_model(models, "f", _ensemble("e"), {"1/.keep": ""})
    with serving(
        tmp_path_factory.mktemp("log") / "log", f"--model-repository={models}", "--model-control-mode=explicit"
    ) as running:
        made = Scene(root, running)
        yield made
        made.gate.touch()
        made._threads.shutdown()


@pytest.fixture(autouse=True)
def fresh(scene: Scene) -> None:
    scene.reset()


def _overlap(scene: Scene, *calls: tuple[Callable[..., None], str]) -> set[str]:
    """Begin the first call, the other calls while `c` loads, and let it go on; return what is served in the end."""
    begun = [scene.begin(*calls[0])]
    scene.wait_for_load()
    begun += [scene.begin(*call) for call in calls[1:]]
    scene.gate.touch()
    for future in begun:
        error = future.exception(timeout=60)
        assert error is None or isinstance(error, InferenceServerException)
    return scene.served()


@pytest.mark.parametrize("whole", ["e", "f"])
def test_unload_of_a_member_while_its_ensemble_loads(scene: Scene, whole: str) -> None:
    load, unload = scene.client.load_model, scene.client.unload_model
    assert _overlap(scene, (load, whole), (unload, "c")) == set()
    load(whole)
    assert scene.served() == {"c", "e"} | {whole}


@pytest.mark.parametrize("whole", ["e", "f"])
def test_unload_of_an_ensemble_while_its_member_loads(scene: Scene, whole: str) -> None:
    load, unload = scene.client.load_model, scene.client.unload_model
    assert _overlap(scene, (load, "c"), (load, whole), (unload, whole)) >= {"c"}


def test_load_and_unload_of_all_at_once(scene: Scene) -> None:
    load, unload = scene.client.load_model, scene.client.unload_model
    _overlap(scene, (load, "f"), (unload, "e"), (load, "c"), (unload, "c"))
    load("f")
    assert scene.served() == {"c", "e", "f"}


def test_members_go_with_an_ensemble_that_loads(scene: Scene) -> None:
    load = scene.client.load_model

    def unload(name: str) -> None:
        scene.client.unload_model(name, unload_dependents=True)

    assert _overlap(scene, (load, "f"), (unload, "f")) == set()


def test_reload_of_a_member_beside_an_unload(scene: Scene) -> None:
    scene.gate.touch()
    scene.client.load_model("f")
    scene.gate.unlink()
    scene.begun.unlink()
    reload = scene.begin(lambda: scene.client.load_model("c", config='{"max_batch_size": 4, "backend": "python"}'))
    scene.wait_for_load()
    unload = scene.begin(scene.client.unload_model, "c")
    assert not threading.Event().wait(0.05)
    scene.gate.touch()
    for call in (reload, unload):
        call.exception(timeout=60)
    assert scene.served() in (set(), {"c"}, {"c", "e", "f"})


def test_ensemble_whose_version_of_a_member_goes(tmp_path: Path) -> None:
    """It is out of service until that version is there again; the server stays ready."""
    (write_identity(tmp_path, "c") / "2").mkdir()
    write_model(tmp_path, "e", _ensemble("c", 1), {"1/.keep": ""})
    write_model(tmp_path, "f", _ensemble("e"), {"1/.keep": ""})
    config = (tmp_path / "c" / "config.pbtxt").read_text()

    def policy(version: int) -> None:
        text = config + f"\nversion_policy: {{ specific: {{ versions: [ {version} ] }} }}\n"
        (tmp_path / "c" / "config.pbtxt").write_text(text)

    policy(1)
    with serving(
        tmp_path / "log",
        f"--model-repository={tmp_path}",
        "--model-control-mode=explicit",
        "--load-model=f",
    ) as running:
        scene = Scene(tmp_path, running)
        assert scene.served() == {"c", "e", "f"}
        policy(2)
        scene.client.load_model("c")
        assert scene.served() == {"c"}
        policy(1)
        scene.client.load_model("c")
        assert scene.served() == {"c", "e", "f"}
