"""Graphs with their pre-processing, as naiad serves them, against the same steps in Python."""

import io

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from tokenizers import BertWordPieceTokenizer

from naiad.tools.optimize.candidate import Candidate, Conversion, Precision, Status
from naiad.tools.optimize.converters.onnx.merge import CONFIG, merge_preprocessing
from naiad.tools.optimize.correctness.candidate_repository import write_repository
from naiad.tools.optimize.correctness.runners.served_runner import ServedRunner
from naiad.tools.optimize.optimize_source import Format

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "ser", "##ver", "!", "naiad"]
STEPS = [
    {"step": "decode"},
    {"step": "resize", "height": 48, "width": 48},
    {"step": "crop", "height": 32, "width": 32},
    {"step": "scale"},
    {"step": "channels-first"},
    {"step": "normalize", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]},
]


def write(path, nodes, inputs, shape, weights=(), opset=17):
    tensors = [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in inputs.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "g", tensors, outputs, list(weights))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


@pytest.fixture
def pictures(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    return write(
        tmp_path / "in.onnx", nodes, {"x": (TensorProto.FLOAT, ["N", 3, 32, 32])}, ["N", 3, 32, 32], opset=13
    )


def answer(tmp_path, config, **inputs):
    candidate = Candidate("merged", Format.ONNX, Precision.FP32, "onnxruntime")
    conversion = Conversion(candidate, Status.CONVERTED, tmp_path / "files")
    runner = ServedRunner(write_repository(conversion, tmp_path / "repository", config), "merged")
    try:
        assert runner.max_batch in (0, 1)
        return runner.infer(inputs)["y"]
    finally:
        runner.close()


def test_picture_steps_equal_pillow(pictures, tmp_path):
    picture = np.random.default_rng(0).integers(0, 255, (64, 80, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "png")
    config = merge_preprocessing(pictures, STEPS, tmp_path / "files")
    assert config == CONFIG
    found = answer(tmp_path, config, image=np.frombuffer(file.getvalue(), np.uint8))
    resized = np.asarray(Image.fromarray(picture).resize((60, 48), Image.Resampling.BILINEAR))[8:40, 14:46]
    expected = np.maximum((resized / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.3, 0.4], 0).transpose(2, 0, 1)
    np.testing.assert_allclose(found[0], expected, atol=0.021)  # one of 255 levels
    assert np.abs(found[0] - expected).mean() < 0.001


def test_colors_can_stay_in_opencv_order(pictures, tmp_path):
    file = io.BytesIO()
    Image.new("RGB", (32, 32), (200, 100, 50)).save(file, "png")
    steps = [{"step": "decode", "colors": "bgr"}, {"step": "scale", "factor": 1.0}, {"step": "channels-first"}]
    config = merge_preprocessing(pictures, steps, tmp_path / "files")
    found = answer(tmp_path, config, image=np.frombuffer(file.getvalue(), np.uint8))
    assert found[0, :, 5, 5].tolist() == [50, 100, 200]


def test_tokens_equal_tokenizers(tmp_path):
    inputs = {name: (TensorProto.INT64, ["N", "L"]) for name in ("input_ids", "attention_mask")}
    nodes = [
        helper.make_node("Add", inputs, ["sum"]),
        helper.make_node("Cast", ["sum"], ["y"], to=TensorProto.FLOAT),
    ]
    write(tmp_path / "in.onnx", nodes, inputs, ["N", "L"], [numpy_helper.from_array(np.array([1]), "one")])
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    steps = [{"step": "tokenize", "vocabulary": str(tmp_path / "vocab.txt")}]
    config = merge_preprocessing(tmp_path / "in.onnx", steps, tmp_path / "files")
    text = "Hello server, naiad WORLD!"
    found = answer(tmp_path, config, text=np.array([text.encode()], object))
    tokens = BertWordPieceTokenizer(str(tmp_path / "vocab.txt"), lowercase=True).encode(text)
    assert found[0].tolist() == [number + 1 for number in tokens.ids]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], "the first one is 'decode'"),
        ([{"step": "crop", "height": 1, "width": 1}], "the first one is 'decode'"),
        ([{"step": "turn"}], r"steps\[0\]: step is 'turn'; write one of decode, resize"),
        ([{"step": "decode", "size": 3}], r"steps\[0\]: 'decode' has no key 'size'; it has colors"),
        ([{"step": "decode", "colors": "cmyk"}], r"steps\[0\]: colors is 'cmyk'; write one of rgb, bgr"),
        ([{"step": "decode"}, {"step": "resize"}], r"steps\[1\]: 'resize' needs height and width"),
        ([{"step": "decode"}, {"step": "normalize", "mean": [1], "std": []}], "mean has 1 values, std 0"),
        ([{"step": "tokenize", "vocabulary": "v"}, {"step": "scale"}], r"steps\[1\]: 'scale' follows 'tokenize'"),
    ],
)
def test_bad_step_is_named(pictures, tmp_path, steps, message):
    with pytest.raises(ValueError, match=message):
        merge_preprocessing(pictures, steps, tmp_path / "files")
