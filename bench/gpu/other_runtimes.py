"""TensorRT and ONNX Runtime for CUDA: written, never run, since no machine with these libraries was to be had."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.correctness import compare
from bench.gpu.room import NotRun, Room
from bench.gpu.serving import config, write_model
from naiad.core.tensor import Array

_TENSORS = ({"x": ("FP32", (16,))}, {"y": ("FP32", (16,))})


def measure(room: Room) -> None:
    """Serve y = relu(x W) and compare with numpy."""
    make = {"tensorrt": _write_engine, "onnxruntime": _write_onnx}[room.part]
    random = np.random.default_rng(10)
    weights, rows = random.standard_normal((16, 16), np.float32), random.standard_normal((4, 16), np.float32)
    repository = room.work / "models"
    with room.check(room.part):
        if not room.has_gpu:
            raise NotRun("no GPU")
        make(repository, weights)
        with room.serve(repository) as served:
            compare(room, served, room.part, {"x": rows}, np.maximum(rows @ weights, 0), 2e-3)


def _graph(weights: Array) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    given, taken = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 16]) for name in ("x", "y"))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "relu", [given], [taken], [numpy_helper.from_array(weights, "w")])
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )


def _write_onnx(repository: Path, weights: Array) -> None:
    providers = importlib.import_module("onnxruntime").get_available_providers()
    if "CUDAExecutionProvider" not in providers:
        raise NotRun(f"onnxruntime has {', '.join(providers)}; pip install onnxruntime-gpu")
    text = config("onnxruntime", "KIND_GPU", *_TENSORS, rows=8)
    write_model(repository, "onnxruntime", text, {"model.onnx": _graph(weights)})


def _write_engine(repository: Path, weights: Array) -> None:
    trt: Any = importlib.import_module("tensorrt")
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(_graph(weights)):
        raise RuntimeError(f"TensorRT cannot read the graph: {parser.get_error(0)}")
    settings = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, 16), (4, 16), (8, 16))
    settings.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, settings)
    if engine is None:
        raise RuntimeError("TensorRT built no engine")
    write_model(
        repository, "tensorrt", config("tensorrt", "KIND_GPU", *_TENSORS, rows=8), {"model.plan": bytes(engine)}
    )
