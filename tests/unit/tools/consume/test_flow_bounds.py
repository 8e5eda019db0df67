"""How many messages are read at once."""

from hypothesis import given
from hypothesis import strategies as st

from naiad.tools.consume.flow_bounds import FlowBounds


def test_reads_grow_to_all_concurrent_requests() -> None:
    bounds = FlowBounds(0, 200)
    sizes = [bounds.size]
    for _ in range(4):
        bounds.learn(bounds.size, 100 * bounds.size)
        sizes.append(bounds.size)
    assert sizes == [16, 64, 200, 200, 200]
    assert bounds.limit == 400


def test_large_messages_are_read_one_by_one() -> None:
    bounds = FlowBounds(0, 200)
    bounds.learn(16, 16 << 30)
    assert bounds.size == 1
    bounds.learn(1, 100)
    assert bounds.size == 4


@given(
    st.integers(0, 5000), st.integers(1, 100_000), st.lists(st.tuples(st.integers(1, 1024), st.integers(0, 1 << 40)))
)
def test_a_read_always_fits_the_limit(wanted: int, rows: int, reads: list[tuple[int, int]]) -> None:
    bounds = FlowBounds(wanted, rows)
    for count, size_bytes in reads:
        bounds.learn(count, size_bytes)
        assert 1 <= bounds.size <= bounds.limit
    assert bounds.limit == wanted or not wanted


def test_reads_that_did_not_arrive_are_smaller():
    bounds = FlowBounds(0, 200)
    bounds.learn(16, 16)
    before = bounds.size
    bounds.shrink()
    assert bounds.size == before // 8
    bounds.shrink()
    assert bounds.size == 1
