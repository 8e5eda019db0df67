"""Gains, constraints, and differences within the noise."""

import math
from dataclasses import replace

import pytest

from naiad.tools.analyze.goal import Bound, Goal
from naiad.tools.analyze.point_measurement import Measured
from naiad.tools.analyze.search.goal_score import (
    Miss,
    combine,
    compare,
    gain,
    interval_gain,
    is_in_doubt,
    misses,
    percent_gain,
)
from naiad.tools.analyze.space import Point, Variant, settings_text
from naiad.tools.measure.result import Interval

POINT = Point((Variant("m", "m_config_0", {"max_batch_size": 2}),), 4)


def exact(value: float) -> Interval:
    return Interval(value, value, value)


def measured(throughput: float, p99_ms: float = 10.0, share: float = 0.0, model: str = "m") -> Measured:
    metrics = {
        "perf_throughput": Interval(throughput, throughput * (1 - share), throughput * (1 + share)),
        "perf_latency_p99": Interval(p99_ms, p99_ms * (1 - share), p99_ms * (1 + share)),
    }
    return Measured(POINT, metrics={model: metrics})


def test_gain_divides_by_mean_of_both() -> None:
    assert interval_gain("perf_throughput", exact(300.0), exact(100.0)).value == pytest.approx(1.0)
    assert interval_gain("perf_latency_p99", exact(300.0), exact(100.0)).value == pytest.approx(-1.0)


def test_weights_of_objectives_are_normalised() -> None:
    goals = {"m": Goal({"perf_throughput": 6.0, "perf_latency_p99": 2.0})}
    found = gain(goals, measured(300.0, 30.0), measured(100.0, 10.0))
    assert found.value == pytest.approx(0.75 - 0.25)


def test_models_count_by_their_weighting() -> None:
    goals = {"a": Goal(weighting=3.0), "b": Goal(weighting=1.0)}
    mine, theirs = (
        Measured(POINT, metrics={**measured(first, model="a").metrics, **measured(second, model="b").metrics})
        for first, second in ((300.0, 100.0), (100.0, 300.0))
    )
    assert gain(goals, mine, theirs).value == pytest.approx(0.75 - 0.25)


def test_difference_inside_intervals_is_tie() -> None:
    assert gain({}, measured(102.0, share=0.03), measured(100.0, share=0.03)).is_tie
    assert not gain({}, measured(120.0, share=0.03), measured(100.0, share=0.03)).is_tie


def test_miss_has_its_share_of_bound() -> None:
    goals = {"m": Goal(constraints={"perf_latency_p99": Bound(maximum=20.0), "perf_throughput": Bound(minimum=80.0)})}
    assert [str(each) for each in misses(goals, measured(60.0, 31.0))] == [
        "perf_latency_p99 is 31, 55 % over 20",
        "perf_throughput is 60, 25 % under 80",
    ]
    assert misses(goals, measured(80.0, 20.0)) == []


def test_unmeasured_constraint_is_not_met() -> None:
    goals = {"m": Goal(constraints={"gpu_used_memory": Bound(maximum=100.0)})}
    assert [str(each) for each in misses(goals, measured(60.0))] == ["gpu_used_memory was not measured"]


def test_measurement_outside_constraints_loses() -> None:
    goals = {"m": Goal(constraints={"perf_latency_p99": Bound(maximum=20.0)})}
    inside, outside, far = measured(10.0, 5.0), measured(100.0, 30.0), measured(1000.0, 90.0)
    assert compare(goals, inside, outside).value > 0
    assert compare(goals, outside, far).value > 0
    assert not compare(goals, inside, outside).is_tie


def test_miss_inside_interval_is_not_certain() -> None:
    goals = {"m": Goal(constraints={"perf_latency_p99": Bound(maximum=20.0)})}
    assert compare(goals, measured(10.0, 5.0, 0.1), measured(100.0, 20.5, 0.1)).is_tie


def test_percent_gain_is_of_the_baseline() -> None:
    assert percent_gain({}, measured(500.0), measured(150.0)).value == pytest.approx(233.3, abs=0.1)
    goals = {"m": Goal({"perf_latency_p99": 1.0})}
    assert percent_gain(goals, measured(1.0, 5.0), measured(1.0, 10.0)).value == pytest.approx(50.0)


def test_interval_of_a_gain_holds_both_intervals() -> None:
    found = percent_gain({}, measured(300.0, share=0.05), measured(100.0, share=0.05))
    # Independent errors of 5 % each, and 1.5 % between two measurements of a point.
    assert found.value == pytest.approx(200.0)
    width = (2 * 0.05**2 + 2 * (1.96 * 0.015) ** 2) ** 0.5
    assert found.high + 100 == pytest.approx(300 * math.exp(width))
    assert found.low + 100 == pytest.approx(300 * math.exp(-width))


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_one_pause_does_not_move_a_percentile(odd: int) -> None:
    values = [19.0, 19.2, 19.1]
    values[odd] = 60.0
    p99 = combine([measured(100.0, value, 0.01) for value in values]).metrics["m"]["perf_latency_p99"]
    assert p99.value < 19.3
    assert p99.high < 20.0


def test_limit_is_in_doubt_within_the_interval() -> None:
    goals = {"m": Goal(constraints={"perf_latency_p99": Bound(maximum=20.0)})}
    doubts = [is_in_doubt(goals, measured(1.0, p99_ms, 0.05)) for p99_ms in (18.0, 19.5, 20.5, 22.0)]
    assert doubts == [False, True, True, False]


def test_combined_interval_holds_spread_of_repeats() -> None:
    both = combine([measured(90.0, share=0.001), measured(110.0, share=0.001)])
    interval = both.metrics["m"]["perf_throughput"]
    assert interval.value == pytest.approx(100.0)
    assert interval.low < 90.0
    assert both.repeats == 2


def test_failed_repeat_makes_point_fail() -> None:
    assert combine([measured(90.0), replace(measured(0.0), error="no memory")]).error == "no memory"


def test_misses_and_settings_are_written_for_people() -> None:
    assert str(Miss("perf_latency_p99", 313.8, 20, 14.7)) == "perf_latency_p99 is 313.8, 1,470 % over 20"
    assert str(Miss("perf_latency_p99", 20.5, 20, 0.0244)) == "perf_latency_p99 is 20.5, 2.44 % over 20"
    assert settings_text({"max_batch_size": 1, "dynamic_batching.max_queue_delay_microseconds": None}) == (
        "max_batch_size 1, dynamic_batching.max_queue_delay_microseconds none"
    )


def test_no_figure_loses_more_than_all_of_it() -> None:
    """Two measurements on a busy machine, whose intervals are wider than their values."""
    for share in (0.5, 2.0, 300.0):
        found = percent_gain({}, measured(270.0, share=share), measured(100.0, share=share))
        assert -100 <= found.low < found.value < found.high
    goals = {"m": Goal({"perf_latency_p99": 1.0})}
    found = percent_gain(goals, measured(1.0, 5.0, share=2.0), measured(1.0, 10.0, share=2.0))
    assert found.low < found.value < found.high <= 100
