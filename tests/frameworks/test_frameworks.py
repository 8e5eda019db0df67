"""The environment of these tests has the frameworks that the extras name, in versions that work together."""

import importlib

import pytest

MODULES = (
    "torch", "tensorflow", "keras", "openvino", "ai_edge_litert.interpreter", "xgboost", "lightgbm", "treelite",
    "sklearn", "skops", "jax", "onnxruntime", "transformers", "mlflow",
)  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
def test_framework_is_installed(module):
    assert importlib.util.find_spec(module) is not None
