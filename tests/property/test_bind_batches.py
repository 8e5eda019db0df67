"""Decorators of bound functions: each request gets the responses for its own rows."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from naiad.bind.decorators import batch, group_by_keys, group_by_values
from naiad.bind.request import Request

ROWS = st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([b"", b"x", b"long text"])), min_size=1, max_size=4)
REQUESTS = st.lists(st.tuples(ROWS, st.booleans()), min_size=1, max_size=6)


def request(rows: list[tuple[int, bytes]], *, is_labelled: bool, number: int) -> Request:
    inputs: dict[str, Any] = {
        "value": np.array([[value] for value, _ in rows], np.int64),
        "key": np.array([[key] for _, key in rows], object),
        "origin": np.full((len(rows), 1), number, np.int64),
    }
    if is_labelled:
        inputs["label"] = np.ones((len(rows), 1), np.int64)
    return Request(inputs)


def own_rows(result: dict[str, np.ndarray], rows: list[tuple[int, bytes]], number: int, *, is_labelled: bool) -> bool:
    return (
        result["value"].ravel().tolist() == [value * 2 for value, _ in rows]
        and result["key"].ravel().tolist() == [key for _, key in rows]
        and set(result["origin"].ravel().tolist()) == {number}
        and set(result["labelled"].ravel().tolist()) == {int(is_labelled)}
    )


def infer(value: Any, key: Any, origin: Any, label: Any = None) -> dict[str, Any]:
    labelled = np.zeros_like(value) if label is None else label
    return {"value": value * 2, "key": key, "origin": origin, "labelled": labelled}


@given(REQUESTS)
def test_groups_by_keys_return_own_rows(given_requests):
    requests = [request(rows, is_labelled=flag, number=i) for i, (rows, flag) in enumerate(given_requests)]
    results = group_by_keys(batch(infer))(requests)
    assert len(results) == len(requests)
    for number, (result, (rows, flag)) in enumerate(zip(results, given_requests, strict=True)):
        assert own_rows(result, rows, number, is_labelled=flag)


@given(REQUESTS, st.sampled_from([("key",), ("value",), ("key", "value"), ("origin", "key")]))
def test_groups_by_values_return_own_rows(given_requests, keys):
    requests = [request(rows, is_labelled=False, number=i) for i, (rows, _) in enumerate(given_requests)]
    seen: list[tuple[object, ...]] = []

    def one_value(**inputs: Any) -> dict[str, Any]:
        values = {tuple(str(inputs[key][row, 0]) for key in keys) for row in range(len(inputs["value"]))}
        assert len(values) == 1
        seen.extend(values)
        return infer(**inputs)

    results = batch(group_by_values(*keys)(one_value))(requests)
    assert len(seen) == len(set(seen))
    for number, (result, (rows, _)) in enumerate(zip(results, given_requests, strict=True)):
        assert own_rows(result, rows, number, is_labelled=False)


@given(st.lists(ROWS, min_size=1, max_size=6), st.integers(1, 3))
def test_every_value_of_generator_has_own_rows(row_lists, count):
    requests = [request(rows, is_labelled=False, number=i) for i, rows in enumerate(row_lists)]

    def stream(**inputs: Any):
        for _ in range(count):
            yield infer(**inputs)

    values = list(batch(stream)(requests))
    assert len(values) == count
    for results in values:
        for number, (result, rows) in enumerate(zip(results, row_lists, strict=True)):
            assert own_rows(result, rows, number, is_labelled=False)
