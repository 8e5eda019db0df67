"""Columns of files reach a model by the names that it was trained on."""

import json
import logging

import numpy as np
import pytest

from naiad.config.tensors.features import Features, write_features
from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.tools.predict.job_signature import read_signature
from naiad.tools.predict.prediction_job import PredictJob
from support.batch_parts import chunks, metadata, reasons, values

PEOPLE = Features(("age", "income", "city"), {"city": ["Oslo", "Rome"]}, null_is_nan=True)
NUMBERS = Features(("age", "income", "height"), null_is_nan=True)
ROWS = [(30, 4.5, 0), (41, None, 1), (25, 1.5, None)]
SUFFIXES = ("csv", "jsonl", "parquet", "npz")


def model(features=None, dims=(3,), **fields):
    job = PredictJob("models", "m", ["in"], "out.jsonl", **fields)
    described, config = metadata({"X": (DataType.FP32, dims)}, {"Y": (DataType.FP32, (1,))})
    write_features(config, features)
    return read_signature(job, described, config)


def save(directory, suffix, columns):
    """A file with columns; None is a null."""
    path = directory / f"in.{suffix}"
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if suffix == "csv":
        lines = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
        path.write_text("\n".join([",".join(columns), *lines]) + "\n")
    elif suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif suffix == "parquet":
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pa.table({name: list(column) for name, column in columns.items()}), path)
    else:
        arrays = {
            name: np.array([np.nan if value is None else value for value in column])
            if not isinstance(column[0], str)
            else np.array(column)
            for name, column in columns.items()
        }
        np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_columns_in_another_order_find_their_features(tmp_path, suffix):
    path = save(tmp_path, suffix, {"height": [3, 6], "id": [8, 9], "income": [2.5, 5.5], "age": [1, 4]})
    assert values(chunks(path, model(NUMBERS)), "X") == [[1, 2.5, 3], [4, 5.5, 6]]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_other_columns_are_refused_with_both_lists(tmp_path, suffix):
    path = save(tmp_path, suffix, {"age": [1], "income": [2], "size": [3]})
    with pytest.raises(InferError) as raised:
        chunks(path, model(NUMBERS))
    assert (
        "no column 'height'; the model was trained on the columns 'age', 'income', 'height'" in raised.value.message
    )
    assert "there are 'age', 'income', 'size'" in raised.value.message
    assert "--column age=X" in raised.value.message


def test_records_with_other_members_fail_with_both_lists(tmp_path):
    found = chunks(save(tmp_path, "jsonl", {"age": [1], "income": [2], "size": [3]}), model(NUMBERS))
    assert "no column 'height'; the model was trained on" in reasons(found)[0]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_nulls_are_missing_values(tmp_path, suffix):
    path = save(tmp_path, suffix, {"height": [3, 6], "income": [2.5, None], "age": [None, 4]})
    found = chunks(path, model(NUMBERS))
    np.testing.assert_array_equal(values(found, "X"), [[np.nan, 2.5, 3], [4, np.nan, 6]])


def test_null_in_a_list_is_a_missing_value(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"X": [1, null, 3]}\n')
    np.testing.assert_array_equal(values(chunks(path, model(NUMBERS)), "X"), [[1, np.nan, 3]])
    found = chunks(path, model())
    assert "value 1 is None; expected a number for FP32" in reasons(found)[0]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_nulls_fail_where_they_mean_nothing(tmp_path, suffix):
    path = save(tmp_path, suffix, {"height": [3, 6], "income": [2.5, None], "age": [1, 4]})
    found = chunks(path, model(Features(("age", "income", "height"))))
    assert values(found, "X") == [[1, 2.5, 3], None]
    assert list(reasons(found)) == [1]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_categories_become_their_numbers(tmp_path, suffix):
    path = save(tmp_path, suffix, {"city": ["Rome", "Oslo", "Bonn"], "income": [1, 2, 3], "age": [4, 5, 6]})
    found = chunks(path, model(PEOPLE))
    assert values(found, "X") == [[4, 1, 1], [5, 2, 0], None]
    assert "has no category 'Bonn'; it has 'Oslo', 'Rome'" in reasons(found)[2]


def test_categories_that_are_numbers_are_found_in_text(tmp_path):
    features = Features(("floor", "a"), {"floor": [5, 7]}, null_is_nan=True)
    path = save(tmp_path, "csv", {"a": [1, 2], "floor": [7, None]})
    np.testing.assert_array_equal(values(chunks(path, model(features, (2,))), "X"), [[1, 1], [np.nan, 2]])


def test_category_columns_may_be_keys(tmp_path):
    path = save(tmp_path, "parquet", {"city": ["Rome", "Oslo"], "income": [1, 2], "age": [4, 5]})
    found = chunks(path, model(PEOPLE, keys=("city",)), keys=("city",))
    assert found[0].keys == {"city": ["Rome", "Oslo"]}
    assert values(found, "X") == [[4, 1, 1], [5, 2, 0]]


def test_named_columns_of_the_job_have_priority(tmp_path):
    path = save(tmp_path, "csv", {"a": [1], "b": [2], "c": [3]})
    columns = {"b": "X", "c": "X", "a": "X"}
    assert values(chunks(path, model(NUMBERS, columns=columns), columns=columns), "X") == [[2, 3, 1]]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_order_is_logged_once_without_names(tmp_path, caplog, suffix):
    columns = {"a": [1], "b": [2], "c": [3]}
    save(tmp_path, suffix, columns).rename(tmp_path / f"first.{suffix}")
    save(tmp_path, suffix, columns)
    with caplog.at_level(logging.WARNING):
        assert values(chunks(tmp_path / f"*.{suffix}", model()), "X") == [[1, 2, 3], [1, 2, 3]]
    (record,) = caplog.records
    assert "it takes them in this order: 'a', 'b', 'c'" in record.getMessage()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        chunks(save(tmp_path, suffix, {"height": [3], "income": [2], "age": [1]}), model(NUMBERS))
    assert not caplog.records


def test_array_without_names_logs_the_features(tmp_path, caplog):
    np.save(tmp_path / "in.npy", np.ones((2, 3)))
    with caplog.at_level(logging.WARNING):
        chunks(tmp_path / "in.npy", model(NUMBERS))
    assert "it takes them in this order: 'age', 'income', 'height'" in caplog.records[0].getMessage()
