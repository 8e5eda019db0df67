"""Rows in JSON: nested lists, records, the forms of MLflow and Vertex AI; answers with the shape of the rows."""

import json
import math

import numpy as np
import pytest

from naiad.config.tensors.features import Features
from naiad.core.datatype import DataType, from_numpy
from naiad.core.errors import InferError
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.slices import finish
from naiad.core.tensor import TensorSpec, encode_bytes_elements, to_array
from naiad.protocol.generate import RowColumns, decode_generate, encode_generate
from naiad.protocol.rows import MAX_BYTES, looks_like_rows

FP32, INT64, BYTES = DataType.FP32, DataType.INT64, DataType.BYTES
MATRIX = {"X": TensorSpec("X", FP32, (-1, 2))}
TABLE = {"age": TensorSpec("age", FP32, (-1, 1)), "city": TensorSpec("city", BYTES, (-1, 1))}
NAMED = RowColumns(Features(("age", "income"), {}, True))


def decode(body, inputs=MATRIX, columns=NAMED, limit=1 << 24):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    header, request_id, data = finish(decode_generate("m", "", text, inputs, limit, columns))
    arrays = {s.name: to_array(s, d).tolist() for s, d in zip(header.inputs, data, strict=True)}
    return header, arrays, request_id


def refusal(body, inputs=MATRIX, columns=NAMED):
    with pytest.raises(InferError) as failure:
        decode(body, inputs, columns)
    return failure.value.message


RECORDS = [{"income": 2, "age": 3}, {"age": 5, "income": 7.5}]


@pytest.mark.parametrize(
    "body",
    [
        RECORDS,
        {"records": RECORDS},
        {"instances": RECORDS},
        {"dataframe_records": RECORDS},
        {"inputs": RECORDS},
        {"inputs": {"income": [2, 7.5], "age": [3, 5]}},
        {"dataframe_split": {"index": [0, 1], "columns": ["income", "age"], "data": [[2, 3], [7.5, 5]]}},
        {"instances": [[3, 2], [5, 7.5]]},
        {"instances": [{"X": [3, 2]}, {"X": [5, 7.5]}]},
        {"inputs": {"X": [[3, 2], [5, 7.5]]}},
        [[3, 2], [5, 7.5]],
    ],
)
def test_rows_reach_the_matrix_by_feature_names(body):
    header, arrays, _ = decode(body)
    assert arrays == {"X": [[3, 2], [5, 7.5]]}
    assert header.json_form == "predictions"


def test_members_beside_rows_are_parameters():
    header, _, request_id = decode({"instances": RECORDS, "id": "7", "parameters": {"k": 2}, "parallel": True})
    assert dict(header.parameters) == {"k": 2, "parallel": True, "id": "7"}
    assert request_id == "7"


def test_one_record_without_a_list_is_a_row():
    assert decode({"income": 2, "age": 3})[1] == {"X": [[3, 2]]}


def test_null_and_nan_are_missing_values():
    for body in ([{"age": None, "income": 1}], b'[{"age": NaN, "income": 1}]', [[None, 1]]):
        assert math.isnan(decode(body)[1]["X"][0][0])
    assert "json_nan" in refusal([[None, 1]], columns=RowColumns())


@pytest.mark.parametrize(
    "body",
    [[{"age": 3, "city": "Wien"}, {"age": 4, "city": "Rom"}], {"inputs": {"age": [3, 4], "city": ["Wien", "Rom"]}}],
)
def test_records_have_a_value_for_each_input(body):
    assert decode(body, TABLE, RowColumns())[1] == {"age": [[3], [4]], "city": [[b"Wien"], [b"Rom"]]}


def test_optional_input_may_be_missing_from_all_rows():
    columns = RowColumns(optional=frozenset({"city"}))
    assert decode([{"age": 3}, {"age": 4}], TABLE, columns)[1] == {"age": [[3], [4]]}
    assert "in 1 of 2 rows" in refusal([{"age": 3}, {"age": 4, "city": "x"}], TABLE, columns)


@pytest.mark.parametrize(
    ("body", "inputs", "text"),
    [
        ([{"age": 3}], MATRIX, "no column 'income'"),
        ([{"age": 3, "town": "x"}], TABLE, "row 0 has no value for 'city'; it has 'age', 'town', the model takes"),
        ([{"age": 3, "city": "x"}, {"age": 3, "city": "x", "t": 1}], TABLE, "row 1 has 't', which is no input"),
        ([{"age": 3, "city": "x"}, {"age": "3", "city": "x"}], TABLE, "(input 'age', row 1)"),
        ([[1, 2], [1, 2, 3]], MATRIX, "row 1 of input 'X' has shape [3], expected [2]"),
        ([3, 4], TABLE, "row 0 is 3; the model has the inputs 'age', 'city'"),
        ([], MATRIX, "has no rows"),
        ({"instances": []}, MATRIX, "has no rows"),
        ({"dataframe_split": {"columns": ["age"], "data": [[1, 2]]}}, MATRIX, "a list of 1 values"),
        ({"dataframe_split": [1]}, MATRIX, "expected an object with 'columns'"),
        ({"inputs": {"age": [1, 2], "income": [3]}}, MATRIX, "different lengths ('age': 2, 'income': 1)"),
        (b'[{"age": 3', MATRIX, "failed to parse the request JSON buffer"),
        (b"[" + b" " * MAX_BYTES + b"]", MATRIX, "send fewer rows at a time"),
    ],
)
def test_wrong_rows_are_refused_with_their_number(body, inputs, text):
    assert text in refusal(body, inputs)


