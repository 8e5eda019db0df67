"""Builds the OCR pipeline: PP-OCR's three networks, four Python models, and their ensemble."""

import shutil
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from naiad.demo.packages import PP_OCR, fetch
from naiad.demo.repository import copy_model, new_model, write_characters

_DETECT = """# PP-OCR v4: a page to the probability of text at every pixel.
backend: "onnxruntime"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 3, -1, -1 ] } ]
output [ { name: "sigmoid_0.tmp_0" data_type: TYPE_FP32 dims: [ -1, 1, -1, -1 ] } ]
"""
_DIRECTION = """# PP-OCR v2: which way up are these lines? Two probabilities each: upright, upside down.
backend: "onnxruntime"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 3, 48, 192 ] } ]
output [ { name: "save_infer_model/scale_0.tmp_1" data_type: TYPE_FP32 dims: [ -1, 2 ] } ]
"""
_READ = """# PP-OCR v4: lines of text to the best of 6625 characters at every eighth column.
backend: "onnxruntime"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 3, 48, -1 ] } ]
output [
  { name: "classes" data_type: TYPE_INT64 dims: [ -1, -1 ] },
  { name: "scores" data_type: TYPE_FP32 dims: [ -1, -1 ] }
]
"""


def build(root: Path) -> Path:
    """Write the models below `root` and return it. Models with the same names are replaced."""
    root.mkdir(parents=True, exist_ok=True)
    read, detect, direction = fetch(PP_OCR).values()
    shutil.copy(detect, new_model(root, "ocr_detect", _DETECT) / "model.onnx")
    shutil.copy(direction, new_model(root, "ocr_direction", _DIRECTION) / "model.onnx")
    (new_model(root, "ocr_read", _READ) / "model.onnx").write_bytes(best_only(read))
    for name in ("ocr", "ocr_page", "ocr_lines", "ocr_upright"):
        copy_model(root, name)
    write_characters(read, copy_model(root, "ocr_text").parent / "labels.txt")
    return root


def best_only(source: Path) -> bytes:
    """Return the reading network with only the best class and its score as outputs, serialised.

    Its own output has 6625 numbers for every eighth column: 2.6 MB for a line, of which 1.2 kB are needed.
    """
    model = onnx.load(source)
    graph = model.graph
    (probabilities,) = [output.name for output in graph.output]
    graph.node.append(helper.make_node("ArgMax", [probabilities], ["classes"], axis=2, keepdims=0))
    graph.node.append(helper.make_node("ReduceMax", [probabilities], ["scores"], axes=[2], keepdims=0))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("classes", TensorProto.INT64, ["lines", "columns"]))
    graph.output.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["lines", "columns"]))
    return bytes(model.SerializeToString())
