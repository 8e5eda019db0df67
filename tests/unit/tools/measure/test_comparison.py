import dataclasses

import numpy as np
import pytest

from naiad.tools.measure.comparison import Change, compare
from naiad.tools.measure.result import Interval, Result
from naiad.tools.perf.perf_plan import Concurrency, ModelLoad, Plan, Protocol, ServerTarget
from naiad.tools.perf.records import GeneratorFacts, Measurement
from naiad.tools.perf.statistics.row import row
from support.simulated_comparisons import CASES, changes
from support.simulated_measurements import columns_of

PAIRS = 20
FACTS = GeneratorFacts(1, 1.0, 0.1, 0.1, np.zeros(0, np.int64), 1e6)
PLAN = Plan(ServerTarget("http://localhost", Protocol.HTTP), [ModelLoad("m")], Concurrency(1))
EMPTY = row(PLAN, 0, Concurrency(1), Measurement(0, 10**9, [0, 10**9], columns_of(np.zeros(0), np.zeros(0)), FACTS))


def around(value, share=0.01):
    return Interval(value, value * (1 - share), value * (1 + share))


def a_row(rate=100.0, latency=10.0, *, share=0.01, value=1.0, mode="concurrency", model="m"):
    times = dataclasses.replace(
        EMPTY.latency, mean=around(latency, share), percentiles={99: around(latency * 2, share)}
    )
    return dataclasses.replace(
        EMPTY, mode=mode, value=value, model=model, throughput=around(rate, share), latency=times
    )


def result_of(*rows, percentile=None):
    return Result([], "", {}, percentile, rows)


def verdicts(old, new, limit=5.0):
    return [each.change for each in compare(result_of(*old), result_of(*new), limit).figures]


def test_equal_runs_are_same():
    found = compare(result_of(a_row()), result_of(a_row()), 5.0)
    assert [each.figure for each in found.figures] == ["throughput", "mean latency"]
    assert [each.change for each in found.figures] == [Change.SAME, Change.SAME]
    assert not found.is_worse_past_limit
    assert not found.is_repeated


def test_direction_of_a_change_counts():
    assert verdicts([a_row(100, 10)], [a_row(110, 9)]) == [Change.BETTER, Change.BETTER]
    assert verdicts([a_row(100, 10)], [a_row(90, 11)]) == [Change.WORSE_PAST_LIMIT, Change.WORSE_PAST_LIMIT]
    assert verdicts([a_row(100, 10)], [a_row(90, 11)], 20) == [Change.WORSE, Change.WORSE]


def test_wide_intervals_hide_change():
    assert verdicts([a_row(share=0.2)], [a_row(90, 11, share=0.2)]) == [Change.SAME, Change.SAME]


def test_repetitions_measure_variation():
    steady = [a_row(rate) for rate in (99.9, 100, 100.1)]
    slower = [a_row(rate) for rate in (97.9, 98, 98.1)]
    assert verdicts(steady, slower)[0] is Change.WORSE
    assert verdicts(steady[:1], slower[:1])[0] is Change.SAME
    wild = [a_row(rate) for rate in (70, 88, 115)]
    assert verdicts(wild, [a_row(rate) for rate in (60, 80, 105)])[0] is Change.SAME
    assert compare(result_of(*steady), result_of(*slower), 5).is_repeated


def test_many_loads_need_stronger_evidence():
    old = [a_row(value=float(number)) for number in range(40)]
    new = [a_row(94.5, value=float(number)) for number in range(40)]
    assert verdicts(old[:1], new[:1])[0] is Change.WORSE_PAST_LIMIT
    assert verdicts(old, new)[0] is Change.SAME


def test_judged_percentile_is_compared():
    found = compare(result_of(a_row()), result_of(a_row(latency=12), percentile=99), 5.0)
    assert found.figures[1].figure == "p99 latency"
    assert found.figures[1].change is Change.WORSE_PAST_LIMIT
    with pytest.raises(ValueError, match="no p97 of m concurrency 1 batch 1; measure it with --percentile 97"):
        compare(result_of(a_row()), result_of(a_row(), percentile=97), 5.0)


def test_loads_of_one_run_are_named():
    found = compare(result_of(a_row(), a_row(value=2)), result_of(a_row(), a_row(mode="request_rate")), 5.0)
    assert sorted(found.unmatched) == ["m concurrency 2 batch 1", "m request rate 1 batch 1"]
    with pytest.raises(ValueError, match="no load in common: the baseline has m concurrency 1 batch 1, the current"):
        compare(result_of(a_row()), result_of(a_row(model="other")), 5.0)


def test_run_without_success_is_worse():
    assert verdicts([a_row()], [a_row(0, 0)]) == [Change.WORSE_PAST_LIMIT]
    assert verdicts([a_row(0, 0)], [a_row()]) == [Change.BETTER]
    assert verdicts([a_row(0, 0)], [a_row(0, 0)]) == [Change.SAME]


def case_named(name):
    return next(case for case in CASES if case.name == name)


@pytest.mark.parametrize("name", ["steady, drift 1 %, single", "steady, drift 3 %, 5 repetitions"])
def test_false_alarms_and_detections_of_twenty(name):
    case = case_named(name)
    alike = [changes(case, seed, 1.0) for seed in range(PAIRS)]
    slower = [changes(case, 10_000 + seed, 1.1) for seed in range(PAIRS)]
    assert sum(Change.WORSE_PAST_LIMIT in each for each in alike) <= 1
    assert sum(Change.WORSE_PAST_LIMIT in each for each in slower) >= 19


def test_figures_that_say_little_are_named():
    steady = dataclasses.replace(a_row(), is_stable=True)
    unstable = dataclasses.replace(steady, is_stable=False)
    limited = dataclasses.replace(steady, generator=dataclasses.replace(EMPTY.generator, limited_by="generator"))
    assert compare(result_of(steady), result_of(steady), 5.0).doubts == []
    assert compare(result_of(limited), result_of(steady, unstable), 5.0).doubts == [
        "m concurrency 1 batch 1 is limited by the load generator in the baseline: it says little about the server",
        "m concurrency 1 batch 1 is not stable now",
    ]


def test_other_places_are_named():
    one, two = (
        dataclasses.replace(
            result_of(dataclasses.replace(a_row(), is_stable=True)),
            environment={"protocol": protocol, "cores": "2", "server_version": version},
        )
        for protocol, version in (("http", "1"), ("grpc", "2"))
    )
    assert compare(one, two, 5.0).doubts == ["protocol was http in the baseline and is grpc"]
