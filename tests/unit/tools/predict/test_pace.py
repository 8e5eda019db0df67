"""Rows in a chunk, too many failed rows, rate and time left."""

import pytest

from naiad.core.errors import InferError
from naiad.tools.predict.pace import ALL_FAILED_ROWS, MEMORY_BYTES, ChunkSize, FailureLimit, Pace


def test_chunks_grow_to_their_memory() -> None:
    size = ChunkSize(8, 4)
    assert size.rows == 8
    found = []
    for _ in range(9):
        size.learn(size.rows, size.rows * 1000)
        found.append(size.rows)
    assert found[:3] == [32, 128, 512]
    assert found[-1] * 1000 <= MEMORY_BYTES // 8 < (found[-1] + 8) * 1000
    assert all(rows % 8 == 0 for rows in found)


def test_chunks_of_large_rows_are_one_request() -> None:
    size = ChunkSize(8, 2)
    size.learn(8, 1 << 30)
    assert size.rows == 8
    small = ChunkSize(1, 2)
    for _ in range(20):
        small.learn(small.rows, 0)
    assert small.rows == 1 << 16


def test_too_many_failed_rows_end_a_job() -> None:
    limit = FailureLimit(2)
    limit.count(0, ["a", "b"])
    with pytest.raises(InferError, match="3 rows failed, and max_failed_rows is 2; the last one: c"):
        limit.count(5, ["c"])
    with pytest.raises(InferError, match="max_failed_rows is 2"):
        FailureLimit(2, rows=10, failed_rows=2).count(1, ["d"])


def test_a_job_without_success_ends() -> None:
    limit = FailureLimit(None)
    limit.count(0, ["bad"] * (ALL_FAILED_ROWS - 1))
    with pytest.raises(InferError, match="all of the first 1,000 rows failed"):
        limit.count(0, ["worse"])
    limit = FailureLimit(None)
    limit.count(1, ["bad"] * ALL_FAILED_ROWS * 5)
    assert limit.failed == 5000


def test_time_left_follows_the_bytes() -> None:
    pace = Pace(1000, 100, 3)
    pace.begin(10.0, 200)
    assert pace.progress("predict").seconds_left is None
    pace.add(12.0, 50, 1, 400)
    state = pace.progress("predict")
    assert (state.rows, state.failed_rows, state.fraction) == (150, 4, 0.4)
    assert state.rows_per_s == 25.0
    assert state.seconds_left == pytest.approx(6.0)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    pace = Pace(10_000, 0, 0)
    pace.begin(0.0, 0)
    for second in range(1, 40):
        pace.add(float(second), 1 if second < 20 else 100, 0, second)
    assert pace.progress("predict").rows_per_s == pytest.approx(100, rel=0.01)
