"""The choice of finalists and of the winner by their figures."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.tools.measure.result import Interval
from naiad.tools.optimize.candidate import Candidate, Precision, Status
from naiad.tools.optimize.choice import choose, finalists, score
from naiad.tools.optimize.optimize_result import Objective, Outcome, Strategy
from naiad.tools.optimize.optimize_source import Format
from naiad.tools.optimize.results.candidate_measurement import Profile, Round, Runtime, ServedMeasurement

LATENCY = Objective(Strategy.MIN_LATENCY)
THROUGHPUT = Objective(Strategy.MAX_THROUGHPUT)
BOTH = Objective()


def around(value, share=0.05):
    return Interval(value, value * (1 - share), value * (1 + share))


def profile(latency_us=1000.0, throughput=1000.0, *, runtime="default", batch=4, memory_mib=100.0, noise=0.05):
    return Profile(Runtime(runtime), around(latency_us, noise), around(throughput, noise), batch, 1.0, memory_mib)


def broken():
    return Profile(Runtime(), Interval(0, 0, 0), Interval(0, 0, 0), 1, 0.0, 0.0, "its process ended with SIGSEGV")


def served(latency_us=1000.0, throughput=1000.0, *, p99_us=5000.0, memory_mib=100.0, noise=0.05):
    return ServedMeasurement(
        Runtime(), around(latency_us, noise), p99_us, around(throughput, noise), 8, 4, memory_mib, "naiad perf"
    )


def outcome(name, *profiles, precision=Precision.FP32, form=Format.ONNX, status=Status.PASSED, at=None):
    return Outcome(Candidate(name, form, precision, "onnxruntime"), status, profiles=profiles, served=at)


def winner(outcomes, objective=BOTH):
    return choose(outcomes, objective)[0]


def test_fastest_candidate_wins():
    found = [outcome("source", profile()), outcome("fast", profile(500, 2000)), outcome("slow", profile(2000, 500))]
    name, why = choose(found, BOTH)
    assert name == "fast"
    assert "2.00 x the throughput, 0.50 x the latency" in why


def test_finalists_are_of_different_kinds():
    found = [
        outcome("source", profile()),
        outcome("basic", profile(500, 2000)),
        outcome("all", profile(490, 2010)),
        outcome("openvino", profile(700, 1500), form=Format.OPENVINO),
        outcome("int8", profile(800, 1400), precision=Precision.INT8),
    ]
    assert [name for name, _, _ in finalists(found, BOTH, 3)] == ["all", "openvino", "int8", "source"]
    assert {name for name, _, _ in finalists(found, BOTH, 4)} == {"all", "openvino", "int8", "basic", "source"}


def test_first_conversion_is_the_baseline_without_a_source():
    found = [
        outcome("torchscript", profile(), form=Format.TORCHSCRIPT),
        outcome("a", profile(400, 3000)),
        outcome("b", profile(500, 2500), form=Format.OPENVINO),
    ]
    name, why = choose(found, BOTH)
    assert name == "a"
    assert "3.00 x the throughput, 0.40 x the latency" in why
    assert "of torchscript" in why
    assert [each for each, _, _ in finalists(found, BOTH, 1)] == ["a", "torchscript"]


def test_source_wins_within_the_noise():
    name, why = choose([outcome("source", profile()), outcome("other", profile(970, 1030))], BOTH)
    assert name == "source"
    assert "no candidate is better" in why
    assert "other" in why


@pytest.mark.parametrize("status", [Status.REJECTED, Status.FAILED, Status.CONVERTED, Status.NOT_RUN])
def test_candidate_that_has_not_passed_loses(status):
    found = [outcome("source", profile()), outcome("fast", profile(1, 100_000), status=status)]
    assert winner(found) == "source"
    assert [name for name, _, _ in finalists(found, BOTH)] == ["source"]


def test_nothing_passed():
    assert choose([outcome("source", profile(), status=Status.REJECTED)], BOTH)[0] == ""


def test_error_of_profiles_is_the_reason():
    name, why = choose([outcome("source", broken())], BOTH)
    assert name == ""
    assert "source: its process ended with SIGSEGV" in why


def test_higher_precision_wins_a_tie():
    found = [
        outcome("source", profile()),
        outcome("int8", profile(480, 2080), precision=Precision.INT8),
        outcome("fp32", profile(500, 2000)),
    ]
    name, why = choose(found, BOTH)
    assert name == "fp32"
    assert "int8 is not better" in why


def test_simpler_format_wins_a_tie():
    found = [
        outcome("source", profile()),
        outcome("openvino", profile(490, 2040), form=Format.OPENVINO),
        outcome("onnx", profile(500, 2000)),
    ]
    assert winner(found) == "onnx"


def test_served_figures_decide_before_profiles():
    found = [
        outcome("source", profile(), at=served()),
        outcome("first", profile(100, 9000), at=served(900, 1200)),
        outcome("second", profile(500, 2000), at=served(500, 2000)),
        outcome("alone", profile(10, 90_000)),
    ]
    assert winner(found) == "second"


@pytest.mark.parametrize(
    ("objective", "name"),
    [
        (LATENCY, "quick"),
        (THROUGHPUT, "wide"),
        (Objective(Strategy.MIN_MEMORY), "small"),
        (Objective(Strategy.MAX_THROUGHPUT_WITHIN_LATENCY, latency_budget_us=1500.0), "quick"),
        (Objective(Strategy.MAX_THROUGHPUT, memory_budget_mib=50.0), "small"),
    ],
)
def test_strategies(objective, name):
    found = [
        outcome("source", at=served(1000, 1000, p99_us=2000)),
        outcome("quick", at=served(300, 1200, p99_us=1000)),
        outcome("wide", at=served(900, 4000, p99_us=9000)),
        outcome("small", at=served(900, 1100, p99_us=1900, memory_mib=20)),
    ]
    assert winner(found, objective) == name


def test_missed_budget_says_by_how_much():
    objective = Objective(Strategy.MAX_THROUGHPUT_WITHIN_LATENCY, latency_budget_us=1000.0)
    found = [outcome("source", at=served(p99_us=3000)), outcome("other", at=served(p99_us=1500))]
    name, why = choose(found, objective)
    assert name == ""
    assert "the closest is other: p99 latency 1500 us, 50.0% over 1000 us" in why


def test_strategy_without_its_budget_is_an_error():
    with pytest.raises(ValueError, match="needs latency_budget_us"):
        choose([], Objective(Strategy.MAX_THROUGHPUT_WITHIN_LATENCY))


def test_finalists_have_best_runtime_and_batch():
    found = [
        outcome("source", profile()),
        outcome("a", profile(900, 1500, runtime="default"), profile(300, 2500, runtime="threads-1", batch=16)),
        outcome("b", profile(800, 1200), broken()),
        outcome("c", broken()),
    ]
    assert finalists(found, BOTH, 1) == [("a", Runtime("threads-1"), 16), ("source", Runtime(), 4)]


def test_runtime_within_the_noise_is_not_taken():
    found = [outcome("source", profile(1000, 1000), profile(970, 1030, runtime="tuned"))]
    assert finalists(found, BOTH)[0][1].name == "default"


def test_equals_are_those_whose_intervals_overlap():
    """FP32 is far below int8, but its interval reaches it: it is as good and of the higher precision."""
    found = [
        outcome("source", profile(noise=0.01)),
        outcome("int8", profile(400, 2500, noise=0.02), precision=Precision.INT8),
        outcome("fp32", profile(500, 2000, noise=0.3)),
    ]
    assert winner(found) == "fp32"
    found[2] = outcome("fp32", profile(410, 2440, noise=0.001))
    found[1] = outcome("int8", profile(400, 2500, noise=0.001), precision=Precision.INT8)
    assert winner(found) == "int8"


# --- busy machines --------------------------------------------------------------------------------------------------


def on_busy(cpu_us, latency_us=1000.0, *, noise=0.5, cpu_noise=0.01, others=1.7):
    rounds = []
    for place in range(9):
        factor, own = 1 + noise * (place % 3 - 1), 1 + cpu_noise * (place % 5 - 2)
        rounds.append(Round(latency_us * factor, 1e6 / latency_us / factor, cpu_us * own, others))
    wide = around(latency_us, noise)
    return ServedMeasurement(
        Runtime(), wide, 9000, around(1e6 / latency_us, noise), 8, 4, 50.0, "naiad perf", rounds=rounds
    )


def test_cpu_time_decides_on_a_busy_machine():
    found = [outcome("source", at=on_busy(900)), outcome("quick", at=on_busy(300, 500.0))]
    name, why = choose(found, BOTH)
    assert name == "quick"
    assert "0.33 x the CPU time of the source" in why
    assert "other programs used 1.7 cores" in why


def test_nothing_wins_without_proof_on_a_busy_machine():
    found = [outcome("source", at=on_busy(300)), outcome("quick", at=on_busy(290, 900.0, cpu_noise=0.2))]
    name, why = choose(found, BOTH)
    assert name == ""
    assert "no winner proven: other programs used 1.7 cores" in why
    assert "--accept quick" in why


def test_source_stays_when_busy_only_with_proof():
    found = [outcome("source", at=on_busy(300)), outcome("slow", at=on_busy(900, 3000.0))]
    assert winner(found) == "source"
    spinning = [outcome("source", at=on_busy(300)), outcome("spins", at=on_busy(900, 400.0))]
    assert winner(spinning) == ""


def test_what_needs_more_cpu_time_is_not_advised():
    found = [outcome("source", at=on_busy(300)), outcome("spins", at=on_busy(900, 400.0))]
    _, why = choose(found, BOTH)
    assert "the best candidate is spins, 3.00 x the CPU time of the source" in why
    assert why.endswith("--accept source")


def test_idle_machine_does_not_ask_for_cpu_time():
    found = [
        outcome("source", at=on_busy(300, noise=0.01, others=0.1)),
        outcome("quick", at=on_busy(900, 500.0, noise=0.01, others=0.1)),
    ]
    assert winner(found) == "quick"


def test_no_cpu_time_proves_nothing():
    found = [outcome("source", at=on_busy(0)), outcome("quick", at=on_busy(0, 500.0))]
    assert winner(found) == ""


figures = st.floats(1.0, 1e6)
shares = st.floats(0.0, 0.5)


@st.composite
def outcomes(draw):
    names = ["source", "a", "b", "c", "d"][: draw(st.integers(1, 5))]
    return [
        outcome(
            name,
            profile(draw(figures), draw(figures), memory_mib=draw(figures), noise=draw(shares)),
            precision=draw(st.sampled_from(Precision)),
            form=draw(st.sampled_from(Format)),
            status=draw(st.sampled_from([Status.PASSED, Status.PASSED, Status.REJECTED])),
        )
        for name in draw(st.permutations(names))
    ]


objectives = st.builds(
    Objective,
    st.sampled_from(Strategy),
    st.floats(1.0, 1e6),
    st.none() | st.floats(1.0, 1e6),
)


def _within(profile, objective):
    return profile.latency.value <= objective.latency_budget_us and (
        objective.memory_budget_mib is None or profile.memory_mib <= objective.memory_budget_mib
    )


@given(outcomes(), objectives)
def test_winner_may_win_and_beats_the_source(found, objective):
    name, why = choose(found, objective)
    by_name = {each.candidate.name: each for each in found}
    allowed = {each.candidate.name for each in found if each.can_win and _within(each.profiles[0], objective)}
    assert why
    assert bool(name) == bool(allowed)
    if name:
        assert name in allowed
    if name not in ("", "source") and "source" in allowed:
        own, base = (score(by_name[each].profiles[0], objective) for each in (name, "source"))
        assert own.low > base.high


@given(outcomes(), objectives, st.integers(1, 5))
def test_finalists_are_distinct_with_the_source(found, objective, count):
    names = [name for name, _, _ in finalists(found, objective, count)]
    passed = [each.candidate.name for each in found if each.can_win]
    assert len(set(names)) == len(names)
    assert set(names) <= set(passed)
    assert min(count, len(passed)) <= len(names) <= count + 1
    assert ("source" in names) == ("source" in passed)


@given(outcomes(), objectives)
def test_scores_are_ordered_intervals(found, objective):
    for each in found:
        interval = score(each.profiles[0], objective)
        assert 0 < interval.low <= interval.value <= interval.high
        assert math.isfinite(interval.value)


@given(outcomes(), objectives)
def test_order_of_the_plan_does_not_matter_much(found, objective):
    """Candidates that differ in precision or format have the same winner in any order."""
    ranks = [(each.candidate.precision, each.candidate.format) for each in found]
    if len(set(ranks)) == len(ranks):
        assert winner(found, objective) == winner(found[::-1], objective)
