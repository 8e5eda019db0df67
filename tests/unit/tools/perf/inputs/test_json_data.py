"""perf_analyzer's JSON data files: every form of a tensor, and mistakes that are named with their place."""

import base64
import contextlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from naiad.core.datatype import DataType
from naiad.core.tensor import to_buffer
from naiad.tools.perf.inputs.json_data import read_json
from naiad.tools.perf.inputs.request_signature import Signature
from naiad.tools.values.conversion import is_float, strings
from naiad.tools.values.tensor import InputError, ModelTensor
from support.long_run import examples

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["A", "content", "shape", "b64"]), inner)
    ),
)


def signature(datatype=DataType.INT32, dims=(-1,)):
    return Signature("m", {"A": ModelTensor("A", datatype, dims)}, {"B": ModelTensor("B", datatype, dims)}, False)


def read(directory, document, *of):
    path = directory / "data.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return read_json(path, signature(*of))


def tensor(directory, value, *of):
    ((step,),), _ = read(directory, {"data": [{"A": value}]}, *of)
    return step.tensors["A"]


@st.composite
def typed_arrays(draw):
    datatype = draw(st.sampled_from(list(DataType)))
    shape = draw(arrays_of.array_shapes(min_dims=0, min_side=0, max_side=3))
    if datatype is DataType.BYTES:
        texts = draw(st.lists(st.text(), min_size=math.prod(shape), max_size=math.prod(shape)))
        return datatype, strings([text.encode("utf-8", "surrogatepass") for text in texts]).reshape(shape)
    dtype = np.dtype(np.float16) if datatype is DataType.BF16 else datatype.numpy
    return datatype, draw(arrays_of.arrays(dtype, shape)).astype(datatype.numpy)


@given(typed_arrays())
def test_every_form_gives_the_same_array(tmp_path_factory, typed):
    datatype, array = typed
    directory = tmp_path_factory.mktemp("data")
    flat = array.ravel().astype(np.float64) if is_float(datatype) else array.ravel()
    values = [each.decode("utf-8", "surrogatepass") if isinstance(each, bytes) else each for each in flat.tolist()]
    b64 = base64.b64encode(to_buffer(array)).decode()
    forms = [values, {"b64": b64}]
    forms += [{"content": form, "shape": list(array.shape)} for form in forms] + [
        {"b64": b64, "shape": list(array.shape)}
    ]
    for form in forms:
        got = tensor(directory, form, datatype, array.shape)
        assert got.shape == array.shape
        assert got.dtype == array.dtype
        if datatype is DataType.BYTES or not np.isnan(array.astype(np.float64)).any():
            assert bytes(to_buffer(got)) == bytes(to_buffer(array))


@settings(max_examples=examples(100))
@given(JSON)
def test_any_document_is_read_or_explained(tmp_path_factory, document):
    directory = tmp_path_factory.mktemp("data")
    for form in (
        document,
        {"data": document},
        {"data": [{"A": document}]},
        {"data": [{"A": [1]}], "validation_data": document},
    ):
        with contextlib.suppress(InputError):
            streams, _ = read(directory, form)
            assert all(step.tensors["A"].dtype == np.int32 for stream in streams for step in stream)


def test_single_variable_dimension_is_inferred(tmp_path):
    assert tensor(tmp_path, [1, 2, 3, 4], DataType.INT32, (-1, 2)).shape == (2, 2)


def test_integers_are_floats_too(tmp_path):
    assert tensor(tmp_path, [1, 2.5], DataType.BF16, (2,)).tolist() == [1, 2.5]


def test_inputs_may_have_names_of_other_members(tmp_path):
    path = tmp_path / "data.json"
    path.write_text('{"data": [{"delay": [1], "timestamp": [2]}]}')
    names = {name: ModelTensor(name, DataType.INT32, (1,)) for name in ("delay", "timestamp")}
    ((step,),), _ = read_json(path, Signature("m", names, {}, False))
    assert (list(step.tensors), step.timestamp_ms) == (["delay", "timestamp"], None)


