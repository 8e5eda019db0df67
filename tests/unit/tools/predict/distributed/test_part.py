"""The size of parts: one request at first, then about a second of work, within its bounds."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from naiad.tools.predict.distributed.part import MAX_PART_BYTES, MAX_PART_ROWS, TARGET_S, PartOutcome, PartSize

OUTCOME = PartOutcome(rows=64, failed_rows=0, last_reason="", seconds=0.01, size_bytes=64)


def test_parts_grow_to_the_target() -> None:
    size = PartSize(64)
    assert size.rows == 64
    sizes = []
    for _ in range(5):
        size.learn(replace(OUTCOME, rows=size.rows, seconds=size.rows / 6400))
        sizes.append(size.rows)
    assert sizes == [256, 1024, 4096, 6400, 6400]


def test_large_rows_make_small_parts() -> None:
    size = PartSize(2)
    size.learn(replace(OUTCOME, rows=2, size_bytes=2 * MAX_PART_BYTES))
    assert size.rows == 2
    size.learn(replace(OUTCOME, rows=2, size_bytes=MAX_PART_BYTES // 3))
    assert size.rows == 6


@given(
    unit=st.integers(1, 10_000),
    outcomes=st.lists(
        st.builds(
            PartOutcome, st.integers(1, 1 << 21), st.just(0), st.just(""), st.floats(0, 1e6), st.integers(0, 1 << 40)
        )
    ),
)
def test_parts_are_whole_requests(unit: int, outcomes: list[PartOutcome]) -> None:
    size = PartSize(unit)
    for outcome in outcomes:
        size.learn(outcome)
        assert size.rows % unit == 0
        assert unit <= size.rows <= max(MAX_PART_ROWS, unit)
        assert size.rows * outcome.seconds <= max(unit * outcome.seconds, outcome.rows * TARGET_S * (1 + 1e-9))
