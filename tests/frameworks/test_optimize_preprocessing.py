"""`naiad optimize --preprocessing`: from a graph on tensors to a package that takes pictures or text."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import naiad
from naiad.tools.optimize.choices import Options
from support.commands import command_here
from support.conversions_here import conversions_here

FLAGS = ("--seconds", "0.1", "--tuning-seconds", "0", "--finalists", "1", "--sensitivity-steps", "0", "--quiet")
STEPS = [
    {"step": "decode"},
    {"step": "resize", "height": 16, "width": 16},
    {"step": "crop", "height": 16, "width": 16},
    {"step": "scale"},
    {"step": "channels-first"},
]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "naiad"]


def write(path, nodes, kind, shape, size):
    tensors = [
        helper.make_tensor_value_info("x", kind, shape),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", size]),
    ]
    weights = np.random.default_rng(0).standard_normal((3 * 16 * 16, size)).astype(np.float32) * 0.05
    arrays = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.array([1]), "axis")]
    graph = helper.make_graph(nodes, "g", tensors[:1], tensors[1:], arrays)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preprocessing")
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["y"], name="dense"),
    ]
    write(folder / "pictures.onnx", nodes, TensorProto.FLOAT, ["N", 3, 16, 16], 8)
    (folder / "steps.json").write_text(json.dumps(STEPS))
    (folder / "photos").mkdir()
    random = np.random.default_rng(1)
    for index in range(6):
        pixels = random.integers(0, 255, (20 + index, 24, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"photos/{index}.png")
    return folder


@pytest.fixture(autouse=True)
def _(tmp_path, monkeypatch):
    """Convert in this process, and let the processes that serve find no PyTorch and no transformers.

    Where these are installed, onnxruntime_extensions imports both, for 5 s in each process.
    """
    for name in ("torch", "transformers"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is not for this process')")
    monkeypatch.syspath_prepend(tmp_path)
    with conversions_here():
        yield


def test_pictures_become_a_package(folder):
    source = ("optimize", "pictures.onnx", "--data", "photos", "--preprocessing", "steps.json", "--output", "best")
    name = "onnx-int8-minmax"
    done = command_here(*source, *FLAGS, "--candidates", name, "--accept", name, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((folder / "optimization/result.json").read_text())
    states = {each["candidate"]["name"]: (each["status"], each["reason"]) for each in found["outcomes"]}
    assert states == dict.fromkeys(("source", name), ("passed", "")), states
    assert 'op_library_filename: "onnxruntime_extensions"' in (folder / "best/config.pbtxt").read_text()
    verified = command_here("verify", "best", "--quick", folder=folder)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_text_in_python(tmp_path):
    nodes = [
        helper.make_node("Cast", ["x"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["numbers", "axis"], ["y"]),
    ]
    write(tmp_path / "text.onnx", nodes, TensorProto.INT64, ["N", "L"], 1)
    model = onnx.load(tmp_path / "text.onnx")
    for node in model.graph.node:
        node.input[0] = node.input[0].replace("x", "input_ids")
    model.graph.input[0].name = "input_ids"
    onnx.save(model, tmp_path / "text.onnx")
    result = naiad.optimize(
        tmp_path / "text.onnx",
        [np.array([text], object) for text in (b"hello world", b"naiad", b"world world world")],
        workspace=tmp_path / "work",
        options=Options(
            preprocessing=[{"step": "tokenize", "vocabulary": WORDS}],
            candidates=["onnx-simplified"], profile_s=0.1, tuning_s=0, finalists=1,
        ),
    )  # fmt: skip
    assert result.source.inputs[0].name == "text"
    assert [each.status.value for each in result.outcomes] == ["passed", "passed"], result.outcomes


def test_unknown_step_is_named(folder):
    (folder / "bad.json").write_text('[{"step": "turn"}]')
    flags = ("--data", "photos", "--preprocessing", "bad.json")
    done = command_here("optimize", "pictures.onnx", *flags, folder=folder)
    assert done.returncode == 2
    assert "step is 'turn'; write one of decode" in done.stderr
