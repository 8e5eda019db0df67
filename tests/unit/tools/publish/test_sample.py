"""Samples: their forms, datatypes, and how answers are compared."""

import json

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.model import ModelMetadata
from naiad.core.tensor import TensorSpec
from naiad.tools.publish import SampleError, TrialSample, read_sample
from naiad.tools.publish.sample import read_values

METADATA = ModelMetadata(
    "m",
    ["1"],
    "",
    [TensorSpec("x", DataType.FP16, (-1, 2)), TensorSpec("words", DataType.BYTES, (-1,))],
    [TensorSpec("y", DataType.FP32, (-1, 2))],
)
REQUEST = {
    "inputs": [
        {"name": "x", "shape": [1, 2], "datatype": "FP16", "data": [1, 2]},
        {"name": "words", "shape": [1], "datatype": "BYTES", "data": ["a"]},
    ]
}


def test_values_get_the_datatypes_of_the_model():
    tensors = TrialSample({"x": [[1, 2]], "words": ["a", b"b"]}).tensors(METADATA)
    assert tensors["x"].dtype == np.float16
    assert tensors["words"].tolist() == ["a", b"b"]


@pytest.mark.parametrize("document", [REQUEST, {"x": [[1, 2]], "words": ["a"]}])
def test_json_is_a_request_or_values(tmp_path, document):
    (tmp_path / "sample.json").write_text(json.dumps(document))
    tensors = read_sample(tmp_path / "sample.json").tensors(METADATA)
    assert tensors["x"].tolist() == [[1, 2]]
    assert tensors["words"].tolist() == ["a"]


def test_archives_of_arrays_are_read(tmp_path):
    np.savez(tmp_path / "sample.npz", x=np.ones((1, 2)))
    assert read_values(str(tmp_path / "sample.npz"))["x"].shape == (1, 2)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "cannot be read"),
        ("[1]", "is not an object with inputs"),
        ("{}", "is not an object with inputs"),
        ('{"inputs": [{"name": "x"}]}', "tensor 'x' of the sample .* has no 'data'"),
        ('{"inputs": [{"name": "x", "shape": [3], "data": [1]}]}', "has 1 values, which do not fit its shape"),
    ],
)
def test_wrong_file_is_explained(tmp_path, content, text):
    (tmp_path / "sample.json").write_text(content)
    with pytest.raises(SampleError, match=text):
        read_sample(tmp_path / "sample.json")


def test_missing_file_is_explained():
    with pytest.raises(SampleError, match=r"the sample /no/such.json cannot be read: .*; expected a .json or .npz"):
        read_sample("/no/such.json")


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ({"y": [[1.0, 2.1]]}, r"output 'y' differs from the expected values by up to 0\.1; the tolerance is 0\.0001"),
        ({"y": [[1.0]]}, r"output 'y' has shape \[1, 2\], expected \[1, 1\]"),
        ({"z": [1]}, "the answer has no output 'z', only y, n, t"),
        ({"n": [4]}, "output 'n' differs from the expected values by up to 1; the tolerance is 0"),
        ({"t": ["b"]}, "output 't' differs from the expected texts"),
    ],
)
def test_other_answer_is_named(expected, text):
    outputs = {"y": np.array([[1, 2]], np.float32), "n": np.array([3]), "t": np.array([b"a"], object)}
    with pytest.raises(SampleError, match=text):
        TrialSample({}, expected).check(outputs)


def test_equal_answer_is_accepted():
    outputs = {"y": np.array([[1, np.nan]], np.float32), "t": np.array([b"a"], object)}
    TrialSample({}, {"y": [[1.00001, np.nan]], "t": ["a"]}).check(outputs)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (np.zeros(2, np.float32), [1e-6, 2e-6]),
        (np.array([1e-30, 3e-30]), [1e-30, 2e-30]),
        (np.array([2**60 + 1]), [2**60]),
        (np.array([2**63 + 1], np.uint64), [2**63]),
        (np.array([b"\xff"], object), [b"\xfe"]),
        (np.array([[b"a", b"b"]], object), [["a"], ["b"]]),
    ],
    ids=["small", "very small", "large integers", "unsigned", "no UTF-8", "shape of texts"],
)
def test_other_answers_of_any_scale_are_refused(found, expected):
    with pytest.raises(SampleError):
        TrialSample({}, {"y": expected}).check({"y": found})


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (np.array([1e-6, 2.00001e-6]), [1e-6, 2e-6]),
        (np.array([1, 1e-5], np.float32), [1, 0]),
        (np.zeros(2, np.float32), [0, 0]),
        (np.array([1e30, np.inf, np.nan]), [1.00001e30, np.inf, np.nan]),
    ],
    ids=["small", "beside a large one", "zeros", "large"],
)
def test_rounded_answers_of_any_scale_are_accepted(found, expected):
    TrialSample({}, {"y": expected}).check({"y": found})


@pytest.mark.parametrize("value", [300, -1, 1.5, 2**70])
def test_inputs_are_not_cut_off(value):
    metadata = ModelMetadata("m", ["1"], "", [TensorSpec("x", DataType.UINT8, (1,))], [])
    with pytest.raises(SampleError, match="input 'x' of the sample"):
        TrialSample({"x": [value]}).tensors(metadata)


def test_inputs_beyond_the_datatype_are_refused():
    with pytest.raises(SampleError, match="has a value that FP16 does not have"):
        TrialSample({"x": [[1e6, 0]]}).tensors(METADATA)
    assert np.isinf(TrialSample({"x": [[np.inf, 0]]}).tensors(METADATA)["x"][0, 0])
