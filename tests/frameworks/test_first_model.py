"""From a trained model file to the first right answer: one command and one request with all 569 rows, as JSON."""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import joblib
import keras
import lightgbm
import numpy as np
import pytest
import skops.io
import tensorflow as tf
import torch
import xgboost
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from support.hugging_face_models import label_config, write_bert, write_tokenizer
from support.long_run import mostly_long
from support.server_process import ServerProcess, serving

ROWS, LABELS = load_breast_cancer(return_X_y=True)
SCALED = ((ROWS - ROWS.mean(0)) / ROWS.std(0)).astype(np.float32)
SHAPES = ("--input=x:FP32:-1,30", "--output=y:FP32:-1,2")


@dataclass
class Saved:
    """A model file, what its library answers to all rows, and the flags of its command."""

    path: Path
    expected: Any
    flags: Sequence[str] = ()
    rows: Any = field(default_factory=lambda: SCALED)
    output: str = ""
    """Of predictions that are objects."""


def of_sklearn(suffix: str, *flags: str) -> Callable[[Path], Saved]:
    def save(folder: Path) -> Saved:
        model = make_pipeline(StandardScaler(), LogisticRegression()).fit(ROWS, LABELS)
        path = folder / f"model.{suffix}"
        skops.io.dump(model, path) if suffix == "skops" else joblib.dump(model, path)
        return Saved(path, model.predict_proba(ROWS), flags, ROWS, "predict_proba")

    return save


def trusted(estimator: Any, *types: str) -> Callable[[Path], Saved]:
    """Trees in a skops file, which names types that the user has to trust."""

    def save(folder: Path) -> Saved:
        model = estimator.fit(ROWS, LABELS)
        skops.io.dump(model, folder / "model.skops")
        flags = [f"--trusted-types={each}" for each in types]
        return Saved(folder / "model.skops", model.predict_proba(ROWS), flags, ROWS, "predict_proba")

    return save


def of_xgboost(suffix: str) -> Callable[[Path], Saved]:
    def save(folder: Path) -> Saved:
        model = xgboost.XGBClassifier(n_estimators=10).fit(ROWS, LABELS)
        model.save_model(folder / f"model.{suffix}")
        return Saved(folder / f"model.{suffix}", model.predict_proba(ROWS)[:, 1], (), ROWS)

    return save


def of_lightgbm(folder: Path) -> Saved:
    model = lightgbm.LGBMClassifier(n_estimators=10, verbose=-1).fit(ROWS, LABELS)
    model.booster_.save_model(folder / "model.txt")
    return Saved(folder / "model.txt", model.predict_proba(ROWS)[:, 1], (), ROWS)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(30, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2), torch.nn.Softmax(-1)
    return torch.nn.Sequential(*layers).eval()


def of_torch(suffix: str, write: Callable[[torch.nn.Module, Path], object], *flags: str) -> Callable[[Path], Saved]:
    def save(folder: Path) -> Saved:
        model = network()
        write(model, folder / f"model.{suffix}")
        return Saved(folder / f"model.{suffix}", model(torch.from_numpy(SCALED)).detach().numpy(), flags)

    return save


def export(model: torch.nn.Module, path: Path) -> None:
    dynamic = ({0: torch.export.Dim("rows")},)
    torch.export.save(torch.export.export(model, (torch.from_numpy(SCALED[:4]),), dynamic_shapes=dynamic), path)


def trace(model: torch.nn.Module, path: Path) -> None:
    torch.jit.trace(model, torch.from_numpy(SCALED[:4])).save(str(path))


def to_onnx(model: torch.nn.Module, path: Path) -> None:
    dynamic = ({0: torch.export.Dim("rows")},)
    torch.onnx.export(model, (torch.from_numpy(SCALED[:4]),), path, dynamic_shapes=dynamic, verbose=False)


def of_keras(name: str, write: Callable[[keras.Model, Path], object]) -> Callable[[Path], Saved]:
    def save(folder: Path) -> Saved:
        keras.utils.set_random_seed(0)
        layers = keras.layers.Dense(16, "gelu"), keras.layers.Dense(1, "sigmoid")
        model = keras.Sequential([keras.Input((30,)), *layers])
        write(model, folder / name)
        return Saved(folder / name, model.predict(SCALED, verbose=0))

    return save


def to_lite(model: keras.Model, path: Path) -> None:
    path.write_bytes(tf.lite.TFLiteConverter.from_keras_model(model).convert())


