"""Rows of a program as inputs: names, features, datatypes, shapes."""

import numpy as np
import pytest

from naiad.client.client import encode_tensors
from naiad.client.data_frames import to_inputs
from naiad.config.tensors.features import Features
from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.model import ModelMetadata
from naiad.core.tensor import TensorSpec


def metadata(*inputs):
    return ModelMetadata("m", ("1",), "p", [TensorSpec(*each) for each in inputs], [])


MATRIX = metadata(("X", DataType.FP32, (-1, 2)))
COLUMNS = metadata(("age", DataType.INT64, (-1, 1)), ("city", DataType.BYTES, (-1, 1)))
NAMES = Features(("age", "city"), {"city": ["Oslo", "Rome"]})


def test_records_reach_a_matrix_by_feature_names():
    rows = [{"city": "Rome", "age": 3}, {"city": "Oslo", "age": 4}]
    assert to_inputs(rows, MATRIX, NAMES)["X"].tolist() == [[3, 1], [4, 0]]
    with pytest.raises(InferError, match="no category 'Wien'"):
        to_inputs([{"city": "Wien", "age": 3}], MATRIX, NAMES)


def test_columns_get_the_dimension_of_their_input():
    found = to_inputs({"age": [3, 4], "city": ["a", "b"]}, COLUMNS, Features())
    assert (found["age"].tolist(), found["city"].shape) == ([[3], [4]], (2, 1))


def test_array_is_the_only_input():
    assert to_inputs(np.ones((3, 2)), MATRIX, Features())["X"].dtype == np.float32
    assert to_inputs([1, 2], MATRIX, Features())["X"].tolist() == [[1, 2]]


def test_numbers_that_would_change_are_refused():
    exact = to_inputs({"age": [3.0], "city": ["a"]}, COLUMNS, Features())["age"]
    assert (exact.dtype, exact.tolist()) == (np.int64, [[3]])
    with pytest.raises(InferError, match="values of float64 would change"):
        to_inputs({"age": [3.5], "city": ["a"]}, COLUMNS, Features())


def test_optional_input_may_be_missing():
    assert list(to_inputs({"age": [1]}, COLUMNS, Features(), frozenset({"city"}))) == ["age"]
    with pytest.raises(InferError, match="have no 'city'"):
        to_inputs({"age": [1]}, COLUMNS, Features())


@pytest.mark.parametrize("missing", [None, np.nan])
@pytest.mark.parametrize("kind", ["object", "T"])
def test_missing_texts_are_refused_with_a_way_out(missing, kind):
    dtype = object if kind == "object" else np.dtypes.StringDType(na_object=missing)
    with pytest.raises(
        InferError, match=r"input 'city' has missing values \((None|nan)\), which texts lack; replace"
    ):
        encode_tensors({"city": np.array(["Oslo", missing], dtype)})
    assert encode_tensors({"city": np.array(["Oslo", b"Rome"], object)})[0][0].datatype is DataType.BYTES


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([[1, 2], [3]], "the rows: lists of different lengths make no array"),
        ([{"age": [1, 2], "city": 1}, {"age": [1], "city": 1}], "'age': lists of different lengths make no array"),
        ({"age": [1, 2], "city": ["Oslo"]}, "the columns have different numbers of rows: 'age' 2, 'city' 1"),
        (None, "the rows: a NoneType is no array; send"),
        ({1, 2}, "the rows: a set is no array; send"),
        (np.ma.masked_array([[1.0, 2.0]], [[True, False]]), "the rows: values are masked"),
        (np.array([["2026-01-01", "2026-01-02"]], "M8[s]"), r"input 'X' has values of datetime64\[s\]"),
        ({"age": np.array([1], "m8[s]"), "city": ["Oslo"]}, r"column 'age' has values of timedelta64\[s\]"),
        (np.array([[1j, 2]]), "input 'X' has values of complex128"),
        (np.array([[1e300, 2]]), "input 'X': a value is out of the range of FP32"),
        (np.array([[70000, 2]]), None),
    ],
)
def test_rows_that_are_no_numbers_are_refused(rows, text):
    if text is None:
        assert to_inputs(rows, MATRIX, NAMES)["X"].tolist() == [[70000, 2]]
        return
    with pytest.raises(InferError, match=text):
        to_inputs(rows, MATRIX, NAMES)


def test_text_alone_is_an_input_of_text():
    prompt = metadata(("text_input", DataType.BYTES, (1,)))
    assert to_inputs("a cup", prompt, Features())["text_input"].tolist() == ["a cup"]


def test_tables_of_other_packages_are_refused():
    class Table:
        column_names = ("city", "age")

        def __array__(self, dtype=None, copy=None):
            return np.array([[1.0, 2.0]])

    with pytest.raises(InferError, match=r"the rows are a \S+Table: send its to_pandas\(\), or a dictionary"):
        to_inputs(Table(), MATRIX, NAMES)


def test_inputs_with_masked_elements_are_refused():
    with pytest.raises(InferError, match=r"input 'x' has masked elements.*array.filled\(value\)"):
        encode_tensors({"x": np.ma.masked_array([1.0, 2.0], [False, True])})
    specs, data = encode_tensors({"x": np.ma.masked_array([1.0, 2.0])})
    assert (specs[0].datatype, bytes(data[0])) == (DataType.FP64, np.array([1.0, 2.0]).tobytes())
