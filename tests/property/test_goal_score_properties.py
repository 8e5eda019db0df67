"""Gains of measurements: antisymmetric, bounded, and an order."""

from hypothesis import given
from hypothesis import strategies as st

from naiad.tools.analyze.goal import Bound, Goal
from naiad.tools.analyze.point_measurement import Measured
from naiad.tools.analyze.search.goal_score import combine, compare, gain, rank
from naiad.tools.analyze.space import Point, Variant
from naiad.tools.measure.result import Interval

POINT = Point((Variant("m", "m_config_0", {}),), 1)


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    value = draw(st.floats(1e-3, 1e6))
    share = draw(st.floats(0.0, 0.5))
    return Interval(value, value * (1 - share), value * (1 + share))


measurements = st.builds(
    lambda throughput, p99: Measured(POINT, metrics={"m": {"perf_throughput": throughput, "perf_latency_p99": p99}}),
    intervals(),
    intervals(),
)
weights = st.floats(0.1, 10.0)
goals = st.builds(
    lambda throughput, p99, limit: {
        "m": Goal(
            {"perf_throughput": throughput, "perf_latency_p99": p99}, {"perf_latency_p99": Bound(maximum=limit)}
        )
    },
    weights,
    weights,
    st.floats(1e-2, 1e6),
)


@given(goals, measurements, measurements)
def test_gain_is_antisymmetric_and_bounded(goal: dict[str, Goal], one: Measured, other: Measured) -> None:
    there, back = gain(goal, one, other), gain(goal, other, one)
    assert abs(there.value + back.value) < 1e-9
    assert abs(there.uncertainty - back.uncertainty) < 1e-9
    assert -2.0 <= there.value <= 2.0


@given(goals, measurements, measurements)
def test_comparison_is_antisymmetric(goal: dict[str, Goal], one: Measured, other: Measured) -> None:
    there, back = compare(goal, one, other), compare(goal, other, one)
    assert abs(there.value + back.value) <= 1e-9 * max(1.0, abs(there.value))
    assert there.is_tie == back.is_tie


@given(goals, measurements)
def test_measurement_is_tied_with_itself(goal: dict[str, Goal], one: Measured) -> None:
    assert compare(goal, one, one).is_tie


@given(goals, measurements, measurements, measurements)
def test_measurement_within_constraints_ranks_first(
    goal: dict[str, Goal], one: Measured, other: Measured, reference: Measured
) -> None:
    limit = goal["m"].constraints["perf_latency_p99"].maximum
    assert limit is not None
    first, second = (each.metrics["m"]["perf_latency_p99"].value <= limit for each in (one, other))
    if first and not second:
        assert rank(goal, one, reference) > rank(goal, other, reference)


@given(st.lists(measurements, min_size=1, max_size=5))
def test_combined_value_lies_between_repeats(repeats: list[Measured]) -> None:
    values = [each.metrics["m"]["perf_throughput"].value for each in repeats]
    found = combine(repeats).metrics["m"]["perf_throughput"]
    assert min(values) * (1 - 1e-9) <= found.value <= max(values) * (1 + 1e-9)
    assert found.low <= found.value <= found.high
