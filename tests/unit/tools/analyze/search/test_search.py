"""Searches of an analytic model: what ends them, and what they say."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.support.analyze_simulation import (
    MODELS,
    BiasedPredictor,
    Costs,
    SimulatedInstrument,
    figures,
    grid,
    settings,
    within,
)

from naiad.tools.analyze.goal import Goal
from naiad.tools.analyze.point_measurement import Measured, Ranking
from naiad.tools.analyze.search import MODES, SearchProgress, SearchSettings, search
from naiad.tools.analyze.search import within as within_time
from naiad.tools.analyze.search.configurations import repository_configuration
from naiad.tools.analyze.space import Point, Space

LANGUAGE = MODELS["language model"]


def run(
    mode: str,
    instrument: SimulatedInstrument,
    goals: dict[str, Goal] | None = None,
    space: Space | None = None,
    **changes: Any,
) -> Ranking:
    predictor = BiasedPredictor(instrument.costs)
    return asyncio.run(
        search(mode, space or grid(), goals or {}, instrument, settings(**changes), predictor=predictor)
    )


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_finds_a_gain(mode: str) -> None:
    instrument = SimulatedInstrument(LANGUAGE, 1)
    ranking = run(mode, instrument, within(60.0))
    assert ranking.winner is not None
    assert ranking.winner.meets_constraints
    assert ranking.winner.gain_percent is not None
    assert ranking.winner.gain_percent.value > 300
    assert ranking.baseline is not None
    assert ranking.baseline.point.variants[0].settings == {}
    assert ranking.candidates[0] is ranking.winner
    assert "It changes max_batch_size from 1 to" in ranking.reason
    assert re.search(r"serves \d\S* inferences instead of 1.0; answers were not compared", ranking.reason)
    assert instrument.points[0] == instrument.points[-1]


@pytest.mark.parametrize("mode", MODES)
def test_failing_variants_are_skipped(mode: str) -> None:
    def fails(point: Point) -> str:
        return "out of memory" if point.variants[0].settings.get("max_batch_size", 0) >= 16 else ""

    instrument = SimulatedInstrument(LANGUAGE, 1, fails=fails)
    ranking = run(mode, instrument)
    assert ranking.winner is not None
    assert ranking.winner.measured.point.variants[0].settings["max_batch_size"] == 8
    failed = [each for each in ranking.measurements if each.error]
    assert {each.error for each in failed} == {"out of memory"}
    assert len({each.point.variants[0].name for each in failed}) == len(failed)
    assert "failed." in ranking.reason


@pytest.mark.parametrize("mode", MODES)
def test_impossible_constraint_names_the_closest(mode: str) -> None:
    ranking = run(mode, SimulatedInstrument(LANGUAGE, 1), within(1.0))
    assert ranking.winner is None
    assert not ranking.is_compared
    assert ranking.others[0].misses in ranking.reason
    assert ranking.reason.startswith("No configuration meets the constraints. ")
    assert "over 1" in ranking.reason


@pytest.mark.parametrize("mode", MODES)
def test_lost_server_ends_with_partial_ranking(mode: str) -> None:
    ranking = run(mode, SimulatedInstrument(LANGUAGE, 1, dies_after=9))
    assert sum(each.repeats for each in ranking.measurements) == 9
    if not ranking.is_compared:
        assert ranking.winner is None
        assert "Nothing was compared with the configuration of the repository" in ranking.reason
    assert ranking.reason.startswith("The server was lost after 9 measurements: connection refused. ")


@pytest.mark.parametrize("mode", MODES)
def test_cancelled_search_returns_partial_ranking(mode: str) -> None:
    ranking = run(mode, SimulatedInstrument(LANGUAGE, 1, cancels_after=3))
    assert len(ranking.measurements) == 3
    assert ranking.reason.startswith("The search was interrupted after 3 measurements. ")


@pytest.mark.parametrize("mode", MODES)
def test_time_limit_ends_the_search(mode: str) -> None:
    instrument = SimulatedInstrument(LANGUAGE, 1)
    ranking = asyncio.run(
        search(
            mode,
            grid(),
            within(60.0),
            instrument,
            within_time(settings(seconds=5.0, clock_s=lambda: 7.0 * len(instrument.points)), 90.0),
            predictor=BiasedPredictor(LANGUAGE),
        )
    )
    assert 10 <= len(instrument.points) <= 13
    assert ranking.is_compared
    assert ranking.winner is not None
    assert ranking.turns >= 2


def test_time_limit_ends_predictions() -> None:
    instrument = SimulatedInstrument(LANGUAGE, 1)
    predicted: list[Point] = []

    class SlowPredictor(BiasedPredictor):
        async def prepare(self, points: Sequence[Point]) -> None:
            predicted.extend(points)

    space = grid(delays_us=(0, 100, 500))
    limited = within_time(settings(clock_s=lambda: 5.0 * len(instrument.points) + len(predicted)), 90.0)
    ranking = asyncio.run(
        search("predict", space, within(60.0), instrument, limited, predictor=SlowPredictor(LANGUAGE))
    )
    assert 0 < len(predicted) < 100
    assert ranking.measurements


def test_gains_start_from_a_load_that_fits() -> None:
    configured = Costs(2.0, 20.0)
    limit_ms = figures(configured, Point(repository_configuration(grid()), 8)).p99_ms
    ranking = run("predict", SimulatedInstrument(configured, 1), within(limit_ms), min_concurrency=32)
    default = [each for each in ranking.measurements if not each.point.variants[0].settings]
    fitting = [each for each in default if 1 < each.point.concurrency < 32]
    assert any(each.metrics["m"]["perf_latency_p99"].value <= 1.05 * limit_ms for each in fitting)


def test_first_loads_stay_near_the_latency_limit() -> None:
    slow = Costs(1000.0, 500.0)
    instrument = SimulatedInstrument(slow, 1)
    run("predict", instrument, within(4000.0))
    assert max(figures(slow, point).p99_ms for point in instrument.points[:3]) < 100_000
    assert instrument.points[1].concurrency <= 30


@pytest.mark.parametrize(("limit_s", "seconds"), [(1000.0, 5.0), (152.0, 5.0), (95.0, 2.0), (5.0, 1.0)])
def test_short_time_shortens_measurements(limit_s: float, seconds: float) -> None:
    limited = within_time(SearchSettings(seconds=5.0), limit_s)
    assert (limited.seconds, limited.time_limit_s) == (seconds, limit_s)


def test_task_may_go_on_after_cancellation() -> None:
    async def cancelled() -> tuple[Ranking, int]:
        started = asyncio.Event()

        class Slow(SimulatedInstrument):
            async def measure(self, point: Point, seconds: float) -> Any:
                started.set()
                await asyncio.Event().wait()

        async def whole() -> tuple[Ranking, int]:
            ranking = await search("brute", grid(), {}, Slow(LANGUAGE), settings())
            task = asyncio.current_task()
            assert task is not None
            return ranking, task.cancelling()

        task = asyncio.create_task(whole())
        await started.wait()
        task.cancel()
        return await task

    ranking, cancelling = asyncio.run(cancelled())
    assert (ranking.measurements, ranking.winner, cancelling) == ([], None, 0)
    assert ranking.reason == "The search was interrupted after 0 measurements. Nothing was measured."


def test_everything_failing_says_why() -> None:
    ranking = run("brute", SimulatedInstrument(LANGUAGE, fails=lambda point: "not an ONNX file"))
    assert ranking.winner is None
    assert ranking.reason == "All measurements failed, the first one with: not an ONNX file."
    assert ranking.baseline is not None
    assert ranking.baseline.error == "not an ONNX file"


def test_repository_wins_when_nothing_is_better() -> None:
    ranking = run("brute", SimulatedInstrument(Costs(0.0, 5.0, cores=1.0, contention=0.5), 2))
    assert ranking.winner is not None
    assert ranking.winner.measured.point.variants[0].name == "m_config_default"
    assert ranking.is_compared
    assert "the configuration of the repository is the best" in ranking.reason
    assert "answers" not in ranking.reason


def test_drift_of_the_machine_is_reported() -> None:
    steady = run("brute", SimulatedInstrument(LANGUAGE, 3))
    drifting = run("brute", SimulatedInstrument(LANGUAGE, 3, drift_per_measurement=-0.0005))
    assert "drifted" not in steady.reason
    assert "slower at the end of the search than at its beginning" in drifting.reason


def test_other_programs_are_reported() -> None:
    class Shared(SimulatedInstrument):
        async def measure(self, point: Point, seconds: float) -> Measured:
            return replace(
                await super().measure(point, seconds), foreign_cores=1.25 if point.concurrency > 4 else 0.1
            )

    shared = run("brute", Shared(LANGUAGE, 3))
    disturbed = sum(each.point.concurrency > 4 for each in shared.measurements)
    assert disturbed
    text = f"Other programs used 1.2 cores of the machine during {disturbed} of {len(shared.measurements)} points"
    assert text in shared.reason
    assert "Other programs" not in run("brute", SimulatedInstrument(LANGUAGE, 3)).reason


def test_latency_objective_prefers_little_load() -> None:
    ranking = run("brute", SimulatedInstrument(LANGUAGE, 1), {"m": Goal({"perf_latency_p99": 1.0})})
    assert ranking.winner is not None
    assert ranking.winner.measured.point.concurrency == 1


def test_constraint_boundary_is_bisected() -> None:
    ranking = run("brute", SimulatedInstrument(LANGUAGE, 1, noise=0.0), within(60.0))
    assert ranking.winner is not None
    point = ranking.winner.measured.point
    assert point.concurrency & (point.concurrency - 1)
    assert figures(LANGUAGE, point).p99_ms <= 60.0
    assert figures(LANGUAGE, Point(point.variants, point.concurrency + 2)).p99_ms > 60.0


def test_sweep_stops_at_saturation() -> None:
    instrument = SimulatedInstrument(LANGUAGE, 1, noise=0.0)
    run("brute", instrument, space=grid((1,), (1,)))
    assert max(point.concurrency for point in instrument.points) == 16


def test_loads_of_the_user_are_kept() -> None:
    space = Space(("m",), (), concurrencies=(4, 6), variants=grid((1, 8), (1, 2)).variants)
    for mode in MODES:
        instrument = SimulatedInstrument(LANGUAGE, 1)
        run(mode, instrument, space=space)
        assert {point.concurrency for point in instrument.points} <= {4, 6, 16}


def test_pareto_front_has_no_dominated_point() -> None:
    ranking = run("brute", SimulatedInstrument(LANGUAGE, 1))
    pairs = [
        (each.metrics["m"]["perf_throughput"].value, each.metrics["m"]["perf_latency_p99"].value)
        for each in ranking.pareto
    ]
    assert len(pairs) > 3
    assert pairs == sorted(pairs)
    assert [p99 for _, p99 in pairs] == sorted(p99 for _, p99 in pairs)


def test_progress_counts_to_the_end() -> None:
    seen: list[SearchProgress] = []

    async def whole() -> Ranking:
        return await search(
            "brute", grid((1, 8), (1, 2)), {}, SimulatedInstrument(LANGUAGE), settings(), progress=seen.append
        )

    asyncio.run(whole())
    assert seen[-1].done == seen[-1].expected
    assert seen[-1].remaining_s == 0
    assert all(each.done <= each.expected for each in seen)
    assert any(each.remaining_s > 0 for each in seen)


def test_unknown_mode_lists_the_modes() -> None:
    with pytest.raises(ValueError, match="unknown search mode 'slow'; expected predict, brute, quick, optuna"):
        run("slow", SimulatedInstrument(LANGUAGE))


def test_optuna_repeats_with_its_seed() -> None:
    first, second = SimulatedInstrument(LANGUAGE, 1), SimulatedInstrument(LANGUAGE, 1)
    run("optuna", first, seed=7)
    run("optuna", second, seed=7)
    assert first.points == second.points
