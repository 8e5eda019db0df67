"""`naiad optimize` on a network of two layers, with short measurements."""

import subprocess
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from support.commands import RunningCommand

FLAGS = (
    "--seconds",
    "0.1",
    "--tuning-seconds",
    "0.5",
    "--sensitivity-steps",
    "0",
    "--finalists",
    "2",
    "--accept",
    "source",
)
"""On a machine that other tests use, no winner would be proven."""


def write_network(path: Path, scale: float = 1.0) -> None:
    """Write the network; `scale` changes its second layer, and so its answers."""
    random = np.random.default_rng(0)
    weights = [random.standard_normal(shape).astype(np.float32) * 0.1 for shape in ((64, 128), (128, 10))]
    weights[1] *= scale
    names = ["image", "first", "hidden", "logits"]
    nodes = [
        helper.make_node("MatMul", [names[0], "w0"], [names[1]], name="matmul0"),
        helper.make_node("Relu", [names[1]], [names[2]], name="relu"),
        helper.make_node("MatMul", [names[2], "w1"], [names[3]], name="matmul1"),
    ]
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in ((names[0], 64), (names[3], 10))
    ]
    arrays = [numpy_helper.from_array(array, f"w{index}") for index, array in enumerate(weights)]
    graph = helper.make_graph(nodes, "m", tensors[:1], tensors[1:], arrays)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)


def write_files(folder: Path) -> Path:
    """Write the network, samples, and labels that are too few."""
    write_network(folder / "digits.onnx")
    np.savez(folder / "samples.npz", image=np.random.default_rng(1).random((24, 64), np.float32))
    np.save(folder / "one_label.npy", np.zeros(1, np.int64))
    return folder


def start(folder: Path, *arguments: str) -> RunningCommand:
    """Start the command in the folder of the files."""
    return RunningCommand("optimize", "digits.onnx", "--data", "samples.npz", *arguments, folder=folder)


def optimize(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command to its end."""
    return start(folder, *arguments).end()
