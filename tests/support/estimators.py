"""Estimators of scikit-learn in files, and their backend without a server."""

from pathlib import Path
from typing import Any

import joblib
import numpy as np
from google.protobuf import text_format
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from naiad.backend.api import InstanceSpec, ModelContext
from naiad.backend.sklearn.backend import SklearnBackend, SklearnInstance, SklearnModel
from naiad.config.model_config_pb2 import ModelConfig

TEXTS = ["a fine day", "what a bad night", "a good fine night", "bad bad weather"]
MOODS = ["up", "down", "up", "down"]
TABLE = {
    "city": ["Oslo", "Rome", "Oslo", "Paris", "Rome", "Paris"],
    "age": [30.0, 41.0, 25.0, 60.0, 33.0, 52.0],
    "income": [10.0, 20.0, 15.0, 40.0, 30.0, 35.0],
}
BUYS = ["no", "yes", "no", "yes", "yes", "yes"]


def text_pipeline() -> Pipeline:
    """From text to a mood."""
    return make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, MOODS)


def _columns(text: Any, numbers: Any) -> Pipeline:
    encoder = OneHotEncoder(handle_unknown="ignore")
    first = ColumnTransformer([("text", encoder, text), ("numbers", StandardScaler(), numbers)])
    return make_pipeline(first, LogisticRegression())


def table_pipeline() -> Pipeline:
    """Trained on a DataFrame of `TABLE`."""
    import pandas

    return _columns(["city"], ["age", "income"]).fit(pandas.DataFrame(TABLE), BUYS)


def unnamed_table_pipeline() -> Pipeline:
    """Trained on an object array of `TABLE`."""
    return _columns([0], slice(1, 3)).fit(np.array(list(TABLE.values()), object).T, BUYS)


def context_of(directory: Path, config: str = "", **settings: str) -> ModelContext:
    """A model version whose file is in `directory`; pickles are allowed unless the settings say otherwise."""
    parsed = text_format.Parse(config, ModelConfig(name="model", backend="sklearn"))
    return ModelContext("model", 1, parsed, directory, directory, 2, {"allow-pickle": "true", **settings})


def load_estimator(directory: Path, config: str = "", estimator: Any = None, **settings: str) -> SklearnModel:
    """Write the estimator if there is one, complete the configuration, and load the model."""
    if estimator is not None:
        joblib.dump(estimator, directory / "model.joblib")
    backend = SklearnBackend()
    context = context_of(directory, config, **settings)
    completed = backend.auto_complete(context)
    full = ModelContext("model", 1, completed, directory, directory, 2, context.backend_config)
    model = backend.load(full)
    assert isinstance(model, SklearnModel)
    return model


def run(model: SklearnModel, inputs: dict[str, Any], *outputs: str) -> Any:
    """Run one instance on a batch; one output alone is returned by itself."""
    instance = model.create_instance(InstanceSpec("model_0_0", 0, "KIND_CPU"))
    assert isinstance(instance, SklearnInstance)
    found = instance.run(inputs, outputs)
    return found[0] if len(outputs) == 1 else found


def texts(values: "list[str]") -> "np.ndarray":
    """A BYTES tensor [n, 1]."""
    return np.array([[value.encode()] for value in values], object)
