import numpy as np
import pytest

from naiad.tools.perf.perf_plan import Concurrency, Measuring, Phase, Ramp, RequestRate, Schedule, Stop
from naiad.tools.perf.records import FailureKind
from naiad.tools.perf.statistics.stability import is_window_complete, verdict
from support.simulated_measurements import bimodal, columns_of, queue_open, stall, steady, trend

SECOND = 1_000_000_000
CLOSED = Concurrency(1)
EMPTY = columns_of(np.zeros(0), np.zeros(0))


def confidence(arrays, seconds, load=CLOSED, **measuring):
    return verdict(Measuring(**measuring), columns_of(*arrays), [0], 0, int(seconds * SECOND), load)


@pytest.fixture
def random():
    return np.random.default_rng(5)


def test_steady_model_is_stable_after_one_second(random):
    arrays = steady(random)
    assert not confidence(arrays, 0.9).is_done
    state = confidence(arrays, 1.0)
    assert state.is_done
    assert state.is_stable
    assert "95 % confidence" in state.reason


def test_outcome_ignores_requests_after_look(random):
    arrays = queue_open(random)
    first = confidence(arrays, 1.25, RequestRate(700))
    assert first == confidence(arrays, 1.5, RequestRate(700))


@pytest.mark.parametrize(
    ("simulate", "expected"),
    [
        (lambda random: bimodal(random, 1, 0.02), "two modes: 98 % of requests near 1 ms, 2 % near 50 ms"),
        (trend, "latency rises by 4"),
        (lambda random: stall(random, 10), "stalled: no response for 2.01 s, 10.0 s after the begin"),
    ],
)
def test_unstable_run_names_its_cause(random, simulate, expected):
    arrays = simulate(random)
    state = confidence(arrays, 50, stability_percent=0.5)
    assert state.is_done
    assert not state.is_stable
    assert expected in state.reason


def test_queue_that_grows_is_not_steady():
    due = np.arange(0, 60, 0.01)
    ends = np.cumsum(np.full(len(due), 0.011))
    state = confidence((ends, ends - due), 50, RequestRate(100))
    assert not state.is_stable
    assert "not in a steady state; the server may be slower than the load" in state.reason


def test_percentile_needs_enough_requests():
    ends = np.arange(1, 600) / 100
    state = confidence((ends, np.full(len(ends), 0.001)), 1, percentile=99)
    assert not state.is_done
    assert state.reason == "100 requests, p99 latency needs 1000"


def test_too_few_requests_are_not_stable():
    state = confidence((np.array([1.0, 2.0]), np.array([1.0, 1.0])), 50)
    assert state.is_done
    assert not state.is_stable
    assert "2 requests" in state.reason


def test_failures_alone_end_after_one_window():
    columns = columns_of(np.arange(1, 100) / 10, np.full(99, 0.01))
    columns.failure[:] = 1
    columns.failures = [FailureKind("connection", "refused", 99)]
    assert not verdict(Measuring(), columns, [0], 0, 3 * SECOND, CLOSED).is_done
    state = verdict(Measuring(), columns, [0], 0, 8 * SECOND, CLOSED)
    assert state.is_done
    assert not state.is_stable
    assert "connection: refused" in state.reason


def test_silent_server_lasts_until_limit():
    assert not verdict(Measuring(), EMPTY, [0], 0, 49 * SECOND, CLOSED).is_done
    state = verdict(Measuring(), EMPTY, [0], 0, 50 * SECOND, CLOSED)
    assert (state.is_done, state.is_stable, state.reason) == (
        True,
        False,
        "no request ended in the first 50 s, the longest time of this load",
    )


def windows(counts, latency_ms=1.0, *, seconds=1, **measuring):
    """Windows of `seconds` with a number of requests each."""
    ends = np.concatenate(
        [number * seconds + (np.arange(count) + 0.5) / count * seconds for number, count in enumerate(counts)]
    )
    columns = columns_of(ends, np.broadcast_to(np.asarray(latency_ms) / 1e3, ends.shape))
    boundaries = [number * seconds * SECOND for number in range(len(counts) + 1)]
    settings = Measuring(stop=Stop.TIME_WINDOWS, **measuring)
    return verdict(settings, columns, boundaries, 0, boundaries[-1], CLOSED)


def test_three_agreeing_windows_are_stable():
    assert not windows([100, 100]).is_done
    assert windows([10, 100, 110, 105]).is_stable
    assert not windows([100, 112, 105]).is_done


def test_windows_within_ratio_are_stable():
    assert windows([100, 110, 100]).is_stable  # 1.10 is within 10 %
    assert not windows([100, 111, 100]).is_stable


def test_windows_judge_latency_too():
    latency = np.repeat([1.0, 1.2, 1.0], 100)
    state = windows([100, 100, 100], latency)
    assert not state.is_stable
    assert "mean latency by 20.0 %" in state.reason


