"""`examples/recommender`: one server with both stages and two servers answer what ONNX Runtime alone does."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from support.server_process import ServerProcess, serving

EXAMPLE = Path(__file__).parents[2] / "examples" / "recommender" / "make_models.py"
USERS, ITEMS = [[7], [123_456]], [list(range(32)), list(range(50_000, 50_032))]


def write_repositories(folder: Path, back: str) -> None:
    found = importlib.util.spec_from_file_location("make_models", EXAMPLE)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    module.write_repositories(folder, back)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recommender")
    write_repositories(folder, "grpc://127.0.0.1:1")
    return folder


@pytest.fixture(scope="module")
def one(folder: Path) -> Iterator[ServerProcess]:
    with serving(folder / "one.log", f"--model-repository={folder / 'one'}") as running:
        yield running


def recommend(running: ServerProcess) -> np.ndarray:
    inputs = [
        {"name": "USER", "datatype": "INT64", "shape": [2, 1], "data": USERS},
        {"name": "ITEMS", "datatype": "INT64", "shape": [2, 32], "data": ITEMS},
    ]
    answer = running.post("/v2/models/recommend/infer", {"inputs": inputs})
    assert answer.status == 200, answer.body
    output = answer.json["outputs"][0]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def expected(folder: Path) -> np.ndarray:
    first, second = (
        onnxruntime.InferenceSession(folder / "one" / name / "1" / "model.onnx") for name in ("features", "ranker")
    )
    rows = first.run(None, {"USER": np.array(USERS), "ITEMS": np.array(ITEMS)})[0]
    return second.run(None, {"ROWS": rows})[0]


def test_one_server_and_two_answer_alike(folder: Path, one: ServerProcess) -> None:
    wanted = expected(folder)
    assert np.unique(wanted).size > 60, "the scores differ"
    np.testing.assert_allclose(recommend(one), wanted, rtol=1e-5)
    write_repositories(folder, f"grpc://{one.grpc_url}")
    with serving(folder / "front.log", f"--model-repository={folder / 'front'}") as front:
        np.testing.assert_allclose(recommend(front), wanted, rtol=1e-5)
        assert front.get("/v2/models/ranker/config").json["backend"] == "remote"


def test_the_models_are_the_same_each_time(folder: Path, tmp_path: Path) -> None:
    write_repositories(tmp_path, "grpc://127.0.0.1:1")
    for name in ("features", "ranker"):
        file = f"one/{name}/1/model.onnx"
        assert (tmp_path / file).read_bytes() == (folder / file).read_bytes()
    config = (tmp_path / "front" / "ranker" / "config.pbtxt").read_text()
    assert json.dumps("grpc://127.0.0.1:1") in config
