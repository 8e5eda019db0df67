"""Writes the network, and forests of the same pictures, into the formats of frameworks, each imported when needed."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from naiad.tools.demo.clients import Array
from naiad.tools.demo.formats.classifier import Digits

TORCHSCRIPT_CONFIG = """\
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 64 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 10 ] } ]
"""
_OPTIMIZER = "sklearn.neural_network._stochastic_optimizers.AdamOptimizer"
"""The only type of the estimator that skops does not trust by itself."""
_ROWS = 32


def write_onnx(digits: Digits, path: Path) -> str:
    """Write an ONNX file."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, arrays, name = [], [], "image"
    for index, (weights, bias) in enumerate(digits.layers):
        arrays += [numpy_helper.from_array(weights, f"w{index}"), numpy_helper.from_array(bias, f"b{index}")]
        nodes.append(helper.make_node("Gemm", [name, f"w{index}", f"b{index}"], [f"sum{index}"]))
        is_last = index == len(digits.layers) - 1
        name = "probabilities" if is_last else f"layer{index}"
        nodes.append(helper.make_node("Softmax" if is_last else "Relu", [f"sum{index}"], [name]))
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", size])
        for name, size in (("image", 64), ("probabilities", 10))
    ]
    graph = helper.make_graph(nodes, "digits", tensors[:1], tensors[1:], arrays)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="naiad demo"), path)
    return ""


def _torch_module(digits: Digits) -> Any:
    import torch

    steps: list[Any] = []
    for weights, bias in digits.layers:
        linear = torch.nn.Linear(*weights.shape)
        linear.weight.data = torch.tensor(weights.T.copy())
        linear.bias.data = torch.tensor(bias)
        steps += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*steps[:-1], torch.nn.Softmax(1)).eval()


def write_torchscript(digits: Digits, path: Path) -> str:
    """Write a TorchScript archive."""
    import torch

    torch.jit.trace(_torch_module(digits), torch.tensor(digits.pictures[:2])).save(str(path))
    return TORCHSCRIPT_CONFIG


def write_exported(digits: Digits, path: Path) -> str:
    """Write an archive of torch.export."""
    import torch

    rows = torch.export.Dim("rows", min=1, max=_ROWS)
    sample = torch.tensor(digits.pictures[:2])
    torch.export.save(torch.export.export(_torch_module(digits), (sample,), dynamic_shapes=({0: rows},)), path)
    return ""


def write_openvino(digits: Digits, path: Path) -> str:
    """Write an IR in full precision, with its weights beside it."""
    import openvino
    from openvino import opset13 as ops

    image = ops.parameter([-1, 64], openvino.Type.f32, name="image")
    image.output(0).get_tensor().set_names({"image"})
    values = image
    for index, (weights, bias) in enumerate(digits.layers):
        values = ops.add(ops.matmul(values, weights, False, False), bias)
        values = ops.softmax(values, 1) if index == len(digits.layers) - 1 else ops.relu(values)
    values.output(0).get_tensor().set_names({"probabilities"})
    openvino.save_model(openvino.Model([values], [image], "digits"), path, compress_to_fp16=False)
    return ""


def _keras_model(digits: Digits) -> Any:
    import keras

    layers: list[Any] = [keras.layers.Input((64,), name="image")]
    for _, bias in digits.layers[:-1]:
        layers.append(keras.layers.Dense(len(bias), activation="relu"))
    model = keras.Sequential([*layers, keras.layers.Dense(10, activation="softmax", name="probabilities")])
    model.set_weights([array for layer in digits.layers for array in layer])
    return model


def write_saved_model(digits: Digits, path: Path) -> str:
    """Write the directory of a SavedModel."""
    _keras_model(digits).export(str(path), verbose=False)
    return ""


def write_keras(digits: Digits, path: Path) -> str:
    """Write a .keras file."""
    _keras_model(digits).save(path)
    return ""


def write_tflite(digits: Digits, path: Path) -> str:
    """Write a TFLite file."""
    import tensorflow

    def classify(image: Any) -> dict[str, Any]:
        values = image
        for weights, bias in digits.layers[:-1]:
            values = tensorflow.nn.relu(values @ weights + bias)
        weights, bias = digits.layers[-1]
        return {"probabilities": tensorflow.nn.softmax(values @ weights + bias)}

    module = tensorflow.Module()
    module.classify = tensorflow.function(
        classify, input_signature=[tensorflow.TensorSpec([None, 64], tensorflow.float32, name="image")]
    )
    function = module.classify.get_concrete_function()
    path.write_bytes(tensorflow.lite.TFLiteConverter.from_concrete_functions([function], module).convert())
    return ""


def write_jax(digits: Digits, path: Path) -> str:
    """Write a function that jax.export serialises."""
    import jax
    from jax import export

    def classify(image: Any) -> dict[str, Any]:
        values = image
        for weights, bias in digits.layers[:-1]:
            values = jax.nn.relu(values @ weights + bias)
        weights, bias = digits.layers[-1]
        return {"probabilities": jax.nn.softmax(values @ weights + bias)}

    image = jax.ShapeDtypeStruct(export.symbolic_shape("rows, 64"), "float32")
    path.write_bytes(export.export(jax.jit(classify))(image).serialize())
    return ""


def write_skops(digits: Digits, path: Path) -> str:
    """Write the estimator without a pickle."""
    import skops.io

    skops.io.dump(digits.estimator, path)
    return _parameter("method", "predict_proba") + _parameter("trusted_types", _OPTIMIZER)


def write_joblib(digits: Digits, path: Path) -> str:
    """Write a pickle of the estimator; its digest allows the server to load it."""
    import joblib

    joblib.dump(digits.estimator, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return _parameter("method", "predict_proba") + _parameter("sha256", digest)


def _parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


_ROUNDS = 20
_trained: dict[str, Any] = {}


def _xgboost(digits: Digits) -> Any:
    import xgboost

    if "xgboost" not in _trained:
        settings = {"objective": "multi:softprob", "num_class": 10, "max_depth": 4, "nthread": 1}
        data = xgboost.DMatrix(digits.trained_pictures, digits.trained_labels)
        _trained["xgboost"] = xgboost.train(settings, data, _ROUNDS)
    return _trained["xgboost"]


def _lightgbm(digits: Digits) -> Any:
    import lightgbm

    if "lightgbm" not in _trained:
        settings = {"objective": "multiclass", "num_class": 10, "num_threads": 1, "verbose": -1}
        data = lightgbm.Dataset(digits.trained_pictures, digits.trained_labels)
        _trained["lightgbm"] = lightgbm.train(settings, data, _ROUNDS)
    return _trained["lightgbm"]


def write_xgboost(digits: Digits, path: Path) -> str:
    """Write JSON or UBJSON, by the suffix."""
    _xgboost(digits).save_model(path)
    return ""


def write_treelite(digits: Digits, path: Path) -> str:
    """Write the forest of XGBoost as a treelite checkpoint."""
    import treelite

    treelite.frontend.from_xgboost(_xgboost(digits)).serialize(path)
    return ""


def write_lightgbm(digits: Digits, path: Path) -> str:
    """Write LightGBM's text."""
    _lightgbm(digits).save_model(path)
    return ""


def xgboost_probabilities(digits: Digits) -> Array:
    """Return what XGBoost itself answers, [n, 10]."""
    return np.asarray(_xgboost(digits).inplace_predict(digits.pictures))


def lightgbm_probabilities(digits: Digits) -> Array:
    """Return what LightGBM itself answers, [n, 10]."""
    return np.asarray(_lightgbm(digits).predict(digits.pictures, num_threads=1))
