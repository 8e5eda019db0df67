"""Model files served without a repository: scikit-learn exports, several files, folders, batches."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from support import onnx_models
from support.model_repository import write_model
from support.model_zoo import python_source
from support.raw_http1 import HttpAnswer
from support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]


def infer_rows(running: ServerProcess, model: str, rows: list[list[float]], **more: object) -> dict[str, dict]:
    """Send rows as input X over REST; return the outputs by name."""
    tensor = {"name": "X", "datatype": "FP32", "shape": [len(rows), len(rows[0])], "data": rows}
    answer = running.post(f"/v2/models/{model}/infer", {"inputs": [tensor], **more})
    assert answer.status == 200, answer.body
    return {output["name"]: output for output in answer.json["outputs"]}


@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_export_is_served(start_server: StartServer, tmp_path: Path) -> None:
    from skl2onnx import to_onnx
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features, numbers = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])
    fitted = make_pipeline(StandardScaler(), LogisticRegression()).fit(features, names[numbers])
    features = features.astype(np.float32)
    (tmp_path / "iris.onnx").write_bytes(to_onnx(fitted, features[:1]).SerializeToString())
    running = start_server(None, str(tmp_path / "iris.onnx"))
    running.wait_ready()
    metadata = running.get("/v2/models/iris").json
    assert metadata["outputs"][1] == {"name": "output_probability", "datatype": "FP32", "shape": [-1, 3]}
    for rows in (features[:1], features[::10]):
        outputs = infer_rows(running, "iris", rows.tolist())
        assert outputs["output_label"]["data"] == fitted.predict(rows).tolist()
        probabilities = np.array(outputs["output_probability"]["data"]).reshape(-1, 3)
        assert np.allclose(probabilities, fitted.predict_proba(rows), atol=1e-5)
    wanted = [{"name": "output_probability", "parameters": {"classification": 1}}]
    outputs = infer_rows(running, "iris", features[:1].tolist(), outputs=wanted)
    assert outputs["output_probability"]["data"][0].endswith(":0:setosa")


def write_identity(path: Path) -> Path:
    path.write_bytes(onnx_models.identity())
    return path


def too_large(running: ServerProcess, model: str, rows: int) -> str:
    """Send more rows than the model takes; return the error."""
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [rows, 4], "data": [0.0] * (rows * 4)}
    answer = running.post(f"/v2/models/{model}/infer", {"inputs": [tensor]})
    assert answer.status == 400
    return answer.json["error"]


BARE = "the limit comes from --max-batch-size, which bare model files have: start naiad serve with a larger one"
DEFAULT = "the limit comes from the default of models without max_batch_size: write max_batch_size: N in config.pbtxt"
CONFIGURED = "the limit comes from max_batch_size in config.pbtxt: raise it there, or send smaller batches"


def answer_of_rows(running: ServerProcess, rows: int) -> HttpAnswer:
    data = [float(number) for number in range(rows * 4)]
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [rows, 4], "data": data}
    answer = running.post("/v2/models/m/infer", {"inputs": [tensor]})
    assert answer.status == 200, answer.json
    assert answer.json["outputs"][0]["data"] == data
    return answer


@pytest.mark.parametrize(("flags", "size", "parts"), [((), 32, 18), (("--max-batch-size=100",), 100, 6)])
def test_bare_file_executes_large_requests_in_parts(
    start_server: StartServer, tmp_path: Path, flags: Sequence[str], size: int, parts: int
) -> None:
    running = start_server(None, str(write_identity(tmp_path / "m.onnx")), *flags)
    running.wait_ready()
    assert running.get("/v2/models/m/config").json["max_batch_size"] == size
    answer = answer_of_rows(running, 569)
    assert answer.json["outputs"][0]["shape"] == [569, 4]
    statistics = running.get("/v2/models/m/stats").json["model_stats"][0]
    assert statistics["inference_count"] == 569
    assert max(int(each["batch_size"]) for each in statistics["batch_stats"]) <= size
    assert statistics["execution_count"] >= parts
    answer_of_rows(running, size + 1)
    answer_of_rows(running, 20_000)  # more parts than are open at once


def test_large_request_of_a_wrong_shape_is_refused(start_server: StartServer, tmp_path: Path) -> None:
    running = start_server(None, str(write_identity(tmp_path / "m.onnx")))
    running.wait_ready()
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [40, 3], "data": [0.0] * 120}
    answer = running.post("/v2/models/m/infer", {"inputs": [tensor]})
    assert answer.status == 400
    assert "Expected [-1,4], got [40,3]" in answer.json["error"]
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [(1 << 20) + 1, 4], "data": []}
    answer = running.post("/v2/models/m/infer", {"inputs": [tensor]})
    assert answer.status == 400


def test_setting_of_the_backend_has_priority(start_server: StartServer, tmp_path: Path) -> None:
    setting = "--backend-config=onnxruntime,default-max-batch-size"
    running = start_server(None, str(write_identity(tmp_path / "m.onnx")), f"{setting}=2")
    running.wait_ready()
    assert f"must be <= 2 for 'm', got 3; the limit comes from {setting}: start with a larger one" in too_large(
        running, "m", 3
    )


def test_models_of_a_repository_keep_their_sizes(start_server: StartServer, tmp_path: Path) -> None:
    model = {"1/model.onnx": onnx_models.identity()}
    write_model(tmp_path / "models", "plain", None, model)
    write_model(tmp_path / "models", "configured", "max_batch_size: 6\n", model)
    running = start_server(tmp_path / "models", "--max-batch-size=100")
    running.wait_ready()
    assert f"must be <= 4 for 'plain', got 5; {DEFAULT}" in too_large(running, "plain", 5)
    assert f"must be <= 6 for 'configured', got 7; {CONFIGURED}" in too_large(running, "configured", 7)


def names_of(running: ServerProcess) -> list[str]:
    running.wait_ready()
    return sorted(row["name"] for row in running.post("/v2/repository/index").json)


def test_folder_of_files_is_served(start_server: StartServer, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write_model(folder, "unused", None, {"notes/readme.md": "x"})
    (folder / "unused" / "1").rmdir()
    write_identity(folder / "a.onnx")
    write_identity(folder / "b.onnx")
    (folder / "c.py").write_text(python_source({"OUTPUT0": "INPUT0"}, inputs=["INPUT0"]))
    (folder / "tools.py").write_text("import os\n")
    (folder / "iris.joblib").write_bytes(b"x")
    running = start_server(None, str(folder))
    assert names_of(running) == ["a", "b", "c"]
    assert f"{folder}: not served: iris.joblib: it is a Python pickle" in running.log_text()


def test_several_files_are_served(start_server: StartServer, tmp_path: Path) -> None:
    paths = [str(write_identity(tmp_path / name)) for name in ("a.onnx", "b.onnx")]
    assert names_of(start_server(None, *paths)) == ["a", "b"]


@pytest.mark.parametrize("name", ["model.mlmodel"])
def test_other_formats_name_a_way_out(start_server: StartServer, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).write_bytes(b"content")
    for path in (folder / name, folder):
        running = start_server(None, str(path))
        assert running.wait_exit() == 1
        assert "load it in a model.py" in running.log_text()


def test_empty_repository_ends_the_start(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    running = start_server(tmp_path / "models")
    assert running.wait_exit() == 1
    assert f"there is no model in {tmp_path / 'models'}; a repository has a directory for each" in running.log_text()
    assert "Traceback" not in running.log_text()


@pytest.mark.parametrize(
    "flag", ["--model-control-mode=explicit", "--model-control-mode=poll", "--exit-on-error=false"]
)
def test_empty_repository_may_get_models(start_server: StartServer, tmp_path: Path, flag: str) -> None:
    (tmp_path / "models").mkdir()
    running = start_server(tmp_path / "models", flag)
    running.wait_ready()
    assert "there is no model in" in running.log_text()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty (0 bytes); copy or download it again"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "the file is a git-lfs pointer (43 bytes), not an ONNX model",
        ),
        (b"<!DOCTYPE html>", "the file is an HTML page (15 bytes), not an ONNX model"),
        (onnx_models.identity()[:-9], "is cut off: at least 3 bytes are missing"),
    ],
)
def test_damaged_file_is_explained(start_server: StartServer, tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    running = start_server(None, str(tmp_path / "m.onnx"))
    assert running.wait_exit() == 1
    assert re.search(
        rf"model 'm' version 1: {tmp_path}/m\.onnx cannot be loaded: .*{re.escape(words)}", running.log_text()
    )
    assert "Traceback" not in running.log_text()
