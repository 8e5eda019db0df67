"""The estimate of each node's error in lower precision."""

import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from naiad.tools.optimize.converters.conversion_job import ConversionJob, JobTensor
from naiad.tools.optimize.converters.onnx import node_errors
from naiad.tools.optimize.samples.chunks import write_chunks
from support.sensitive_networks import SAMPLES, SIZE, outlier_network, write_network


def errors(file, tmp_path, precision):
    write_chunks(SAMPLES, tmp_path / "samples", 24)
    tensors = (JobTensor("x", "FP32", (-1, SIZE)),)
    job = ConversionJob(
        "onnx", str(file), "onnx", precision, {}, tensors, (), True, {}, str(tmp_path / "samples"), str(tmp_path)
    )
    node_errors.write(job, onnx.load(file))
    found = json.loads((tmp_path / "nodes.json").read_text())
    return {each["name"]: each["error"] for each in found}


@pytest.mark.parametrize("precision", ["int8", "int8_dynamic"])
def test_outlier_weight_has_the_greatest_error(tmp_path, precision):
    outlier_network(tmp_path / "network.onnx")
    found = errors(tmp_path / "network.onnx", tmp_path, precision)
    assert list(found) == [f"layer{layer}" for layer in range(6)]
    assert max(found, key=found.get) == "layer3"
    assert found["layer3"] > 0.9
    assert max(error for name, error in found.items() if name != "layer3") < 0.05


def test_only_products_of_a_graph_without_convolutions(tmp_path):
    steps = [("Relu", ["x"], ["a"]), ("MatMul", ["a", "large"], ["b"]), ("Mul", ["b", "a"], ["y"])]
    nodes = [helper.make_node(*step, name=step[0]) for step in steps]
    weights = [numpy_helper.from_array(np.eye(SIZE, dtype=np.float32) * 100, "large")]
    write_network(tmp_path / "network.onnx", nodes, weights)
    found = errors(tmp_path / "network.onnx", tmp_path, "int8")
    assert list(found) == ["MatMul"]
    assert 0 < found["MatMul"] < 0.02


@pytest.mark.parametrize("precision", ["fp16", "mixed"])
def test_weight_above_half_precision_has_the_greatest_error(tmp_path, precision):
    outlier_network(tmp_path / "network.onnx", feature=1e-3, outlier=2e5)
    found = errors(tmp_path / "network.onnx", tmp_path, precision)
    assert max(found, key=found.get) == "layer3"
    assert max(error for name, error in found.items() if name != "layer3") < 0.005


@pytest.mark.parametrize("precision", ["fp16", "int8_dynamic"])
def test_constant_without_axes_is_rounded(tmp_path, precision):
    nodes = [
        helper.make_node("Mul", ["x", "third"], ["a"], "scale"),
        helper.make_node("MatMul", ["a", "w"], ["y"], "product"),
    ]
    weights = {"third": np.array(1 / 3, np.float32), "w": np.eye(SIZE, dtype=np.float32) / 3}
    write_network(
        tmp_path / "network.onnx", nodes, [numpy_helper.from_array(array, name) for name, array in weights.items()]
    )
    found = errors(tmp_path / "network.onnx", tmp_path, precision)
    assert 0 < found["product"] < 0.02
    assert ("scale" in found) == (precision == "fp16")
