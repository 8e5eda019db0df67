"""Sources from files: their format, their tensors, and errors that name file and fix."""

import pickle
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.optimize.samples.sample_reader import from_path
from naiad.tools.optimize.sources.observation import observe, parse_tensor, run_examples
from naiad.tools.optimize.sources.reading_child import read
from naiad.tools.optimize.sources.source_formats import detect
from naiad.tools.optimize.sources.source_opening import NamedSamples, open_source, source_digest
from naiad.tools.optimize.sources.tensor_reader import Reading
from naiad.tools.process.running import ProcessLimits

DATA = np.arange(12, dtype=np.float32).reshape(4, 3)


def write_identity(path, shape):
    tensors = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)] for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", *tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_onnx_file_has_its_own_tensors(tmp_path):
    source = open_source(write_identity(tmp_path / "my model.onnx", ["n", 3]))
    assert (source.name, source.format, source.has_batch) == ("my_model", Format.ONNX, True)
    assert source.inputs == (TensorSpec("x", DataType.FP32, (-1, 3)),)
    assert source.outputs == (TensorSpec("y", DataType.FP32, (-1, 3)),)


def read_onnx(path, inputs=(), outputs=(), has_batch=None, are_observed=False):
    """Read in this process: a subprocess takes a second."""
    return read(Reading(Format.ONNX, path, inputs, outputs, has_batch, are_observed=are_observed), [])


@pytest.mark.parametrize(("shape", "has_batch"), [((3,), True), ((1, 3), False)])
def test_samples_decide_over_one_fixed_row(tmp_path, shape, has_batch):
    seen = (TensorSpec("x", DataType.FP32, shape),)
    found = read_onnx(write_identity(tmp_path / "m.onnx", [1, 3]), seen, are_observed=True)
    assert found.has_batch is has_batch
    assert found.inputs == (TensorSpec("x", DataType.FP32, (1, 3)),)


def test_given_shape_narrows_the_file(tmp_path):
    path = write_identity(tmp_path / "m.onnx", ["n", "w"])
    assert read_onnx(path, (parse_tensor("x:FP32:-1,5"),)).inputs[0].shape == (-1, 5)
    with pytest.raises(ValueError, match=r"input 'x' is FP32 \[-1, -1\] in the model, but INT8 \[-1, 5\]"):
        read_onnx(path, (parse_tensor("x:INT8:-1,5"),))
    with pytest.raises(ValueError, match="output 'z' is not in the model, which has y"):
        read_onnx(path, outputs=(parse_tensor("z:FP32:-1,5"),))


def test_fixed_rows_are_no_batch(tmp_path):
    path = write_identity(tmp_path / "m.onnx", [2, 3])
    assert not read_onnx(path).has_batch
    with pytest.raises(ValueError, match="first dimension of its tensors is fixed"):
        read_onnx(path, has_batch=True)


def test_reading_ends_at_the_limit(tmp_path):
    path = write_identity(tmp_path / "m.onnx", [2, 3])
    with pytest.raises(ValueError, match=r"m\.onnx: the file cannot be read: not finished after 0\.01 s"):
        open_source(path, limits=ProcessLimits(0.01))


def test_pickle_is_refused_with_the_reason(tmp_path):
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match=r"model\.pkl: this is a pickle, .* executes the code .*--allow-pickle"):
        open_source(path)