def test_records_for_a_matrix_without_names_are_refused():
    assert "does not know the names of its columns" in refusal([{"a": 1, "b": 2}], columns=RowColumns())
    split = {"dataframe_split": {"columns": ["a", "b"], "data": [[1, 2]]}}
    assert decode(split, columns=RowColumns())[1] == {"X": [[1, 2]]}


def test_model_without_a_batch_dimension_takes_one_row():
    single = {"T": TensorSpec("T", BYTES, (1,))}
    assert decode([{"T": "a"}], single, RowColumns())[1] == {"T": [b"a"]}
    text = refusal([{"T": "a"}, {"T": "b"}], single, RowColumns())
    assert "one row at a time" in text
    assert "export the model with a first dimension of any size" in text


def test_long_nested_lists_keep_their_shape():
    rows = np.arange(60_000, dtype=np.float64).reshape(30_000, 2).tolist()
    header, arrays, _ = decode({"X": rows})
    assert arrays == {"X": rows}
    assert header.json_form == "nested"
    rows[7] = [1.0, 2.0, 3.0]
    rows[8] = [4.0]
    assert "nested irregularly" in refusal({"X": rows})


def test_name_of_an_input_is_that_input():
    inputs = {"instances": TensorSpec("instances", FP32, (-1, 2))}
    assert decode({"instances": [[1, 2]]}, inputs, RowColumns())[0].json_form == "nested"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"instances": [[1]]}, True),
        ({"parameters": {"a": 1}, "instances": [{"x": 1}]}, True),
        ([[1]], True),
        ({"inputs": {"a": [1]}}, True),
        ({"inputs": [{"age": 1}]}, True),
        ({"inputs": [{"name": "X", "shape": [1], "datatype": "FP32", "data": [1]}]}, False),
        ({"id": "1", "inputs": [{"shape": [1], "name": "X"}]}, False),
        ({"inputs": []}, False),
        ({"X": [1]}, False),
    ],
)
def test_tensors_of_an_inference_are_no_rows(body, expected):
    assert looks_like_rows(json.dumps(body).encode()) is expected


def response(**outputs):
    specs, data = [], []
    for name, values in outputs.items():
        array = np.asarray(values)
        text = array.dtype.kind == "O"
        specs.append(TensorSpec(name, BYTES if text else from_numpy(array.dtype), array.shape))
        data.append(encode_bytes_elements(array.ravel().tolist()) if text else array.tobytes())
    return InferResponse(ResponseHeader("m", "1", specs), data)


def written(form, **outputs):
    return json.loads(b"".join(finish(encode_generate("", response(**outputs), json_form=form))))


def test_nested_answer_has_the_shape_of_each_output():
    probabilities = np.arange(4, dtype=np.float32).reshape(2, 2)
    labels = np.array([[b"a"], [b"b"]], np.object_)
    found = written("nested", p=probabilities, label=labels)
    assert found == {"model_name": "m", "model_version": "1", "p": [[0, 1], [2, 3]], "label": [["a"], ["b"]]}


def test_prediction_is_the_value_of_the_only_output():
    assert written("predictions", y=np.array([[1], [0]]))["predictions"] == [1, 0]
    assert written("predictions", y=np.ones((2, 3)))["predictions"] == [[1, 1, 1], [1, 1, 1]]


def test_prediction_of_several_outputs_is_an_object():
    found = written("predictions", y=np.array([1, 0]), p=np.array([[0.5, math.inf], [1, 0]]))["predictions"]
    assert found == [{"y": 1, "p": [0.5, math.inf]}, {"y": 0, "p": [1, 0]}]


def test_outputs_that_are_not_rows_are_named():
    assert written("predictions", y=np.array([1, 0]), total=np.array([3]))["total"] == [3]


@pytest.mark.parametrize("form", ["nested", "predictions"])
def test_long_answers_are_complete(form):
    values = np.arange(90_000, dtype=np.float64).reshape(30_000, 3)
    found = written(form, y=values)
    assert found["y" if form == "nested" else "predictions"] == values.tolist()
