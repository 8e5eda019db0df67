"""Simulated requests whose true throughput and latency are known, measured as a session of `naiad perf` does it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from naiad.tools.measure.intervals import Sample
from naiad.tools.perf.perf_plan import Concurrency, Load, Measuring, RequestRate
from naiad.tools.perf.records import Columns
from naiad.tools.perf.statistics.stability import judged_latency, successes, verdict

Random = np.random.Generator
Arrays = tuple[np.ndarray, np.ndarray]
"""Ends and latencies in s."""
_LONGEST_S = 51.0


def columns_of(ends_s: np.ndarray, latencies_s: np.ndarray) -> Columns:
    order = np.argsort(ends_s, kind="stable")
    ends = (ends_s[order] * 1e9).astype(np.int64)
    starts = ends - (latencies_s[order] * 1e9).astype(np.int64)
    zeros = np.zeros(len(ends), np.int64)
    return Columns(
        intended_ns=starts,
        start_ns=starts,
        sent_ns=starts,
        first_ns=ends,
        end_ns=ends,
        responses=np.ones(len(ends), np.int32),
        failure=zeros.astype(np.int16),
        model=zeros.astype(np.int16),
        template=zeros.astype(np.int32),
        sequence_id=zeros.astype(np.uint64),
        sequence_end=zeros.astype(np.int8),
        gaps_ns=zeros[:0],
    )


def closed_loop(draw: Callable[[int], np.ndarray], concurrency: int, mean_s: float) -> Arrays:
    """Requests that do not disturb each other."""
    count = int(_LONGEST_S / mean_s * 1.3) + 100
    latencies = [draw(count) for _ in range(concurrency)]
    return np.concatenate([np.cumsum(each) for each in latencies]), np.concatenate(latencies)


def bimodal(random: Random, concurrency: int = 1, slow_share: float = 0.5) -> Arrays:
    """1 ms or 50 ms, each with 1 % of jitter."""

    def draw(count: int) -> np.ndarray:
        return np.where(random.random(count) < slow_share, 0.05, 0.001) * random.normal(1, 0.01, count)

    return closed_loop(draw, concurrency, 0.001 + 0.049 * slow_share)


def steady(random: Random) -> Arrays:
    return closed_loop(lambda count: 0.001 * random.normal(1, 0.01, count), 1, 0.001)


def queue_open(random: Random, service_s: float = 0.001, load: float = 0.7) -> Arrays:
    """M/M/1 from its steady state: latency is exponential with mean service / (1 - load)."""
    count = int(_LONGEST_S / service_s * load * 1.1) + 100
    arrivals = np.cumsum(random.exponential(service_s / load, count))
    services = np.cumsum(random.exponential(service_s, count))
    waiting = random.exponential(service_s / (1 - load)) if random.random() < load else 0.0
    starts = np.maximum.accumulate(arrivals - np.concatenate(([0.0], services[:-1])))
    ends = np.maximum(starts, arrivals[0] + waiting) + services
    return ends, ends - arrivals


def queue_closed(random: Random, concurrency: int = 8, service_s: float = 0.001) -> Arrays:
    """A server with exponential times and always the same number of requests."""
    ends = np.cumsum(random.exponential(service_s, int(_LONGEST_S / service_s * 1.1)))
    return ends, ends - np.concatenate((np.zeros(concurrency), ends[:-concurrency]))


def trend(random: Random, growth: float = 1.0) -> Arrays:
    """Latency that grows linearly, by `growth` over 50 s."""
    ends, latencies = steady(random)
    latencies = latencies * (1 + growth * ends / 50)
    return np.cumsum(latencies), latencies


def stall(random: Random, at_s: float = 0.6, stall_s: float = 2.0) -> Arrays:
    """100 requests/s on a timetable, one stall: latency counts from the intended send."""
    due = np.arange(0, _LONGEST_S, 0.01)
    latencies = 0.001 * random.normal(1, 0.01, len(due))
    ends = np.where((due >= at_s) & (due < at_s + stall_s), at_s + stall_s, due) + latencies
    return ends, ends - due


_ONE, _RATE = Concurrency(1), RequestRate(700.0)


@dataclass(frozen=True)
class Case:
    name: str
    simulate: Callable[[Random], Arrays]
    rate: float
    mean_us: float
    load: Load = _ONE
    percentile: int | None = None
    percentile_us: float = 0.0


CASES = [
    Case("bimodal 1/50 ms, concurrency 1", bimodal, 1 / 0.0255, 25_500),
    Case("bimodal 1/50 ms, concurrency 8", lambda random: bimodal(random, 8), 8 / 0.0255, 25_500, Concurrency(8)),
    Case(
        "bimodal, 5 % slow, concurrency 8", lambda random: bimodal(random, 8, 0.05), 8 / 0.00345, 3450, Concurrency(8)
    ),
    Case("M/M/1 at 0.7, open, 1 ms", queue_open, 700, 1000 / 0.3, _RATE),
    Case("M/M/1 at 0.7, open, 5 ms", lambda random: queue_open(random, 0.005), 140, 5000 / 0.3, _RATE),
    Case("M/M/1 at 0.7, open, 1 ms, p90", queue_open, 700, 0, _RATE, 90, 1000 / 0.3 * np.log(10)),
    Case("M/M/1 at 0.7, open, 1 ms, p99", queue_open, 700, 0, _RATE, 99, 1000 / 0.3 * np.log(100)),
    Case("queue of 8, closed", queue_closed, 1000, 8000, Concurrency(8)),
    Case("queue of 8, closed, p99", queue_closed, 1000, 0, Concurrency(8), 99, 15_999.9),
    Case("steady, 1 % jitter", steady, 1000, 1000),
    Case("steady, 1 % jitter, p99", steady, 1000, 0, Concurrency(1), 99, 1023.26),
]


@dataclass(frozen=True)
class Outcome:
    is_stable: bool
    seconds: float
    holds_rate: bool
    holds_latency: bool


def measure(case: Case, seed: int, measuring: Measuring | None = None) -> Outcome:
    """A run of `verdict` every 250 ms; the interval is that of all requests until the end."""
    measuring = measuring or Measuring(percentile=case.percentile)
    columns = columns_of(*case.simulate(np.random.default_rng(seed)))
    now_ns, step_ns = 0, 250_000_000
    while True:
        now_ns += step_ns
        state = verdict(measuring, columns, [0], 0, now_ns, case.load)
        if state.is_done:
            break
    sample = Sample(*successes(columns, 0, now_ns), 0, now_ns)
    rate, latency = sample.rate(), judged_latency(case.percentile, sample)
    true_us = case.percentile_us if case.percentile else case.mean_us
    return Outcome(
        state.is_stable, now_ns / 1e9, rate.low <= case.rate <= rate.high, latency.low <= true_us <= latency.high
    )
