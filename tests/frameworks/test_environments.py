"""Frameworks in environments of their own: two versions in one server, and an MLflow directory."""

import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import psutil
import pytest
import tritonclient.http as triton
from onnx import TensorProto, helper

from support.forests import parameters
from support.mlflow_models import ESTIMATOR, TABLE, save_sklearn
from support.server_process import ServerProcess

pytestmark = pytest.mark.long
"""pip installs large packages; tests/integration/test_environments.py has small ones."""
OLD = "1.20.1"
_PREPARE_S = 500.0
_REQUIREMENTS = parameters(EXECUTION_ENV_PATH="$$TRITON_MODEL_DIRECTORY/1/requirements.txt")


def write_doubler(directory: Path, config: str) -> Path:
    """Write an ONNX model that adds its input to itself, and return the version directory."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (directory / "1").mkdir(parents=True)
    onnx.save(model, directory / "1" / "model.onnx")
    (directory / "config.pbtxt").write_text(config)
    return directory / "1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    (write_doubler(root / "old", _REQUIREMENTS) / "requirements.txt").write_text(f"onnxruntime=={OLD}\n")
    write_doubler(root / "own", parameters(isolation="process"))
    save_sklearn((root / "iris" / "1"), "skops")
    (root / "iris" / "config.pbtxt").write_text(_REQUIREMENTS)
    packages = ("mlflow-skinny", "scikit-learn", "skops", "pandas")
    lines = [f"{name}=={version(name)}\n" for name in packages]
    (root / "iris" / "1" / "requirements.txt").write_text("".join(lines))
    environment = {"NAIAD_CACHE": str(tmp_path_factory.mktemp("cache")), "OMP_NUM_THREADS": "1"}
    flags = (f"--model-repository={root}", "--exit-on-error=false", "--strict-readiness=false")
    running = ServerProcess(tmp_path_factory.mktemp("log") / "log", *flags, environment=environment)
    try:
        running.wait_ready(_PREPARE_S)
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.http_url) as connected:
        yield connected


def mapped_libraries(server: ServerProcess, part: str) -> list[set[str]]:
    """Return the mapped files with this part of a path, of each worker that has some."""
    found = []
    for worker in psutil.Process(server.process.pid).children(recursive=True):
        paths = {os.path.realpath(each.path) for each in worker.memory_maps() if part in each.path}
        if paths:
            found.append(paths)
    return found


def test_two_versions_of_a_framework_serve(server: ServerProcess, client: triton.InferenceServerClient) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    for name in ("old", "own"):
        tensor = triton.InferInput("x", [2, 4], "FP32")
        tensor.set_data_from_numpy(x)
        np.testing.assert_array_equal(client.infer(name, [tensor]).as_numpy("y"), 2 * x, err_msg=server.log_text())
    assert onnxruntime.__version__ != OLD
    libraries = mapped_libraries(server, "onnxruntime_pybind11_state")
    assert len(libraries) == 2
    home = os.path.dirname(os.path.realpath(onnxruntime.__file__))
    own = [paths for paths in libraries if all(path.startswith(home) for path in paths)]
    (other,) = (paths for paths in libraries if paths not in own)
    (library,) = other
    installed = Path(library).parents[2]
    assert (installed / f"onnxruntime-{OLD}.dist-info").is_dir()


def test_mlflow_runs_in_its_own_environment(server: ServerProcess, client: triton.InferenceServerClient) -> None:
    tensors = []
    for name in TABLE:
        column = TABLE[name].to_numpy()[:, None].copy()
        tensors.append(triton.InferInput(name, list(column.shape), "FP64"))
        tensors[-1].set_data_from_numpy(column)
    found = client.infer("iris", tensors).as_numpy("predictions")
    assert found.reshape(-1).tolist() == ESTIMATOR.predict(TABLE).tolist()
    libraries = mapped_libraries(server, "/sklearn/")
    assert libraries, server.log_text()
    for paths in libraries:
        assert all("/environments/" in path for path in paths)
