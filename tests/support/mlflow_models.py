"""MLflow model directories for tests, made of scikit-learn's iris."""

import sys
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas
from mlflow.models import infer_signature
from mlflow.types import ColSpec, DataType, Schema, TensorSpec
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

TABLE, CLASSES = load_iris(return_X_y=True, as_frame=True)
ESTIMATOR = LogisticRegression(max_iter=500).fit(TABLE, CLASSES)


def save_sklearn(directory: Path, serialization_format: str, **settings: Any) -> None:
    import mlflow.sklearn

    settings = {"signature": infer_signature(TABLE, ESTIMATOR.predict(TABLE))} | settings
    mlflow.sklearn.save_model(
        ESTIMATOR, directory, serialization_format=serialization_format, pip_requirements=["scikit-learn"], **settings
    )


def save_xgboost(directory: Path) -> Any:
    import mlflow.xgboost
    import xgboost

    parameters = {"objective": "multi:softprob", "num_class": 3, "nthread": 1}
    booster = xgboost.train(parameters, xgboost.DMatrix(TABLE, CLASSES), 5)
    signature = infer_signature(TABLE, np.zeros((150, 3), np.float32))
    mlflow.xgboost.save_model(booster, directory, signature=signature, pip_requirements=["xgboost"])
    return booster


def save_onnx(directory: Path) -> None:
    """Write `scores = image + image`, of which inputs and outputs are tensors."""
    import mlflow.onnx
    from onnx import TensorProto, helper

    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("image", "scores")]
    graph = helper.make_graph(
        [helper.make_node("Add", ["image", "image"], ["scores"])], "g", tensors[:1], tensors[1:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    specs = [Schema([TensorSpec(np.dtype("float32"), (-1, 4), name)]) for name in ("image", "scores")]
    signature = mlflow.models.ModelSignature(*specs)
    mlflow.onnx.save_model(model, directory, signature=signature, pip_requirements=["onnx"])


class Greeting(mlflow.pyfunc.PythonModel):
    """Text, a flag and a date to text and the year."""

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        model_input = model_input.assign(excited=model_input.get("excited", False))
        texts = [
            f"Hello {name}{'!' if flag else ''}"
            for name, flag in zip(model_input.name, model_input.excited, strict=True)
        ]
        return pandas.DataFrame({"greeting": texts, "year": model_input.when.dt.year.astype("int64")})


def save_python(directory: Path) -> None:
    import cloudpickle
    import mlflow.pyfunc

    # The server cannot import this module.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    inputs = Schema(
        [
            ColSpec(DataType.string, "name"),
            ColSpec(DataType.boolean, "excited", required=False),
            ColSpec(DataType.datetime, "when"),
        ]
    )
    outputs = Schema([ColSpec(DataType.string, "greeting"), ColSpec(DataType.long, "year")])
    signature = mlflow.models.ModelSignature(inputs, outputs)
    mlflow.pyfunc.save_model(directory, python_model=Greeting(), signature=signature, pip_requirements=["mlflow"])