def test_unknown_files_are_refused_with_fix(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    folder = tmp_path / "folder"
    folder.mkdir()
    half = tmp_path / "half.onnx"
    half.write_bytes(write_identity(tmp_path / "m.onnx", [2, 3]).read_bytes()[:40])
    expected = {
        text: "the format of the file is unknown; expected ONNX, TorchScript",
        folder: r"the folder has no saved_model\.pb; expected",
        half: "is cut off",
        tmp_path / "missing.onnx": "no such file or folder",
    }
    for path, message in expected.items():
        with pytest.raises(ValueError, match=f"{path.name}: .*{message}"):
            detect(path)


def test_openvino_needs_its_weights(tmp_path):
    (tmp_path / "m.xml").write_text('<?xml version="1.0"?><net name="m"></net>')
    with pytest.raises(ValueError, match=r"m\.bin, its weights, is not beside it"):
        detect(tmp_path / "m.xml")
    (tmp_path / "m.bin").touch()
    assert detect(tmp_path / "m.xml") is Format.OPENVINO


def test_digest_follows_content_and_tensors(tmp_path):
    for name, content in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.onnx").write_text(content)
    first, copy, other = (Source("m", Format.ONNX, tmp_path / name / "m.onnx") for name in "abc")
    assert source_digest(first) == source_digest(copy)
    narrowed = replace(first, inputs=(TensorSpec("x", DataType.FP32, (4, 3)),))
    assert len({source_digest(each) for each in (first, other, narrowed)}) == 3


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("x:FP32:-1,3", TensorSpec("x", DataType.FP32, (-1, 3))),
        ("serving:0:BYTES:-1", TensorSpec("serving:0", DataType.BYTES, (-1,))),
        ("scale:fp16:", TensorSpec("scale", DataType.FP16, ())),
    ],
)
def test_tensors_as_text(text, spec):
    assert parse_tensor(text) == spec


@pytest.mark.parametrize("text", ["x", "x:FP32", "x:FLOAT:1", "x:FP32:a", "x:FP32:0,2", "x:FP32:-2"])
def test_bad_texts_name_the_fix(text):
    with pytest.raises(ValueError, match=f"tensor '{text}': "):
        parse_tensor(text)


def test_samples_of_different_lengths_give_free_dimensions():
    seen = observe([{"x": np.zeros((length, 2), np.float32)} for length in (3, 5, 3)])
    assert seen.inputs == (TensorSpec("x", DataType.FP32, (-1, 2)),)
    assert [each["x"].shape for each in seen.examples] == [(3, 2), (5, 2)]
    outputs = run_examples(lambda inputs: {"y": inputs["x"].sum(-1)}, seen.examples, None)
    assert outputs.specs == (TensorSpec("y", DataType.FP32, (-1, -1)),)


@pytest.mark.parametrize(
    ("call", "rows", "shape"),
    [
        (lambda x: x * 2, -1, (-1, 3)),
        (lambda x: x.reshape(1, 3), 1, (1, 3)),
        (lambda x: x.sum(), None, ()),
    ],
)
def test_a_run_shows_the_batch_dimension(call, rows, shape):
    found = run_examples(lambda inputs: {"y": call(inputs["x"])}, [{"x": DATA[0]}], None)
    assert (found.rows, found.specs[0].shape) == (rows, shape)


def test_a_model_that_fails_is_an_error():
    with pytest.raises(ValueError, match="does not answer the samples; with rows of samples: ZeroDivisionError"):
        run_examples(lambda inputs: {"y": 1 / 0}, [{"x": DATA[0]}], None)


def test_failure_shows_its_last_line_and_the_sample():
    def call(inputs):
        raise RuntimeError(
            "failed\nTraceback of TorchScript:\n  File x\nRuntimeError: expected Long but found Float\n"
        )

    with pytest.raises(ValueError, match="does not answer") as error:
        run_examples(call, [{"x": np.zeros(3, np.int64)}], None)
    assert str(error.value) == (
        "the model does not answer the samples; with rows of samples: RuntimeError: expected Long but found Float; "
        "with one sample as a row: the same; without a batch dimension: the same; the first sample is 'x' int64 [3]"
    )


def test_arrays_without_names_get_them_later(tmp_path):
    np.save(tmp_path / "x.npy", DATA)
    samples = from_path(tmp_path / "x.npy", ())
    named = list(NamedSamples(samples, ["image"]))
    np.testing.assert_array_equal(named[2]["image"], DATA[2])
