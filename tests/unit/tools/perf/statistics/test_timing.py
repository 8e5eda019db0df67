"""The server's timing is read, and joined with the moments of the client."""

import numpy as np
import pytest

from naiad.tools.perf.statistics.timing import (
    RequestParts,
    ServerTiming,
    parse_server_timing,
    part_percentiles,
    waterfall,
)

TIMING = ServerTiming(1000, 10, 20, 30, 0, 40, 50, 60, 70)


def test_parts_and_steps_are_read() -> None:
    value = 'parse;dur=0.25, hold;dur=5, cache;dur=1e-3, clock;desc="42", step_a;dur=1.5, step_b.c;dur=2'
    steps = (("a", 1_500_000), ("b.c", 2_000_000))
    assert parse_server_timing(value) == ServerTiming(
        42, parse_ns=250_000, hold_ns=5_000_000, cache_ns=1000, steps=steps
    )


@pytest.mark.parametrize(
    "value",
    ["", "cdn;dur=3", "parse;dur=1", "clock", 'clock;desc="soon"', f'clock;desc="{"9" * 30}"'],
)
def test_without_a_clock_there_is_none(value: str) -> None:
    assert parse_server_timing(value) is None


@pytest.mark.parametrize(
    "other",
    ['cdn;desc="a, b;dur=1";dur=3', "decode;dur=9.8", "parse;dur=nan", "parse;dur=-1", "queue;dur=", ";;"],
)
def test_other_metrics_are_ignored(other: str) -> None:
    assert parse_server_timing(f"{other}, clock;desc=7, queue;dur=1") == ServerTiming(7, queue_ns=1_000_000)


def test_parts_of_one_clock_are_contiguous() -> None:
    parts, is_one_clock = waterfall(800, 950, 1290, 1300, TIMING)
    assert is_one_clock
    assert parts == RequestParts(150, 50, 10, 20, 30, 0, 40, 50, 60, 70, 20)
    assert sum(parts) == 500


def test_server_may_read_before_all_is_sent() -> None:
    parts, is_one_clock = waterfall(800, 1100, 1290, 1300, TIMING)
    assert is_one_clock
    assert (parts.client_encode, parts.send, parts.receive, sum(parts)) == (200, 0, 20, 500)


@pytest.mark.parametrize("arrival_ns", [0, 799, 1011, 10**15])
def test_other_clock_halves_the_network(arrival_ns: int) -> None:
    other = ServerTiming(arrival_ns, *TIMING.durations_ns)
    parts, is_one_clock = waterfall(800, 900, 1290, 1300, other)
    assert not is_one_clock
    assert parts == RequestParts(100, 55, 10, 20, 30, 0, 40, 50, 60, 70, 65)


def test_times_beyond_the_end_are_cut() -> None:
    parts, is_one_clock = waterfall(0, 10, 50, 60, TIMING)
    assert not is_one_clock
    assert parts == RequestParts(10, 0, 10, 20, 20, 0, 0, 0, 0, 0, 0)


def test_percentiles_are_by_nearest_rank() -> None:
    rows = [RequestParts(*[number] * 10, 7) for number in range(1, 101)]
    found = part_percentiles(rows, (50, 99, 100))
    assert list(found) == list(RequestParts._fields)
    np.testing.assert_array_equal(found["compute"], [50, 99, 100])
    np.testing.assert_array_equal(found["receive"], [7, 7, 7])


def test_percentiles_need_a_request() -> None:
    with pytest.raises(ValueError, match="at least one request"):
        part_percentiles([], (50,))
