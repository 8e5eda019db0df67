"""The comparison of a search: one load, turns, and nothing recommended that was not compared."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.analyze_simulation import (
    MODELS,
    BiasedPredictor,
    Costs,
    SimulatedInstrument,
    grid,
    settings,
    within,
)

from naiad.tools.analyze.goal import Goal
from naiad.tools.analyze.point_measurement import Measured, Ranking
from naiad.tools.analyze.report.analyze_page import report
from naiad.tools.analyze.report.analyze_text import ranking_text
from naiad.tools.analyze.search import MODES, SearchCheckpoint, SearchProgress, search
from naiad.tools.analyze.search import within as within_time
from naiad.tools.analyze.space import Point, Space
from naiad.tools.measure.result import Interval

LANGUAGE = MODELS["language model"]
SMALL = grid((1, 4, 16), (1, 2))


def run(
    instrument: SimulatedInstrument,
    mode: str = "brute",
    goals: dict[str, Goal] | None = None,
    space: Space = SMALL,
    checkpoint: SearchCheckpoint | None = None,
    limit_s: float = 0.0,
    **changes: Any,
) -> Ranking:
    chosen = settings(**changes)
    predictor = BiasedPredictor(instrument.costs)
    return asyncio.run(
        search(
            mode,
            space,
            goals or {},
            instrument,
            within_time(chosen, limit_s) if limit_s else chosen,
            predictor=predictor,
            checkpoint=checkpoint,
        )
    )


@dataclass
class Unsure(SimulatedInstrument):
    """Measures with intervals of a chosen width."""

    share: float = 0.1

    def _interval(self, value: float) -> Interval:
        return Interval(value, value * (1 - self.share), value * (1 + self.share))


def is_default(point: Point) -> bool:
    return not point.variants[0].settings


def turns_of(instrument: SimulatedInstrument, ranking: Ranking) -> list[list[Point]]:
    """The turns of the comparison, which the measurement for the drift follows."""
    count = len(ranking.candidates)
    turns = instrument.points[-1 - ranking.turns * count : -1]
    return [turns[first : first + count] for first in range(0, len(turns), count)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("limit_ms", [None, 60.0])
def test_comparison_has_one_load_and_turns(mode: str, limit_ms: float | None) -> None:
    instrument = SimulatedInstrument(LANGUAGE, 1)
    ranking = run(instrument, mode, within(limit_ms) if limit_ms else {}, grid((1, 4, 16), (1, 2)))
    assert ranking.is_compared
    points = [each.measured.point for each in ranking.candidates]
    assert len({each.load for each in points}) == 1
    assert sum(is_default(each) for each in points) == 1
    assert all(each.measured.repeats == ranking.turns >= 2 for each in ranking.candidates)
    for turn in turns_of(instrument, ranking):
        assert {each.key for each in turn} == {each.key for each in points}
    directions = [turn[0].key for turn in turns_of(instrument, ranking)]
    assert all(first != second for first, second in pairwise(directions))


def test_lucky_measurements_of_the_search_do_not_count() -> None:
    def lucky_once(point: Point, number: int) -> float:
        is_lucky = point.variants[0].name == "m_config_1" and point.concurrency == 8 and number == 1
        return 10.0 if is_lucky else 1.0

    instrument = SimulatedInstrument(LANGUAGE, 1, speed=lucky_once)
    ranking = run(instrument)
    fair = run(SimulatedInstrument(LANGUAGE, 1))
    assert fair.winner is not None
    assert ranking.winner is not None
    assert sum(each.concurrency == 8 and is_default(each) for each in instrument.points) > 2  # it was compared first
    assert ranking.winner.measured.point.variants == fair.winner.measured.point.variants
    assert "m_config_1 is the best" not in ranking.reason


def test_machine_that_slows_down_changes_no_gain() -> None:
    steady = run(SimulatedInstrument(LANGUAGE, noise=0.0))
    slowing = run(SimulatedInstrument(LANGUAGE, noise=0.0, drift_per_measurement=-0.01))
    assert steady.winner is not None
    assert slowing.winner is not None
    assert steady.winner.gain_percent is not None
    assert slowing.winner.gain_percent is not None
    assert slowing.winner.gain_percent.value == pytest.approx(steady.winner.gain_percent.value, rel=0.03)


# --- nothing is recommended that was not compared ---------------------------------------------------------------


def assert_nothing_recommended(ranking: Ranking, *, is_rendered: bool = False) -> None:
    assert not ranking.is_compared
    assert ranking.winner is None
    assert list(ranking.candidates) == []
    assert all(each.gain_percent is None for each in ranking.others)
    page = report(ranking, "Analysis").render() if is_rendered else ""
    for whole in (ranking_text(ranking), page, ranking.reason):
        text = re.sub(r"<svg.*?</svg>|<style.*?</style>", "", whole, flags=re.DOTALL)
        assert not re.search(r"is the best|[+-]\d+ %|% better|winner|class=best", text), text
    assert "othing" in ranking.reason


@pytest.mark.parametrize("mode", MODES)
def test_server_lost_before_the_comparison(mode: str) -> None:
    assert_nothing_recommended(run(SimulatedInstrument(LANGUAGE, 1, dies_after=4), mode), is_rendered=mode == "brute")


def test_server_lost_in_the_first_turn() -> None:
    whole = SimulatedInstrument(LANGUAGE, 1)
    ranking = run(whole)
    before = len(whole.points) - 1 - ranking.turns * len(ranking.candidates)
    for measured in range(before, before + 2 * len(ranking.candidates)):
        lost = run(SimulatedInstrument(LANGUAGE, 1, dies_after=measured))
        assert_nothing_recommended(lost)
    assert run(SimulatedInstrument(LANGUAGE, 1, dies_after=before + 2 * len(ranking.candidates))).is_compared


def test_failed_baseline_is_not_compared() -> None:
    ranking = run(SimulatedInstrument(LANGUAGE, 1, fails=lambda point: "no memory" if is_default(point) else ""))
    assert_nothing_recommended(ranking, is_rendered=True)
    assert "that configuration failed with: no memory" in ranking.reason


def test_baseline_that_fails_later_is_not_compared() -> None:
    """Its sweep ends at a concurrency of 8; the best is compared at the higher load that it serves."""
    instrument = SimulatedInstrument(LANGUAGE, 1)
    load = run(instrument).candidates[0].measured.point.concurrency
    assert load > max(each.concurrency for each in instrument.points[:-20] if is_default(each)) / 2
    instrument = SimulatedInstrument(
        LANGUAGE, 1, fails=lambda point: "no memory" if is_default(point) and point.concurrency >= load else ""
    )
    ranking = run(instrument, space=Space(("m",), (), concurrencies=(1, load), variants=SMALL.variants))
    assert_nothing_recommended(ranking)


@pytest.mark.parametrize(
    ("mode", "fitting"),
    [*((mode, fitting) for mode in ("predict", "brute", "quick") for fitting in (1, 4, 6, 9, 20)), ("optuna", 9)],
)
def test_time_limit_leaves_time_for_the_comparison(mode: str, fitting: int) -> None:
    """From six measurements on, what is found is compared; less time is not enough, which is said."""
    instrument = SimulatedInstrument(LANGUAGE, 1)
    seconds, limit_s = 5.0, 7.0 * fitting + 1
    ranking = run(
        instrument,
        mode,
        space=SMALL,
        seconds=seconds,
        time_limit_s=limit_s,
        clock_s=lambda: 7.0 * len(instrument.points),
    )
    assert len(instrument.points) <= max(1, fitting)
    has_others = not all(is_default(each) for each in instrument.points)
    assert has_others or fitting < 9 or mode == "brute"  # which first sweeps the configuration of the repository
    if has_others and fitting >= 6:
        assert ranking.is_compared
        assert ranking.turns >= 2
        assert any(is_default(each.measured.point) for each in ranking.candidates)
    else:
        assert_nothing_recommended(ranking)


def test_no_limit_of_time_stops_the_first_measurement() -> None:
    instrument = SimulatedInstrument(LANGUAGE, 1)
    ranking = run(instrument, time_limit_s=1e-9, clock_s=lambda: 1.0 + len(instrument.points))
    assert len(instrument.points) == 1
    assert "Nothing was measured" not in ranking.reason


def test_enough_time_compares_three_winners_with_the_baseline() -> None:
    instrument = SimulatedInstrument(Costs(0.0, 5.0, cores=1.0), 2, noise=0.03)
    ranking = run(
        instrument,
        space=grid(),
        seconds=5.0,
        time_limit_s=7.0 * 40,
        clock_s=lambda: 7.0 * len(instrument.points),
    )
    assert len(ranking.candidates) in (3, 4)
    assert ranking.turns >= 2
    assert len(instrument.points) <= 40


def test_only_configuration_is_compared_with_nothing() -> None:
    ranking = run(SimulatedInstrument(LANGUAGE, 1), space=Space(("m",), (), variants={"m": SMALL.variants["m"][:1]}))
    assert not ranking.is_compared
    assert ranking.winner is not None
    assert ranking.winner.gain_percent is None
    assert "it was compared with nothing" in ranking.reason
    assert "tiles" not in re.sub(r"<style.*?</style>", "", report(ranking, "a").render(), flags=re.DOTALL)


# --- near a limit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [1, 2, 3])
def test_one_pause_in_the_comparison_loses_nothing(odd: int) -> None:
    """The p99 of one of all measurements is four times as long: whichever it is, the winner stays."""
    expected = run(SimulatedInstrument(LANGUAGE, 1), goals=within(60.0)).winner
    assert expected is not None
    best = expected.measured.point

    def paused(point: Point, number: int) -> float:
        return 4.0 if point.key == best.key and number == 1 + odd else 1.0

    winner = run(SimulatedInstrument(LANGUAGE, 1, tail=paused), goals=within(60.0)).winner
    assert winner is not None
    assert winner.measured.point.variants == best.variants


def test_best_by_accident_gets_less_load() -> None:
    space = Space(("m",), (), concurrencies=(8, 16, 32), variants=SMALL.variants)
    fair = run(SimulatedInstrument(LANGUAGE, noise=0.0), goals=within(60.0), space=space)
    assert fair.winner is not None

    def lucky(point: Point, number: int) -> float:
        return 0.3 if number == 1 and point.concurrency == 32 else 1.0

    instrument = SimulatedInstrument(LANGUAGE, noise=0.0, tail=lucky)
    ranking = run(instrument, goals=within(60.0), space=space)
    assert ranking.winner is not None
    assert ranking.winner.measured.point == fair.winner.measured.point
    assert ranking.winner.measured.metrics["m"]["perf_latency_p99"].value <= 60.0


def test_doubt_about_a_limit_adds_turns() -> None:
    space = Space(("m",), (), concurrencies=(16,), variants=grid((1, 16), (2,)).variants)
    sure = run(Unsure(LANGUAGE, noise=0.0, share=0.01), goals=within(1000.0), space=space)
    assert sure.winner is not None
    p99_ms = sure.winner.measured.metrics["m"]["perf_latency_p99"].value
    near = run(Unsure(LANGUAGE, noise=0.0, share=0.01), goals=within(p99_ms * 1.001), space=space)
    assert near.turns > sure.turns


# --- what is said -----------------------------------------------------------------------------------------------


def table(text: str) -> list[list[str]]:
    lines = text.split("\n\n")[0].splitlines()
    return [line.split() for line in lines if re.search(r"\d %|as configured|max_batch", line)]


@pytest.mark.parametrize("seed", range(6))
def test_percentages_agree_with_the_table(seed: int) -> None:
    ranking = run(SimulatedInstrument(LANGUAGE, seed), space=grid((1, 2, 8), (1, 2)))
    text = ranking_text(ranking)
    rows = table(text)
    throughputs = [float(next(cell for cell in row if cell.count(".")).replace(",", "")) for row in rows]
    names = [each.measured.point.variants[0].name for each in ranking.candidates]
    now = throughputs[names.index("m_config_default")]
    for row, throughput, name in zip(rows, throughputs, names, strict=True):
        if name != "m_config_default":
            gain = next(cell for cell in row if re.fullmatch(r"[+-]\d+", cell))
            assert float(gain) == pytest.approx((throughput / now - 1) * 100, abs=0.6)
    headline = re.search(r"That is ([+-]\d+) % ", ranking.reason)
    if headline:
        assert float(headline[1]) == pytest.approx((throughputs[0] / now - 1) * 100, abs=0.6)
    second = re.search(r"It is ([\d.]+) % (better|worse) than the second, (\w+)", ranking.reason)
    if second:
        lead = (throughputs[0] / throughputs[names.index(second[3])] - 1) * 100
        assert float(second[1]) == pytest.approx(abs(lead), abs=0.15)
        assert (lead >= 0) == (second[2] == "better")
        assert second[3] != "m_config_default"
    assert headline or second or "is the best" in ranking.reason


def test_second_has_the_percentage_of_the_table() -> None:
    space = grid((8, 16), (2,))
    ranking = run(SimulatedInstrument(MODELS["python"], 1), space=space)
    found = re.search(r"It is ([\d.]+) % better than the second, (\w+), under the same load", ranking.reason)
    if found is None:
        assert len(ranking.candidates) == 2  # only the baseline is left
        return
    one, two = (
        each.measured.metrics["m"]["perf_throughput"].value for each in (ranking.candidates[0], ranking.candidates[1])
    )
    assert float(found[1]) == pytest.approx((one / two - 1) * 100, abs=0.06)


def test_baseline_is_not_called_the_second() -> None:
    ranking = run(SimulatedInstrument(LANGUAGE, 1), space=grid((1, 16), (1,)))
    assert ranking.winner is not None
    assert "than the second" not in ranking.reason


def loads_in(lines: Sequence[str]) -> set[str]:
    return {found for line in lines for found in re.findall(r"concurrency \d+", line)}


@pytest.mark.parametrize("limit_ms", [60.0, 1000.0])
def test_no_table_or_sentence_mixes_loads(limit_ms: float) -> None:
    ranking = run(SimulatedInstrument(LANGUAGE, 1), goals=within(limit_ms), space=grid((1, 4, 16), (1, 2)))
    text = ranking_text(ranking)
    assert len(loads_in(text.splitlines())) == 1
    page = report(ranking, "Analysis").render()
    for part in re.split(r"<h2>", page)[1:]:
        visible = re.sub(r"<svg.*?</svg>", "", part, flags=re.DOTALL)
        assert len(loads_in([visible])) <= 1, visible
    lost = run(SimulatedInstrument(LANGUAGE, 1, dies_after=6), space=grid((1, 4, 16), (1, 2)))
    sections = ranking_text(lost).split("measured under ")[1:]
    assert sections
    assert all(len(loads_in([each])) == 1 for each in sections)


# --- a simple configuration, and what it may lose ---------------------------------------------------------------


@pytest.mark.parametrize(("lost", "is_simple"), [(0.01, True), (0.08, False)])
def test_simplest_wins_only_within_three_percent(lost: float, is_simple: bool) -> None:
    """With intervals as wide as these all are ties."""
    simple, best = (each for each in grid((8, 16), (2,)).variants["m"][1:])
    costs = Costs(0.0, 5.0, cores=1.0, contention=0.0)
    space = Space(("m",), (), concurrencies=(16,), variants={"m": [grid().variants["m"][0], simple, best]})
    rates = {"m_config_default": 0.5, simple.name: 1.0 - lost, best.name: 1.0}

    instrument = Unsure(costs, noise=0.0, share=0.15, speed=lambda point, number: rates[point.variants[0].name])
    ranking = run(instrument, space=space)
    assert ranking.winner is not None
    assert {each.measured.point.variants[0].name for each in ranking.candidates if each.is_tie}
    assert (ranking.winner.measured.point.variants[0].name == simple.name) is is_simple


# --- the file of measurements -----------------------------------------------------------------------------------


def test_half_a_recorded_turn_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    first = SimulatedInstrument(LANGUAGE, 1)
    with SearchCheckpoint(path, "a") as checkpoint:
        ranking = run(first, checkpoint=checkpoint)
    lines = path.read_bytes().splitlines(keepends=True)
    count = len(ranking.candidates)
    before = len(lines) - 1 - ranking.turns * count
    path.write_bytes(b"".join(lines[: before + count + 1]))  # one turn, and the beginning of the next one
    again = SimulatedInstrument(LANGUAGE, 2)
    with SearchCheckpoint(path, "a") as checkpoint:
        resumed = run(again, checkpoint=checkpoint)
    assert resumed.is_compared
    assert [each.key for each in again.points[:count]] == [each.key for each in turns_of(first, ranking)[1]]


def test_measurements_of_the_search_are_no_turns(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    with SearchCheckpoint(path, "a") as checkpoint:
        lost = run(SimulatedInstrument(LANGUAGE, 1, dies_after=9), checkpoint=checkpoint)
    assert not lost.is_compared
    with SearchCheckpoint(path, "a") as checkpoint:
        again = run(SimulatedInstrument(LANGUAGE, 1, dies_after=2), checkpoint=checkpoint)
    assert_nothing_recommended(again)


# --- the time that is left --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "limit_s"), [("predict", 0.0), ("brute", 0.0), ("predict", 140.0), ("brute", 140.0)]
)
@pytest.mark.parametrize("model", ["language model", "trees"])
def test_time_left_is_within_half_of_the_truth(mode: str, limit_s: float, model: str) -> None:
    """A measurement takes 8 s; the predictions before it take 6 s."""
    now_s = 0.0
    seen: list[tuple[float, SearchProgress]] = []

    class Timed(SimulatedInstrument):
        async def measure(self, point: Point, seconds: float) -> Any:
            nonlocal now_s
            now_s += seconds + 3.0
            return await super().measure(point, seconds)

    class Slow(BiasedPredictor):
        def fit(self, measured: Sequence[Measured]) -> None:
            nonlocal now_s
            now_s += 6.0
            super().fit(measured)

    instrument = Timed(MODELS[model], 1)
    chosen = settings(seconds=5.0, clock_s=lambda: now_s)
    asyncio.run(
        search(
            mode,
            grid((1, 4, 16), (1, 2, 3)),
            {},
            instrument,
            within_time(chosen, limit_s) if limit_s else chosen,
            predictor=Slow(MODELS[model]),
            progress=lambda where: seen.append((now_s, where)),
        )
    )
    shown = [(at_s, where) for at_s, where in seen if where.remaining_s and at_s >= 0.25 * now_s]
    assert len(shown) > 5
    slack_s = 32.0  # A turn of four measurements: how many turns there will be depends on their figures.
    for at_s, where in shown:
        true_s = now_s - at_s
        assert where.remaining_s >= true_s / 1.5 - slack_s, (at_s, now_s, where)
        if not where.is_at_most:
            assert where.remaining_s <= 1.5 * true_s + slack_s, (at_s, now_s, where)
