"""Networks of layers in ONNX, one of which does not survive lower precision."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.optimize.correctness.gate import judge
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.model_runner import CallableRunner
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.optimize.samples.sample_reader import ArraySamples

SIZE = 16
INPUTS = (TensorSpec("x", DataType.FP32, (-1, SIZE)),)
SAMPLES = ArraySamples({"x": np.random.default_rng(1).normal(size=(24, SIZE)).astype(np.float32)}, INPUTS)


def outlier_network(
    file: Path, layers: int = 6, culprit: int = 3, feature: float = 1e-7, outlier: float = 2e4
) -> Source:
    """Write a chain of matrix products; weights of one of them are far greater than its others.

    Their input is a small feature. At 1e-7 it does not matter in FP32, but the other weights are 0 in int8. At 1e-3
    it matters. Weights of 2e5 are too large for FP16.
    """
    random = np.random.default_rng(0)
    arrays = [np.linalg.qr(random.normal(size=(SIZE, SIZE)))[0].astype(np.float32) for _ in range(layers)]
    arrays[culprit - 1][:, 0] *= feature
    arrays[culprit][0, :] = outlier
    nodes = [
        helper.make_node("MatMul", [f"t{layer}" if layer else "x", f"w{layer}"], [f"t{layer + 1}"], f"layer{layer}")
        for layer in range(layers)
    ]
    nodes[-1].output[0] = "y"
    weights = [numpy_helper.from_array(array, f"w{layer}") for layer, array in enumerate(arrays)]
    return write_network(file, nodes, weights)


def write_network(file: Path, nodes: list[Any], weights: list[Any]) -> Source:
    """Write a graph from x to y, both [n, SIZE]."""
    tensors = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", SIZE])] for name in "xy")
    graph = helper.make_graph(nodes, "g", *tensors, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
    return Source("network", Format.ONNX, file, INPUTS)


def onnx_runner(file: Path) -> CallableRunner:
    """Return a file in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # As in packages: sums of int8 products overflow on processors without VNNI instructions.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return CallableRunner(lambda inputs: dict(zip(["y"], session.run(["y"], dict(inputs)), strict=True)))


def judge_onnx(source: Source, conversion: Any) -> Any:
    """Return the verdict on a converted ONNX file."""
    found = onnx_runner(conversion.folder / "model.onnx")
    return judge(onnx_runner(source.path), found, SAMPLES, conversion.candidate, Settings())
