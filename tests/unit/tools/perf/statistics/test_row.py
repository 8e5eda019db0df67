import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.tools.measure.result import error_share
from naiad.tools.perf.perf_plan import (
    Concurrency,
    Intervals,
    Measuring,
    ModelLoad,
    Phase,
    Plan,
    Protocol,
    Ramp,
    RequestRate,
    Schedule,
    ServerTarget,
    Stop,
)
from naiad.tools.perf.records import FailureKind, GeneratorFacts, Measurement
from naiad.tools.perf.statistics.row import mode_and_value, row
from support.simulated_measurements import columns_of, stall, steady

SECOND = 1_000_000_000


def plan_of(models=("m",), **measuring):
    return Plan(
        service=ServerTarget("http://localhost:8000", Protocol.HTTP),
        models=[ModelLoad(name, batch_size=2) for name in models],
        loads=Concurrency(1),
        measuring=Measuring(**measuring),
    )


def measured(arrays, seconds, **changes):
    columns = columns_of(*arrays)
    end = int(seconds * SECOND)
    facts = GeneratorFacts(1, seconds, 0.1, 0.1, np.zeros(0, np.int64), 1e6)
    return dataclasses.replace(Measurement(0, end, [0, end], columns, facts), **changes)


@pytest.fixture
def random():
    return np.random.default_rng(5)


def test_figures_of_steady_model(random):
    found = row(plan_of(), 0, Concurrency(1), measured(steady(random), 2))
    assert (found.mode, found.value, found.model, found.batch_size) == ("concurrency", 1, "m", 2)
    assert found.throughput.value == pytest.approx(1000, rel=0.01)
    assert found.inferences_per_s == pytest.approx(2000, rel=0.01)
    assert found.latency.mean.value == pytest.approx(1000, rel=0.01)
    assert list(found.latency.percentiles) == [50, 90, 95, 99]
    assert found.is_stable
    assert found.request_count == sum(count for _, count in found.histogram)
    assert found.first_response is None
    assert found.server is None
    assert len(found.windows) == 20
    assert found.windows[1][0] == pytest.approx(0.1)
    assert found.windows[1][1] == pytest.approx(1000, rel=0.05)


