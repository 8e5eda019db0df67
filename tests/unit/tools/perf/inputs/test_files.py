"""Samples of numpy files, directories and pictures."""

import io

import ml_dtypes
import numpy as np
import pytest
from PIL import Image

from naiad.core.datatype import DataType
from naiad.tools.perf.inputs.data_files import read_directory, read_image, read_numpy
from naiad.tools.perf.inputs.request_signature import Signature
from naiad.tools.perf.perf_plan import InputSettings
from naiad.tools.values.tensor import InputError, ModelTensor

SETTINGS = InputSettings()


def signature(outputs=(), **inputs):
    """A model whose inputs are (datatype, dims) by name."""
    tensors = {name: ModelTensor(name, *form) for name, form in inputs.items()}
    return Signature("m", tensors, {name: ModelTensor(name, *form) for name, form in dict(outputs).items()}, False)


def saved(path, array):
    np.save(path, array)
    return path


def picture(path, size=(4, 2), mode="RGB"):
    """A file whose pixels have red 10, green 20, blue 30."""
    Image.new(mode, size, (10, 20, 30) if mode == "RGB" else 50).save(path)
    return path


def pixels(path, datatype, dims, layout="", **settings):
    model = Signature("m", {"A": ModelTensor("A", datatype, dims, layout=layout)}, {}, False)
    return read_image(path, model, InputSettings(**settings)).tensors["A"]


def test_npy_holds_one_sample_or_several(tmp_path):
    model = signature(A=(DataType.FP32, (-1, 2)))
    path = saved(tmp_path / "a.npy", np.arange(12).reshape(2, 3, 2))
    steps = read_numpy(path, model)
    assert [step.tensors["A"].shape for step in steps] == [(3, 2)] * 2
    assert steps[1].tensors["A"].dtype == np.float32
    assert steps[1].source == f"{path} sample 1"
    assert len(read_numpy(saved(path, np.zeros((3, 2))), model)) == 1


@pytest.mark.parametrize(
    ("array", "datatype", "wanted"),
    [
        (np.array(["a", "ä"]), DataType.BYTES, [b"a", "ä".encode()]),
        (np.array([b"a", b"bc"]), DataType.BYTES, [b"a", b"bc"]),
        (np.array([1.5, 2], ml_dtypes.bfloat16), DataType.BF16, [1.5, 2]),
        (np.array([1.5, 2], ">f8"), DataType.FP16, [1.5, 2]),
        (np.array([255], np.int64), DataType.UINT8, [255]),
        (np.array([True]), DataType.BOOL, [True]),
    ],
)
def test_arrays_become_the_datatype(tmp_path, array, datatype, wanted):
    (step,) = read_numpy(saved(tmp_path / "a.npy", array), signature(A=(datatype, (-1,))))
    assert step.tensors["A"].tolist() == wanted
    assert step.tensors["A"].dtype == datatype.numpy


def test_npz_names_inputs_and_outputs(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, A=np.zeros((2, 1)), B=np.ones((2, 3), np.int32), C=np.full((2, 1), 5.0))
    model = signature({"C": (DataType.FP32, (1,))}, A=(DataType.FP32, (1,)), B=(DataType.INT32, (3,)))
    steps = read_numpy(path, model)
    assert [step.tensors["B"].tolist() for step in steps] == [[1, 1, 1]] * 2
    assert steps[1].expected["C"].tolist() == [5.0]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"A": np.zeros((2, 1))}, "input 'B' is missing; expected INT32"),
        ({"A": np.zeros(1), "B": np.zeros(3, np.int32), "X": np.zeros(1)}, "no input 'X'; it has 'A', 'B'"),
        ({"A": np.zeros((2, 1)), "B": np.zeros(3, np.int32)}, "as many samples of each tensor; 'A' has 2, 'B' has 1"),
        ({"A": np.zeros(1), "B": np.zeros(3)}, "array 'B': expected values of INT32, got dtype float64"),
        ({"A": np.zeros(1), "B": np.full(3, 1 << 40)}, "out of the range of INT32; got 1099511627776"),
        (
            {"A": np.zeros(1), "B": np.zeros((1, 1, 3), int)},
            r"array 'B': expected shape \[3\] for one sample, .* got \[1, 1, 3\]",
        ),
        ({"A": np.zeros(1), "B": np.zeros((2, 4), int)}, r"array 'B' sample 0: expected shape \[3\], .* got \[4\]"),
        ({"A": np.full(1, 1e300), "B": np.zeros(3, int)}, "array 'A': a value is out of the range of FP32"),
        ({"A": np.array([None]), "B": np.zeros(3, int)}, "not a file of numpy arrays .*object arrays are not read"),
    ],
)
def test_wrong_arrays_are_explained(tmp_path, arrays, words):
    path = tmp_path / "a.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=words):
        read_numpy(path, signature(A=(DataType.FP32, (1,)), B=(DataType.INT32, (3,))))


def test_single_array_needs_a_single_input(tmp_path):
    model = signature(A=(DataType.FP32, (1,)), B=(DataType.INT32, (3,)))
    with pytest.raises(InputError, match=r"is data for one input; model 'm' has 'A', 'B'; use an \.npz"):
        read_numpy(saved(tmp_path / "a.npy", np.zeros(1)), model)


