"""A server from its live stream: rates, restarts, and quantiles of the histogram."""

from typing import Any

import pytest

from naiad.client.live_events import LiveEvent
from naiad.client.live_view import LiveView, quantile_us

BOUNDS = [100, 200, 500]
COUNTERS = (
    *("success", "failure", "executions", "inferences", "request_ns", "queue_ns", "compute_input_ns", "compute_ns"),
    *("compute_output_ns", "cache_hits", "cache_misses", "pending", "executing"),
)


def counts(latency_counts: list[int] | None = None, **values: int) -> dict[str, Any]:
    zero = dict.fromkeys(COUNTERS, 0)
    return {**zero, "failures": {}, "batch_sizes": {}, "bounds_us": BOUNDS, **values} | {
        "latency_counts": latency_counts or [0, 0, 0, 0]
    }


def sample(time_ms: int, cpu_s: float = 0.0, **versions: dict[str, Any]) -> LiveEvent:
    process = {"cpu_s": cpu_s, "resident_bytes": 1, "in_flight": 0}
    named = {name.replace("_", "/"): value for name, value in versions.items()}
    return LiveEvent("sample", {"time_ms": time_ms, "process": process, "versions": named})


def models(*names: str) -> LiveEvent:
    versions = [{"version": "1", "state": "READY", "reason": ""}]
    return LiveEvent("models", {"models": [{"name": n, "backend": "x", "versions": versions} for n in names]})


def test_rates_are_of_the_time_between_samples() -> None:
    view = LiveView()
    view.apply(models("m"))
    assert view.apply(sample(1000, 1.0, m_1=counts(success=5)))
    assert view.rates("m/1").requests_per_s == 0.0
    view.apply(
        sample(
            3000, 2.0, m_1=counts([0, 20, 0, 0], success=25, executions=10, inferences=40, queue_ns=20_000, failure=4)
        )
    )
    rates = view.rates("m/1")
    assert (rates.requests_per_s, rates.failures_per_s, rates.batch_size, rates.queue_us) == (10.0, 2.0, 4.0, 1.0)
    assert rates.p50_us == 150.0
    assert view.cpu_cores == 0.5
    view.apply(sample(5000, 2.0))  # nothing has changed
    assert view.rates("m/1").requests_per_s == 5.0
    assert view.totals("m/1")["success"] == 25


def test_smaller_counters_are_a_new_start() -> None:
    view = LiveView()
    view.apply(models("m"))
    view.apply(sample(1000, m_1=counts([0, 50, 0, 0], success=50)))
    view.apply(sample(2000, m_1=counts([2, 0, 0, 0], success=2)))
    rates = view.rates("m/1")
    assert rates.requests_per_s == 2.0
    assert rates.p99_us is not None
    assert rates.p99_us <= 100.0


def test_unloaded_version_and_restarted_server_are_forgotten() -> None:
    view = LiveView()
    view.apply(LiveEvent("server", {"started_ms": 1}))
    view.apply(models("m", "n"))
    view.apply(sample(1000, m_1=counts(success=1), n_1=counts(success=1)))
    view.apply(models("n"))
    assert list(view.versions()) == ["n/1"]
    view.apply(LiveEvent("server", {"started_ms": 2}))
    assert list(view.versions()) == []
    assert not view.apply(LiveEvent("gone", {"reason": "the server shuts down"}))
    assert view.gone_reason == "the server shuts down"


def test_old_steps_leave_the_window() -> None:
    view = LiveView()
    view.apply(models("m"))
    view.apply(sample(1000, m_1=counts()))
    view.apply(sample(2000, m_1=counts(success=1000)))
    for second in range(3, 14):
        view.apply(sample(1000 * second))
    assert view.rates("m/1").requests_per_s == 0.0


def test_clock_that_was_set_back_begins_again() -> None:
    view = LiveView()
    view.apply(models("m"))
    view.apply(sample(3_600_000, m_1=counts()))
    view.apply(sample(3_601_000, m_1=counts(success=1000)))
    view.apply(sample(1000, m_1=counts(success=1001)))
    assert view.rates("m/1").requests_per_s == 0.0
    view.apply(sample(2000, m_1=counts(success=1003)))
    assert view.rates("m/1").requests_per_s == 2.0


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        ([0, 0, 0, 0], 0.5, None),
        ([10, 0, 0, 0], 0.5, 50.0),
        ([10, 10, 0, 0], 0.75, 150.0),
        ([0, 0, 10, 0], 1.0, 500.0),
        ([0, 0, 0, 3], 0.5, 500.0),
    ],
)
def test_quantiles_are_interpolated(buckets: list[int], share: float, expected: float | None) -> None:
    assert quantile_us(buckets, BOUNDS, share) == expected