def test_silent_requests_are_a_share_of_all(random):
    """They wait since windows that are not in the result: their share of its requests would say nothing."""
    measurement = measured(steady(random), 2, begin_ns=SECOND * 3 // 2)
    ended = len(measurement.columns.end_ns)
    for is_answered in (False, False, True):
        measurement.unended.add(0, 5 * SECOND, is_answered=is_answered)
    measurement.ended_outside[0] = 103
    found = row(plan_of(), 0, RequestRate(1000), measurement)
    (silent,) = found.errors
    assert (silent.kind, silent.count, silent.among) == ("unanswered", 2, ended + 103)
    assert found.request_count < ended // 2
    assert error_share(found.errors, found.request_count) == 2 / silent.among


def test_stall_counts_from_intended_send(random):
    found = row(plan_of(), 0, RequestRate(100), measured(stall(random, 10), 20))
    assert found.latency.percentiles[99].value >= 1.7e6


def test_service_counts_from_actual_send(random):
    measurement = measured(stall(random, 10), 20)
    columns = measurement.columns
    columns.start_ns = columns.end_ns - 900_000
    columns.sent_ns = columns.end_ns - 800_000
    columns.first_ns = columns.end_ns - 100_000
    found = row(plan_of(), 0, RequestRate(100), measurement)
    assert found.service.max_us == pytest.approx(800)
    assert found.client.send_us == pytest.approx(100)
    assert found.client.receive_us == pytest.approx(100)


def test_goodput_counts_responses_within_slo():
    latencies = np.where(np.arange(1000) % 4, 0.001, 0.02)
    found = row(plan_of(slo_us=5000), 0, Concurrency(1), measured((np.arange(1, 1001) / 1000, latencies), 1))
    assert found.throughput.value == 1000
    assert found.goodput.value == 750


def test_errors_are_counted_by_kind():
    measurement = measured((np.arange(1, 101) / 100, np.full(100, 0.001)), 1)
    measurement.columns.failure[:5] = 2
    measurement.columns.failure[5:7] = 1
    measurement.columns.failures = [FailureKind("timeout", "late", 2), FailureKind("unavailable", "busy", 5)]
    found = row(plan_of(), 0, Concurrency(1), measurement)
    assert [(each.kind, each.count, each.message) for each in found.errors] == [
        ("unavailable", 5, "busy"),
        ("timeout", 2, "late"),
    ]
    assert found.request_count == 93


def with_failures(kind, count, of=100):
    measurement = measured((np.arange(1, of + 1) / of, np.full(of, 0.001)), 1)
    measurement.columns.failure[:count] = 1
    measurement.columns.failures = [FailureKind(kind, "it failed", count)]
    return measurement


@pytest.mark.parametrize(
    ("kind", "count", "is_stable", "words"),
    [
        ("wrong_answer", 100, False, "each of 100 requests failed, most of them with wrong_answer: it failed"),
        ("unavailable", 100, False, "each of 100 requests failed, most of them with unavailable"),
        ("wrong_answer", 1, False, "1 of 100 answers were wrong; the rest: 100 of 100 requests ended"),
        ("validation", 40, False, "40 of 100 answers were wrong"),
        ("unavailable", 60, False, "60 of 100 requests failed"),
        ("unavailable", 5, True, "5 of 100 requests failed; the rest: 100 of 100 requests ended"),
    ],
)
@pytest.mark.parametrize("load", [Concurrency(1), RequestRate(100)])
def test_failures_are_in_the_verdict(kind, count, is_stable, words, load):
    plan = plan_of(stop=Stop.REQUEST_COUNT, request_count=100)
    found = row(plan, 0, load, with_failures(kind, count))
    assert (found.is_stable, words in found.verdict) == (is_stable, True)


@pytest.mark.parametrize("load", [Ramp((Phase(1, 0, 200),)), Schedule(tuple(range(100)))])
def test_load_played_without_success_is_not_stable(load):
    found = row(plan_of(), 0, load, with_failures("wrong_answer", 100))
    assert (found.is_stable, found.verdict.startswith("each of 100 requests failed")) == (False, True)


def test_ramp_without_any_end_is_not_stable():
    found = row(plan_of(), 0, Ramp((Phase(1, 0, 200),)), measured((np.zeros(0), np.zeros(0)), 1))
    assert (found.is_stable, found.verdict) == (False, "no request has ended: the ramp was played for 1 s")


def test_verdict_is_true_of_requests_after_the_end():
    """The generator is asked a little after the end: seven requests are in the row."""
    found = row(plan_of(duration_ms=1), 0, Concurrency(1), measured((np.arange(2, 9) / 1e3, np.full(7, 0.001)), 0.05))
    assert found.request_count == 7
    assert found.verdict == "no request ended in the first 0.001 s, the longest time of this load"


def test_models_share_measurement():
    measurement = measured((np.arange(1, 101) / 100, np.full(100, 0.001)), 1)
    measurement.columns.model[::4] = 1
    rows = [row(plan_of(("a", "b")), number, Concurrency(1), measurement) for number in range(2)]
    assert [each.request_count for each in rows] == [75, 25]
    assert [each.model for each in rows] == ["a", "b"]


def test_decoupled_and_sequences_have_figures():
    measurement = measured((np.arange(1, 101) / 100, np.full(100, 0.005)), 1)
    columns = measurement.columns
    columns.first_ns = columns.end_ns - 4_000_000
    columns.responses[:] = 3
    columns.sequence_end[::10] = 1
    columns.gaps_ns = np.full(200, 2_000_000)
    found = row(plan_of(), 0, Concurrency(1), measurement)
    assert found.response_throughput == 300
    assert found.sequences_per_s == 10
    assert found.first_response is not None
    assert found.first_response.mean.value == pytest.approx(1000)
    assert found.between_responses is not None
    assert found.between_responses.percentiles[50].value == 2000


def test_counted_run_ends_with_last_response():
    plan = plan_of(stop=Stop.REQUEST_COUNT, request_count=100)
    found = row(plan, 0, Concurrency(1), measured((np.arange(1, 101) / 100, np.full(100, 0.001)), 1.7))
    assert found.duration_s == 1
    assert found.throughput.value == 100
    assert found.is_stable


def test_interrupted_measurement_is_not_stable(random):
    found = row(plan_of(), 0, Concurrency(1), measured(steady(random), 2, interrupted="server"))
    assert not found.is_stable
    assert found.verdict.startswith("ended early (server)")
    assert found.interrupted == "server"


def test_windows_of_plan_are_timeline():
    arrays = np.arange(1, 301) / 100, np.full(300, 0.001)
    measurement = measured(arrays, 3, boundaries_ns=[0, SECOND, 2 * SECOND, 3 * SECOND])
    found = row(plan_of(stop=Stop.TIME_WINDOWS), 0, Concurrency(1), measurement)
    assert found.windows == [(0.0, 100.0, 1000.0), (1.0, 100.0, 1000.0), (2.0, 100.0, 1000.0)]
    assert found.is_stable


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (Concurrency(4), ("concurrency", 4)),
        (RequestRate(50.0), ("request_rate", 50)),
        (Intervals((1_000_000, 3_000_000)), ("intervals", 500)),
        (Schedule((0, SECOND, 2 * SECOND)), ("schedule", 1.5)),
        (Schedule((0,)), ("schedule", 0)),
        (Ramp((Phase(2, 0, 100), Phase(2, 100, 100))), ("ramp", 75)),
    ],
)
def test_loads_have_mode_and_value(load, expected):
    assert mode_and_value(load) == expected


@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 2), st.booleans()), max_size=60),
    st.sampled_from([0.0, 1e-9, 1.0, 2.0]),
    st.sampled_from([None, 50, 99, 100]),
    st.sampled_from(Stop),
)
def test_any_measurement_gives_valid_json(requests, seconds, percentile, stop):
    ends, latencies, failed = (np.array([each[n] for each in requests], float) for n in range(3))
    measurement = measured((ends, latencies), seconds)
    order = np.argsort(ends, kind="stable")
    measurement.columns.failure = failed[order].astype(np.int16)
    measurement.columns.failures = [FailureKind("timeout", "late", 1)]
    plan = plan_of(stop=stop, percentile=percentile, request_count=3)
    found = row(plan, 0, RequestRate(10), measurement)
    json.dumps(dataclasses.asdict(found), allow_nan=False)
    in_time = (measurement.columns.end_ns > 0) & (measurement.columns.end_ns <= measurement.end_ns)
    assert found.request_count == int((in_time & (measurement.columns.failure == 0)).sum())
