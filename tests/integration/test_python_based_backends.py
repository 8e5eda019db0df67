"""Python-based backends: the example of the repository with a real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.model_repository import write_model
from support.server_process import ServerProcess, serving

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "python_based_backend"
ANYHOW = ("--exit-on-error=false", "--strict-readiness=false")
INSPECTING = """
import json
import sys

import numpy as np
import triton_python_backend_utils as pb_utils

from beside import WORD

class TritonPythonModel:
    def initialize(self, args):
        self.seen = [__name__, WORD, pb_utils.get_model_dir(), args["model_repository"], args["model_version"]]
        self.seen.append(json.loads(args["model_config"])["backend"])
        self.seen.append(str(args["model_repository"] in sys.path))

    def execute(self, requests):
        seen = np.array(self.seen, object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", seen)]) for _ in requests]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("python_based")
    backends, models = directory / "backends", directory / "models"
    for source, target in ((EXAMPLE / "backends", backends), (EXAMPLE / "models", models)):
        target.mkdir()
        for child in source.iterdir():
            (target / child.name).symlink_to(child)
    (backends / "inspecting").mkdir()
    (backends / "inspecting" / "model.py").write_text(INSPECTING)
    (backends / "inspecting" / "beside.py").write_text("WORD = 'beside'\n")
    config = 'backend: "inspecting"\ninput [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
    config += 'output [ { name: "SEEN" data_type: TYPE_STRING dims: [ -1 ] } ]\nruntime: "model.py"\n'
    write_model(models, "inspected", config, {"7/anything": ""})
    config = config.replace("inspecting", "missing")
    write_model(models, "missing", config, {"1/anything": ""})
    flags = (
        f"--model-repository={models}",
        f"--backend-directory={backends}",
        "--exit-on-error=false",
        "--strict-readiness=false",
    )
    with serving(directory / "log", *flags) as running:
        yield running


def ask(server: ServerProcess, model: str, name: str, shape: list[int], data: list[float]) -> list:
    body = {"inputs": [{"name": name, "datatype": "FP32", "shape": shape, "data": data}]}
    answer = server.post(f"/v2/models/{model}/infer", body)
    assert answer.status == 200, answer.body
    return answer.json["outputs"][0]["data"]


def test_models_share_the_code_of_their_backend(server):
    assert ask(server, "double", "X", [2, 1], [1, 32]) == [2, 64]
    assert ask(server, "offset", "X", [2, 1], [1, 32]) == [11, 42]


def test_configuration_is_completed_by_the_backend(server):
    config = server.get("/v2/models/double/config").json
    assert (config["backend"], config["runtime"], config["max_batch_size"]) == ("linear", "model.py", 8)
    assert [tensor["name"] for tensor in (*config["input"], *config["output"])] == ["X", "Y"]


def test_code_sees_the_directories_of_its_model(server):
    models = server.log.parent / "models"
    assert ask(server, "inspected", "IN", [1], [0]) == [
        "model",
        "beside",
        str(models / "inspected" / "7"),
        str(models / "inspected"),
        "7",
        "inspecting",
        # Triton: the directory of the backend is on the path, not the directory of the model.
        "False",
    ]


def test_a_backend_that_is_not_there_is_named(server):
    index = server.post("/v2/repository/index").json
    (reason,) = [entry["reason"] for entry in index if entry["name"] == "missing"]
    assert "unable to find Python backend based backend library 'model.py' for model 'missing', searched: " in reason


def test_a_directory_that_is_not_there_is_logged(tmp_path):
    write_model(tmp_path / "models", "m", 'backend: "identity"\n', {"1/anything": ""})
    flags = (
        f"--model-repository={tmp_path / 'models'}",
        "--backend-directory=/not/there",
        "--exit-on-error=false",
        "--strict-readiness=false",
    )
    with serving(tmp_path / "log", *flags) as running:
        running.wait_log("--backend-directory=/not/there is not a directory")
