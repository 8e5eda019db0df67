"""The small form of counters, in which the live stream reads, sends and sums them."""

from hypothesis import given
from hypothesis import strategies as st

from naiad.telemetry.statistics.live_counts import NOTHING, LiveCounts, add_counts, has_restarted, without_gauges
from naiad.telemetry.statistics.model_statistics import ModelStatistics

COUNT = st.integers(0, 1000)
ROWS = st.builds(
    LiveCounts,
    *[COUNT] * 13,
    failures=st.sampled_from([(), (0, 1, 2, 3), (5, 0, 0, 0)]),
    latency_counts=st.sampled_from([(), (1,) * 19, (0, 7) * 9 + (1,)]),
    batch_sizes=st.dictionaries(st.integers(1, 8), COUNT, max_size=3).map(lambda sizes: tuple(sorted(sizes.items()))),
)


@given(ROWS, ROWS, ROWS)
def test_sums_do_not_depend_on_the_order(one: LiveCounts, other: LiveCounts, third: LiveCounts) -> None:
    assert add_counts(one, other) == add_counts(other, one)
    assert add_counts(add_counts(one, other), third) == add_counts(one, add_counts(other, third))
    assert add_counts(one, NOTHING) == one


@given(ROWS, ROWS)
def test_more_requests_are_no_restart(before: LiveCounts, more: LiveCounts) -> None:
    after = add_counts(before, more)
    assert not has_restarted(after, before)
    assert has_restarted(before, after) == (more.success + more.failure + more.executions > 0)
    assert without_gauges(after)[:11] == after[:11]


def test_version_without_requests_has_no_row() -> None:
    statistics = ModelStatistics("m", "1")
    assert statistics.live_counts(0, 0) is None
    assert statistics.live_counts(2, 1) == LiveCounts(pending=2, executing=1)
