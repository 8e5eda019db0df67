import dataclasses

import numpy as np
import pytest

from naiad.tools.perf.statistics.timing import parts
from support.simulated_measurements import columns_of

TIMING = 'clock;desc="{arrival}", queue;dur=2, compute;dur=3'


def timed_columns(count=100, clock_offset_ns=0):
    """Responses after 10 ms: 1 ms of encoding, 1 ms on the way, 5 ms on the server, 3 ms back."""
    columns = columns_of(np.arange(1, count + 1) / 10, np.full(count, 0.01))
    columns.sent_ns = columns.start_ns + 1_000_000
    arrivals = columns.start_ns + 2_000_000 + clock_offset_ns
    timings = [(place, TIMING.format(arrival=arrivals[place])) for place in range(0, count, 2)]
    return dataclasses.replace(columns, timings=timings)


def test_parts_sum_to_latency():
    found = parts(timed_columns(), np.arange(100), 97)
    assert found is not None
    assert found.requests == 50
    assert found.is_same_host
    assert list(found.percentiles_us["queue"]) == [50, 90, 95, 97, 99]
    assert found.percentiles_us["compute"][99] == 3000
    assert found.mean_us["client_encode"] == 1000
    assert found.mean_us["receive"] == 3000
    assert sum(found.mean_us.values()) == pytest.approx(10_000)


def test_only_chosen_requests_count():
    found = parts(timed_columns(), np.arange(11), None)
    assert found is not None
    assert found.requests == 6
    assert parts(timed_columns(), np.array([1, 3]), None) is None


def test_foreign_clock_is_another_host():
    found = parts(timed_columns(clock_offset_ns=10**15), np.arange(100), None)
    assert found is not None
    assert not found.is_same_host
    assert found.mean_us["send"] == pytest.approx(2000)


def test_foreign_timings_give_no_parts():
    columns = dataclasses.replace(timed_columns(), timings=[(0, "cdn;dur=5")])
    assert parts(columns, np.arange(100), None) is None


def test_many_timings_are_thinned():
    found = parts(timed_columns(60_000), np.arange(60_000), None)
    assert found is not None
    assert 5_000 <= found.requests <= 10_000