def test_directory_has_a_file_for_each_tensor(tmp_path):
    (tmp_path / "A").write_bytes(np.float32([1, 2, 3]).tobytes())
    (tmp_path / "S").write_text("one\ntwo\n")
    saved(tmp_path / "B.npy", np.array([7]))
    (tmp_path / "OUT").write_bytes(np.int8([5]).tobytes())
    outputs = {"OUT": (DataType.INT8, (1,)), "OTHER": (DataType.INT8, (1,))}
    model = signature(outputs, A=(DataType.FP32, (-1,)), B=(DataType.INT64, (1,)), S=(DataType.BYTES, (2,)))
    (step,) = read_directory(tmp_path, model, SETTINGS)
    assert {name: array.tolist() for name, array in step.tensors.items()} == {
        "A": [1, 2, 3],
        "B": [7],
        "S": [b"one", b"two"],
    }
    assert step.expected["OUT"].tolist() == [5]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "expected a file for each input .'A', 'B'."),
        ({"A": b"1234"}, "input 'B' is missing"),
        ({"A": b"123", "B": b"1234"}, "A: 3 bytes are no multiple of the 4 bytes of FP32"),
        ({"A": b"12345678", "B": b"1234"}, r"A: expected 1 values for shape \[1\], got 2"),
        ({"A.npy": b"", "B": b"1234"}, "A.npy: not a file of numpy arrays"),
    ],
)
def test_wrong_directories_are_explained(tmp_path, files, words):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_directory(tmp_path, signature(A=(DataType.FP32, (1,)), B=(DataType.INT32, (1,))), SETTINGS)


def test_directory_of_pictures_is_sorted(tmp_path):
    for name in ("b.PNG", "a.jpg"):
        picture(tmp_path / name)
    (tmp_path / "notes.txt").write_text("")
    steps = read_directory(tmp_path, signature(A=(DataType.UINT8, (3, 2, 4))), SETTINGS)
    assert [step.source for step in steps] == [str(tmp_path / "a.jpg"), str(tmp_path / "b.PNG")]


@pytest.mark.parametrize(
    ("dims", "layout"),
    [((3, 5, 6), ""), ((5, 6, 3), ""), ((3, 6, 3), "NHWC"), ((-1, 5, 6), "NCHW")],
)
def test_pictures_follow_shape_and_layout(tmp_path, dims, layout):
    array = pixels(picture(tmp_path / "a.png"), DataType.UINT8, dims, layout)
    is_first = (layout or ("NCHW" if dims[0] == 3 else "NHWC")) == "NCHW"
    assert array.shape == tuple(3 if dim == -1 else dim for dim in dims)
    assert (array[:, 0, 0] if is_first else array[0, 0]).tolist() == [10, 20, 30]


def test_pictures_keep_their_size_where_it_may_vary(tmp_path):
    assert pixels(picture(tmp_path / "a.png"), DataType.UINT8, (3, -1, -1)).shape == (3, 2, 4)


def test_pixels_are_scaled_for_floats(tmp_path):
    path = picture(tmp_path / "a.png")
    assert np.allclose(pixels(path, DataType.FP16, (3, 1, 1)).ravel(), np.array([10, 20, 30]) / 255, atol=1e-3)
    assert pixels(path, DataType.FP32, (3, 1, 1), image_scale=1.0).ravel().tolist() == [10, 20, 30]


def test_grey_pictures_have_one_channel(tmp_path):
    path = picture(tmp_path / "a.png", mode="L")
    assert pixels(path, DataType.INT32, (2, 4)).tolist() == [[50] * 4] * 2
    assert pixels(path, DataType.INT32, (1, 2, 4)).shape == (1, 2, 4)


@pytest.mark.parametrize(("datatype", "dims"), [(DataType.BYTES, (1,)), (DataType.UINT8, (-1,))])
def test_encoded_pictures_are_sent_as_they_are(tmp_path, datatype, dims):
    path = picture(tmp_path / "a.png")
    array = pixels(path, datatype, dims)
    content = array[0] if datatype is DataType.BYTES else array.tobytes()
    assert Image.open(io.BytesIO(content)).size == (4, 2)


@pytest.mark.parametrize(
    ("datatype", "dims", "words"),
    [
        (DataType.FP32, (5, 5, 5), r"shape \[5, 5, 5\] is no picture"),
        (DataType.FP32, (5,), r"shape \[5\] is no picture"),
        (DataType.INT8, (1, 1, 1), "out of the range of INT8; got 200 to 200"),
    ],
)
def test_inputs_that_take_no_picture_are_explained(tmp_path, datatype, dims, words):
    path = tmp_path / "a.png"
    Image.new("L", (1, 1), 200).save(path)
    with pytest.raises(InputError, match=words):
        pixels(path, datatype, dims)


def test_broken_pictures_are_explained(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"a\.png: not a picture that can be read"):
        pixels(path, DataType.UINT8, (3, 1, 1))


def test_missing_pillow_is_explained(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    path = tmp_path / "a.png"
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"pip install 'naiad\[perf\]'"):
        pixels(path, DataType.UINT8, (3, 1, 1))