def of_hugging_face(folder: Path) -> Saved:
    write_bert(folder / "model", "ForSequenceClassification", **label_config(("bad", "good")))
    write_tokenizer(folder / "model")
    return Saved(folder / "model", None, (), ["a good film"] * 569)


_TREE = "sklearn.tree._tree.Tree"
_PREDICTOR = "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor"
MODELS: Mapping[str, Callable[[Path], Saved]] = {
    "skops": of_sklearn("skops"),
    "joblib": of_sklearn("joblib", "--allow-pickle"),
    "pkl": of_sklearn("pkl", "--allow-pickle"),
    "skops forest": trusted(RandomForestClassifier(10), _TREE),
    "skops boosting": trusted(HistGradientBoostingClassifier(max_iter=5), _PREDICTOR),
    "XGBoost json": of_xgboost("json"),
    "XGBoost ubj": of_xgboost("ubj"),
    "LightGBM": of_lightgbm,
    "torch.export": of_torch("pt2", export),
    "TorchScript": of_torch("pt", trace, *SHAPES),
    "torch.save": of_torch("pth", torch.save, *SHAPES, "--backend-config=pytorch,allow-pickle=true"),
    "ONNX": of_torch("onnx", to_onnx),
    "Keras": of_keras("model.keras", lambda model, path: model.save(path)),
    "Keras h5": of_keras("model.h5", lambda model, path: model.save(path)),
    "SavedModel": of_keras("model", lambda model, path: model.export(path, verbose=False)),
    "TFLite": of_keras("model.tflite", to_lite),
    "Hugging Face": of_hugging_face,
}


def predictions(server: ServerProcess, rows: Any, folder: Path) -> list[Any]:
    """Send all rows as `curl -d @FILE` does."""
    body = folder / "rows.json"
    body.write_text(json.dumps(np.asarray(rows).tolist()))
    command = ["curl", "-sS", f"{server.http_url}/invocations", "-d", f"@{body}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert "predictions" in answer, answer
    return answer["predictions"]


ONLY_HERE = ("pkl", "skops forest", "skops boosting", "torch.save", "Keras h5")
"""The other kinds of files are in test_any_file.py, too, in one server that imports their frameworks once."""
FIRST = ("torch.export", "ONNX", *ONLY_HERE)
CASES = mostly_long([pytest.param(save, id=name) for name, save in MODELS.items()], lambda case: case.id in FIRST)


@pytest.mark.parametrize("save", CASES)
def test_one_command_and_one_request_give_answers(save: Callable[[Path], Saved], tmp_path: Path) -> None:
    saved = save(tmp_path)
    with serving(tmp_path / "log", str(saved.path), *saved.flags) as server:
        found = predictions(server, saved.rows, tmp_path)
    assert len(found) == 569
    if saved.expected is None:
        assert {row["label"] for row in found} <= {"bad", "good"}
        return
    values = np.array([row[saved.output] if saved.output else row for row in found])
    np.testing.assert_allclose(values.reshape(569, -1), np.reshape(saved.expected, (569, -1)), atol=2e-5)


@pytest.mark.parametrize(
    ("save", "fix"),
    [
        (of_torch("pt", trace), "--input input:FP32:-1,30 --output OUTPUT__0:FP32:-1,2"),
        (of_torch("pth", torch.save), "--backend-config=pytorch,allow-pickle=true"),
        (trusted(RandomForestClassifier(10)), f"--trusted-types {_TREE}"),
        (of_sklearn("joblib"), "--allow-pickle"),
    ],
    ids=["TorchScript", "torch.save", "skops", "joblib"],
)
def test_refusal_says_which_flag_is_missing(save: Callable[[Path], Saved], fix: str, tmp_path: Path) -> None:
    running = ServerProcess(tmp_path / "log", str(save(tmp_path).path))
    assert running.wait_exit() == 1
    assert fix in " ".join(running.log_text().split())


def test_model_of_one_row_says_what_to_change(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(network(), (torch.from_numpy(SCALED[:1]),)), path)
    with serving(tmp_path / "log", str(path)) as server:
        answer = server.post("/invocations", SCALED.tolist())
        assert answer.status == 400
        assert "export the model with a first dimension of any size" in answer.json["error"]
        assert len(server.post("/invocations", SCALED[:1].tolist()).json["predictions"]) == 1
