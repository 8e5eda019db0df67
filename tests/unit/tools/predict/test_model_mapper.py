"""A model over columns: the same columns as in files, outputs as arrays, failed rows, pickles."""

import contextlib
import pickle
from collections.abc import Iterator

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.tools.predict import model_mapper
from naiad.tools.predict.model_mapper import ModelMapper
from support.batch_parts import Doubling, open_here


@pytest.fixture(name="mapper")
def made_mapper(monkeypatch) -> Iterator[ModelMapper]:
    monkeypatch.setattr(model_mapper, "open_endpoint", open_here(Doubling([2.0])))
    mapper = ModelMapper("models", "m", error_column="error")
    yield mapper
    mapper.close()


def test_outputs_are_added_to_columns(mapper: ModelMapper) -> None:
    batch = {"X": np.arange(10, 30, dtype=np.float64).reshape(10, 2), "id": np.arange(10)}
    for _ in range(2):
        found = mapper(batch)
        assert list(found) == ["X", "id", "Y", "NAME", "error"]
        assert found["Y"].dtype == np.float32
        assert (found["Y"] == batch["X"] * 2).all()
        assert found["NAME"].tolist() == [str(np.float32(row[0])) for row in batch["X"]]
        assert not any(found["error"])


def test_columns_may_be_elements(mapper: ModelMapper) -> None:
    found = mapper({"X_1": np.array([5, 6]), "X_0": np.array([1, 4])})
    assert found["Y"].tolist() == [[2, 10], [8, 12]]


def test_failed_rows_have_a_reason(mapper: ModelMapper) -> None:
    found = mapper({"X": np.array([[1, 1], [2, 2], [3, 3]], np.float32)})
    assert found["error"].tolist() == ["", "the row is bad", ""]
    assert np.isnan(found["Y"]).tolist() == [[False] * 2, [True] * 2, [False] * 2]
    assert found["NAME"].tolist() == ["1.0", "", "3.0"]
    found = mapper({"X": np.array([[2, 2]], np.float32)})
    assert (found["error"].tolist(), found["NAME"].tolist(), found["Y"].shape) == (["the row is bad"], [""], (1, 2))


def test_lists_and_values_that_do_not_fit(mapper: ModelMapper) -> None:
    column = np.empty(3, object)
    column[:] = [[1, 2], np.array([3.5, 4]), "no"]
    found = mapper({"X": column})
    assert found["Y"].tolist()[:2] == [[2, 4], [7, 8]]
    assert [bool(text) for text in found["error"]] == [False, False, True]


def test_strings_that_are_no_text_fail(monkeypatch) -> None:
    class Strings(Doubling):
        async def infer(self, inputs, outputs):
            return {"NAME": np.array([[b"ok"], [b"\xff"]], object), "Y": inputs["X"]}

    monkeypatch.setattr(model_mapper, "open_endpoint", open_here(Strings()))
    mapper = ModelMapper("models", "m", outputs=["NAME"], keep=False, error_column="error")
    found = mapper({"X": np.zeros((2, 2), np.float32)})
    assert {name: column.tolist() for name, column in found.items()} == {
        "NAME": ["ok", ""],
        "error": ["", "output 'NAME' is no UTF-8"],
    }
    mapper.close()


def test_without_a_column_a_failed_row_raises(monkeypatch) -> None:
    monkeypatch.setattr(model_mapper, "open_endpoint", open_here(Doubling([2.0])))
    mapper = ModelMapper("models", "m")
    with pytest.raises(InferError, match="row 1 of the batch: the row is bad"):
        mapper({"X": np.array([[1, 1], [2, 2]], np.float32)})
    mapper.close()


def test_a_mapper_survives_pickling(mapper: ModelMapper) -> None:
    mapper({"X": np.zeros((1, 2), np.float32)})
    copy = pickle.loads(pickle.dumps(mapper))
    assert copy({"X": np.ones((1, 2), np.float32)})["Y"].tolist() == [[2, 2]]
    copy.close()
    assert copy({"X": np.ones((1, 2), np.float32)})["Y"].tolist() == [[2, 2]]
    copy.close()


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ({}, "no column"),
        ({"X": np.zeros((2, 2)), "id": np.zeros(3)}, "columns of one length"),
        ({"Z": np.zeros(2)}, "no column 'X' for the input 'X'"),
    ],
)
def test_columns_that_do_not_fit(mapper: ModelMapper, batch, reason: str) -> None:
    with pytest.raises(InferError, match=reason):
        mapper(batch)


def test_one_element_has_one_dimension(monkeypatch) -> None:
    class Single(Doubling):
        inputs = {"X": (DataType.FP32, (1,))}  # noqa: RUF012
        outputs = {"Y": (DataType.BF16, (1,)), "VARYING": (DataType.FP32, (-1,))}  # noqa: RUF012

        async def infer(self, inputs, outputs):
            rows = inputs["X"]
            return {"Y": rows.astype(DataType.BF16.numpy), "VARYING": rows.repeat(len(rows), 1)}

    monkeypatch.setattr(model_mapper, "open_endpoint", open_here(Single()))
    mapper = ModelMapper("models", "m", keep=False)
    found = mapper({"X": np.arange(5)})
    assert (found["Y"].dtype, found["Y"].tolist()) == (np.float32, [0, 1, 2, 3, 4])
    assert [row.tolist() for row in found["VARYING"]] == [[row] * (4 if row < 4 else 1) for row in range(5)]
    mapper.close()


def test_a_refused_model_is_closed(monkeypatch) -> None:
    closed: list[str] = []

    @contextlib.asynccontextmanager
    async def open_endpoint(job, *, follows_versions):
        try:
            yield Doubling()
        finally:
            closed.append(job.model)

    monkeypatch.setattr(model_mapper, "open_endpoint", open_endpoint)
    mapper = ModelMapper("models", "m", outputs=["OTHER"])
    with pytest.raises(InferError, match="OTHER"):
        mapper({"X": np.zeros((1, 2), np.float32)})
    assert closed == ["m"]


def test_error_column_is_no_output(monkeypatch) -> None:
    monkeypatch.setattr(model_mapper, "open_endpoint", open_here(Doubling()))
    mapper = ModelMapper("models", "m", error_column="NAME")
    with pytest.raises(InferError, match="error_column is 'NAME', an output of the model"):
        mapper({"X": np.zeros((1, 2), np.float32)})


def test_batch_without_rows_has_outputs_without_rows(mapper: ModelMapper) -> None:
    found = mapper({"X": np.zeros((0, 2), np.float32)})
    assert {name: column.shape for name, column in found.items()} == {
        "X": (0, 2), "Y": (0, 2), "NAME": (0,), "error": (0,),
    }  # fmt: skip