def test_windows_end_at_trials():
    state = windows([100, 200, 100, 200], max_trials=4)
    assert (state.is_done, state.is_stable) == (True, False)


def test_empty_window_is_not_stable():
    state = windows([100, 0, 100])
    assert (state.is_stable, state.reason) == (False, "a window has no success")


def test_windows_over_latency_limit_end():
    state = windows([100, 200, 100], 5.0, latency_limit_us=4000)
    assert (state.is_done, state.is_stable) == (True, False)


def test_time_window_is_stretched():
    measuring = Measuring(stop=Stop.TIME_WINDOWS, window_ms=1000)
    assert not is_window_complete(measuring, EMPTY, 0, int(1.1 * SECOND))
    assert is_window_complete(measuring, EMPTY, 0, int(1.2 * SECOND))


def test_count_window_needs_count_and_second(random):
    measuring = Measuring(stop=Stop.COUNT_WINDOWS, window_requests=1500)
    columns = columns_of(*steady(random))
    assert not is_window_complete(measuring, columns, 0, int(1.4 * SECOND))
    assert is_window_complete(measuring, columns, 0, int(1.6 * SECOND))
    assert not is_window_complete(Measuring(stop=Stop.COUNT_WINDOWS), columns, 0, SECOND - 1)


@pytest.mark.parametrize(("latencies_s", "is_done"), [((0.1, 0.2, 0.3), True), ((0.04, 0.2, 0.3), False)])
def test_every_window_over_the_limit_ends_the_load(latencies_s, is_done):
    ends = np.arange(0.1, 3.05, 0.1)
    columns = columns_of(ends, np.repeat(latencies_s, 10))
    measuring = Measuring(stop=Stop.TIME_WINDOWS, window_ms=1000, latency_limit_us=50_000)
    state = verdict(measuring, columns, [0, SECOND, 2 * SECOND, 3 * SECOND], 0, 3 * SECOND, CLOSED)
    assert (state.is_done, state.is_stable) == (is_done, False)


def test_request_count_ends_at_count(random):
    columns = columns_of(*steady(random))
    measuring = Measuring(stop=Stop.REQUEST_COUNT, request_count=500)
    assert not verdict(measuring, columns, [0], 0, SECOND // 4, CLOSED).is_done
    state = verdict(measuring, columns, [0], 0, SECOND, CLOSED)
    assert state.is_done
    assert state.is_stable


@pytest.mark.parametrize(
    ("simulate", "expected"),
    [
        (lambda random: trend(random, 200.0), "500 of 500 requests ended; latency rises by"),
        (lambda random: stall(random, 0.2), "500 of 500 requests ended; the server stalled: no response for 2"),
        (lambda random: [each[:25] for each in steady(random)], "25 of 25 requests ended, and a verdict needs 30"),
    ],
)
def test_request_count_of_an_unsteady_server(random, simulate, expected):
    ends, latencies = (each[:500] for each in simulate(random))
    columns = columns_of(ends, latencies)
    measuring = Measuring(stop=Stop.REQUEST_COUNT, request_count=len(ends))
    state = verdict(measuring, columns, [0], 0, int(ends.max() * SECOND) + 1, CLOSED)
    assert (state.is_done, state.is_stable) == (True, False)
    assert state.reason.startswith(expected)


def test_replay_behind_its_schedule_says_so(random):
    due = np.arange(0, 20, 0.01)
    columns = columns_of(due + 0.002, np.full(len(due), 0.002))
    schedule = Schedule(tuple(int(each * SECOND) for each in due))
    assert verdict(Measuring(), columns, [0], 0, 21 * SECOND, schedule).is_stable
    columns.sent_ns = columns.sent_ns + np.linspace(0, 50 * SECOND, len(due)).astype(np.int64)
    state = verdict(Measuring(), columns, [0], 0, 80 * SECOND, schedule)
    assert state.is_done
    assert not state.is_stable
    assert "the replay is 50 s behind its schedule" in state.reason


def test_unsent_requests_of_a_schedule_are_not_late(random):
    columns = columns_of(np.arange(1.0, 3.0), np.ones(2))
    columns.sent_ns = np.zeros(2, np.int64)  # The connection broke before they were sent.
    assert verdict(Measuring(), columns, [0], 0, 4 * SECOND, Schedule((0, SECOND))).is_stable


def test_schedule_and_ramp_are_played_out(random):
    columns = columns_of(*steady(random))
    schedule = Schedule(tuple(range(1500)))
    assert not verdict(Measuring(), columns, [0], 0, SECOND, schedule).is_done
    assert verdict(Measuring(), columns, [0], 0, 2 * SECOND, schedule).is_done
    ramp = Ramp((Phase(2.0, 10, 100), Phase(1.0, 100, 100)))
    assert not verdict(Measuring(), columns, [0], 0, int(2.9 * SECOND), ramp).is_done
    assert verdict(Measuring(), columns, [0], 0, 3 * SECOND, ramp).is_done
