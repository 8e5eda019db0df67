"""OpenVINO models made from a few operators."""

from pathlib import Path
from typing import Any

import numpy as np
import openvino
from openvino import opset15 as ops

from support.digits_classifier import digits_classifier


def named(node: Any, name: str) -> Any:
    """Return the output of a node, with a name."""
    output = node.output(0)
    output.get_tensor().set_names({name})
    return output


def parameter(name: str, shape: list[int], datatype: Any = np.float32) -> Any:
    """Return an input; -1 is a free dimension."""
    node = ops.parameter(shape, datatype, name=name)
    named(node, name)
    return node


def digits_model(rows: int = -1) -> Any:
    """Return the classifier of digits: IMAGE [rows, 64] to PROBABILITIES [rows, 10]."""
    weights = digits_classifier()
    image = parameter("IMAGE", [rows, 64])
    hidden = ops.relu(ops.add(ops.matmul(image, weights.hidden_weights, False, False), weights.hidden_bias))
    scores = ops.add(ops.matmul(hidden, weights.weights, False, False), weights.bias)
    return openvino.Model([named(ops.softmax(scores, 1), "PROBABILITIES")], [image], "digits")


def save(model: Any, repository: Path, name: str, config: str | None = None) -> Path:
    """Write a model as IR with full precision, and return its directory."""
    directory = repository / name
    (directory / "1").mkdir(parents=True)
    openvino.save_model(model, directory / "1" / "model.xml", compress_to_fp16=False)
    if config is not None:
        (directory / "config.pbtxt").write_text(f'name: "{name}"\n{config}')
    return directory
