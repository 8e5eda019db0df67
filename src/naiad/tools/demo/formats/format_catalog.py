"""The formats of the demonstration: how each is written, what it needs, and what its model must answer."""

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from naiad.tools.demo.clients import Array
from naiad.tools.demo.demo_repository import new_model
from naiad.tools.demo.formats import writers
from naiad.tools.demo.formats.classifier import Digits

NETWORK, XGBOOST, LIGHTGBM = "network", "forest of XGBoost", "forest of LightGBM"
_CONFIG = 'backend: "{backend}"\nmax_batch_size: 32\ndynamic_batching {{}}\n{more}'


@dataclass(frozen=True, slots=True)
class DemoFormat:
    """One format."""

    name: str
    model: str
    """Name of the model in the repository."""
    filename: str
    backend: str
    packages: Sequence[str]
    """Modules that write and execute it; the first one's version is shown."""
    extra: str
    write: Callable[[Digits, Path], str]
    """Writes the file and returns what its config.pbtxt needs beside the usual."""
    kind: str = NETWORK

    @property
    def missing(self) -> str:
        """The command that installs what is missing, empty if nothing is."""
        is_missing = any(importlib.util.find_spec(package) is None for package in self.packages)
        return f"pip install 'naiad[{self.extra}]'" if is_missing else ""

    @property
    def version(self) -> str:
        """Name and version of the package that executes it."""
        names = importlib.metadata.packages_distributions().get(self.packages[0], [self.packages[0]])
        return f"{self.packages[0]} {importlib.metadata.version(names[0])}"


# PyTorch before TensorFlow: both load libraries of compilers, of which TensorFlow's must come second.
FORMATS: Sequence[DemoFormat] = (
    DemoFormat(
        "ONNX", "digits_onnx", "model.onnx", "onnxruntime", ("onnxruntime", "onnx"), "demo", writers.write_onnx
    ),
    DemoFormat("torch.export", "digits_export", "model.pt2", "pytorch", ("torch",), "torch", writers.write_exported),
    DemoFormat("TorchScript", "digits_script", "model.pt", "pytorch", ("torch",), "torch", writers.write_torchscript),
    DemoFormat(
        "OpenVINO IR", "digits_openvino", "model.xml", "openvino", ("openvino",), "openvino", writers.write_openvino
    ),
    DemoFormat(
        "SavedModel", "digits_saved", "model.savedmodel", "tensorflow", ("tensorflow",), "tensorflow",
        writers.write_saved_model,
    ),
    DemoFormat(
        "Keras", "digits_keras", "model.keras", "tensorflow", ("tensorflow",), "tensorflow", writers.write_keras
    ),
    DemoFormat(
        "TFLite", "digits_tflite", "model.tflite", "litert", ("ai_edge_litert", "tensorflow"), "litert,tensorflow",
        writers.write_tflite,
    ),
    DemoFormat("JAX", "digits_jax", "model.jaxexport", "jax", ("jax", "flatbuffers"), "jax", writers.write_jax),
    DemoFormat(
        "skops", "digits_skops", "model.skops", "sklearn", ("sklearn", "skops"), "sklearn", writers.write_skops
    ),
    DemoFormat(
        "joblib", "digits_joblib", "model.joblib", "sklearn", ("sklearn", "joblib"), "sklearn", writers.write_joblib
    ),
    DemoFormat(
        "XGBoost JSON", "forest_json", "xgboost.json", "trees", ("xgboost",), "trees", writers.write_xgboost, XGBOOST
    ),
    DemoFormat(
        "XGBoost UBJ", "forest_ubj", "xgboost.ubj", "trees", ("xgboost",), "trees", writers.write_xgboost, XGBOOST
    ),
    DemoFormat(
        "treelite", "forest_treelite", "checkpoint.tl", "trees", ("treelite", "xgboost"), "trees",
        writers.write_treelite, XGBOOST,
    ),
    DemoFormat(
        "LightGBM", "forest_lightgbm", "model.txt", "trees", ("lightgbm",), "trees", writers.write_lightgbm, LIGHTGBM
    ),
)  # fmt: skip
_ANSWERS: Mapping[str, Callable[[Digits], Array]] = {
    NETWORK: lambda digits: digits.probabilities(digits.pictures),
    XGBOOST: writers.xgboost_probabilities,
    LIGHTGBM: writers.lightgbm_probabilities,
}


def build(root: Path, digits: Digits) -> list[DemoFormat]:
    """Write the models of all installed formats below `root`, and return these formats."""
    root.mkdir(parents=True, exist_ok=True)
    installed = [each for each in FORMATS if not each.missing]
    for each in installed:
        directory = new_model(root, each.model, "")
        more = each.write(digits, directory / each.filename)
        config = _CONFIG.format(backend=each.backend, more=more)
        (root / each.model / "config.pbtxt").write_text(config, encoding="utf-8")
    return installed


def answers(digits: Digits, formats: Sequence[DemoFormat]) -> dict[str, Array]:
    """Return what each model must answer to all pictures, by model."""
    by_kind = {kind: _ANSWERS[kind](digits) for kind in {each.kind for each in formats}}
    return {each.model: by_kind[each.kind] for each in formats}