@pytest.mark.parametrize(
    ("value", "of", "words"),
    [
        ([1, 2], (DataType.INT32, (3,)), r"expected 3 values for shape \[3\], got 2"),
        ({"content": [1], "shape": [2]}, (), r"expected 2 values for shape \[2\], got 1"),
        ({"content": [1], "shape": [1, 1]}, (), r"expected shape \[-1\], without a batch dimension, got \[1, 1\]"),
        ({"content": [1], "shape": [-1]}, (), r"got \[-1\]"),
        ({"content": [1], "shape": 1}, (), "list of integers as 'shape', got 1"),
        ([1.5], (), "value 0 is 1.5; expected an integer for INT32"),
        ([1, "2"], (DataType.FP32, (2,)), "value 1 is '2'; expected a number for FP32"),
        ([True], (DataType.FP32, (1,)), "value 0 is True; expected a number"),
        ([1], (DataType.BYTES, (1,)), "value 0 is 1; expected a string"),
        ([300], (DataType.UINT8, (1,)), "out of the range of UINT8; got 300 to 300"),
        ([1e6], (DataType.FP16, (1,)), "out of the range of FP16"),
        ([1, 2, 3], (DataType.INT32, (-1, 2)), r"3 values do not fill shape \[-1, 2\]; expected a multiple of 2"),
        ([1, 2], (DataType.INT32, (-1, -1)), "variable dimensions; give them with --shape A:1,1, or as a 'shape'"),
        ([[1], [2]], (), "row-major order, got nested lists"),
        (1, (), "expected a flat list of values, .* got 1"),
        ({"shape": [1]}, (), "got an object with 'shape'"),
        ({"b64": "?"}, (), "'b64' is not base64"),
        ({"b64": "AAA="}, (), "2 bytes are no multiple of the 4 bytes of INT32"),
        ({"b64": "AQAAAA=="}, (DataType.BYTES, (1,)), "only 0 bytes available; strings need a length"),
    ],
)
def test_wrong_tensors_are_named(tmp_path, value, of, words):
    with pytest.raises(InputError, match=f"^data.json step 0, input 'A': .*{words}"):
        tensor(tmp_path, value, *of)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "data.json: not a JSON document: .*"),
        ([], "expected an object with a list of samples"),
        ({"data": []}, "expected an object with a list of samples"),
        ({"data": [[{"A": [1]}], []]}, "data.json stream 1: expected at least one step"),
        ({"data": [[{"A": [1]}], [{"A": [1]}, 5]]}, "data.json stream 1 step 1: expected an object .* got 5"),
        ({"data": [{"A": [1]}, {"X": [1]}]}, "step 1: model 'm' has no input 'X'; it has 'A'"),
        ({"data": [{}]}, r"step 0: input 'A' is missing; expected INT32 of shape \[-1\]"),
        ({"data": [{"A": [1], "timestamp": "x"}]}, "step 0: expected milliseconds from the start .* got 'x'"),
        ({"data": [{"A": [1]}], "validation_data": []}, "each of 1 steps, got 0"),
        ({"data": [{"A": [1]}], "validation_data": [{"X": [1]}]}, "no output 'X' to validate; it has 'B'"),
        ({"data": [{"A": [1]}], "validation_data": [{"B": ["x"]}]}, "step 0, output 'B': value 0 is 'x'"),
        ({"data": [[{"A": [1]}]], "validation_data": [{}, {}]}, "each of the 1 streams"),
    ],
)
def test_wrong_documents_are_explained(tmp_path, document, words):
    with pytest.raises(InputError, match=words):
        read(tmp_path, document)


def test_example_of_the_page_is_read(tmp_path):
    page = Path(__file__).resolve().parents[5] / "docs" / "perf-data.md"
    example = page.read_text().split("```json")[1].split("```")[0]
    names = [
        {name: ModelTensor(name, DataType.INT32, (-1,)) for name in group}
        for group in (("INPUT0", "INPUT1"), ("OUTPUT0",))
    ]
    (tmp_path / "data.json").write_text(example)
    (steps,), _ = read_json(tmp_path / "data.json", Signature("m", *names, False))
    for step in steps:
        assert (step.tensors["INPUT0"] + step.tensors["INPUT1"]).tolist() == step.expected["OUTPUT0"].tolist()
