"""Forests trained on the data of scikit-learn, and their backend without a server."""

from pathlib import Path

import numpy as np
import xgboost
from google.protobuf import text_format
from sklearn import datasets

from naiad.backend.api import InstanceSpec, ModelContext
from naiad.backend.trees.backend import TreesBackend, TreesInstance, TreesModel
from naiad.config.model_config_pb2 import ModelConfig

CANCER = datasets.load_breast_cancer()
DIGITS = datasets.load_digits()
DIABETES = datasets.load_diabetes()


def rows(data: "datasets.Bunch", count: int = 20) -> "np.ndarray":
    """The first rows of a data set as FP32, some values missing."""
    table = data.data[:count].astype(np.float32)
    table[::3, 2] = np.nan
    return table


def train_xgboost(data: "datasets.Bunch", **settings: object) -> "xgboost.Booster":
    """Five rounds on one thread."""
    options = {"nthread": 1, "max_depth": 4, **settings}
    matrix = xgboost.DMatrix(data.data.astype(np.float32), data.target)
    return xgboost.train(options, matrix, 5)


def context_of(directory: Path, config: str = "", **settings: str) -> ModelContext:
    """A model version whose file is in `directory`."""
    parsed = text_format.Parse(config, ModelConfig(name="forest", backend="trees"))
    return ModelContext("forest", 1, parsed, directory, directory, 2, settings)


def load_forest(directory: Path, config: str = "", **settings: str) -> TreesModel:
    """Complete the configuration and load the model."""
    backend = TreesBackend()
    context = context_of(directory, config, **settings)
    completed = backend.auto_complete(context)
    model = backend.load(ModelContext("forest", 1, completed, directory, directory, 2, settings))
    assert isinstance(model, TreesModel)
    return model


def predict(model: TreesModel, table: "np.ndarray", output: str = "output__0") -> "np.ndarray":
    """Run one instance on a batch."""
    instance = model.create_instance(InstanceSpec("forest_0_0", 0, "KIND_CPU"))
    assert isinstance(instance, TreesInstance)
    (result,) = instance.run({"input__0": table}, [output])
    return result


def parameters(**values: str) -> str:
    """The text of parameters in a configuration."""
    return "\n".join(f'parameters {{ key: "{key}" value {{ string_value: "{v}" }} }}' for key, v in values.items())
