"""Reports of an analysis: Model Analyzer's CSV, the table of the terminal, and the HTML page."""

import csv
from dataclasses import replace
from pathlib import Path

from naiad.tools.analyze.point_measurement import Measured, Prediction, Ranked, Ranking
from naiad.tools.analyze.report.analyze_page import report
from naiad.tools.analyze.report.analyze_tables import write_tables
from naiad.tools.analyze.report.analyze_text import ranking_text
from naiad.tools.analyze.space import Point, Variant
from naiad.tools.measure.result import (
    ClientFigures,
    GeneratorFigures,
    Interval,
    Latency,
    Row,
    ServerFigures,
)


def interval(value: float) -> Interval:
    return Interval(value, value * 0.97, value * 1.03)


def row(throughput: float, p99_ms: float) -> Row:
    latency = Latency(
        interval(p99_ms * 500), 10.0, 100.0, p99_ms * 1200,
        {number: interval(p99_ms * share) for number, share in ((50, 400), (90, 700), (95, 800), (99, 1000))},
    )  # fmt: skip
    server = ServerFigures("m", "1", 100, 60, 100, 0, 120.0, 5.0, 900.0, 4.0)
    return Row(
        "concurrency", 4, "m", 1, 1.0, int(throughput), interval(throughput), interval(throughput), throughput, 0.0,
        latency, latency, None, None, ClientFigures(10.0, 3.0, 60.0), server,
        GeneratorFigures(1, 0.1, 20_000.0, 0.0, 0.0, 0.0, "server"), [], True, "narrow",
    )  # fmt: skip


def measured(index: int, batch: int, instances: int, throughput: float, p99_ms: float) -> Measured:
    variant = Variant("m", f"m_config_{index}", {"max_batch_size": batch, "instance_group.count": instances})
    metrics = {
        "m": {
            "perf_throughput": interval(throughput),
            "perf_latency_p99": interval(p99_ms),
            "cpu_used_ram": interval(80.0 + index),
        }
    }
    return Measured(Point((variant,), concurrency=4), {"m": row(throughput, p99_ms)}, metrics)


def ranking() -> Ranking:
    best, second, slow = (
        measured(0, 8, 2, 900.0, 12.0),
        measured(1, 4, 1, 880.0, 9.0),
        measured(2, 64, 1, 990.0, 80.0),
    )
    baseline = Measured(Point((Variant("m", "m_config_default", {}),), concurrency=4), {"m": row(300.0, 15.0)})
    failed = Measured(
        Point((Variant("m", "m_config_3", {"max_batch_size": 1024}),), concurrency=4), error="no memory"
    )
    return Ranking(
        Ranked(best, interval(200.0), meets_constraints=True),
        [
            Ranked(best, interval(200.0), meets_constraints=True),
            Ranked(second, interval(193.0), meets_constraints=True, is_tie=True),
            Ranked(slow, interval(230.0), meets_constraints=False, misses="perf_latency_p99 is 80, over 20 by 300 %"),
            Ranked(baseline, interval(0.0), meets_constraints=True),
        ],
        baseline,
        [baseline, best, second, slow, failed],
        [Prediction(best.point, 870.0, {50: 4.0, 99: 12.0})],
        [second, best, slow],
        "m_config_0 serves 900 inferences/s, three times as many as now.",
        is_compared=True,
        turns=3,
        others=[Ranked(replace(best, point=replace(best.point, concurrency=64)), None, meets_constraints=True)],
    )


def test_csv_has_model_analyzers_columns(tmp_path: Path) -> None:
    def accepts(measured: Measured) -> bool:
        return measured.metrics["m"]["perf_latency_p99"].value < 20

    (path,) = write_tables(ranking(), tmp_path / "results", accepts=accepts)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        "Model", "Batch", "Concurrency", "Model Config Path", "Instance Group", "Max Batch Size",
        "Satisfies Constraints", "Throughput (infer/sec)", "p99 Latency (ms)",
    ]  # fmt: skip
    assert rows[0]["Model Config Path"] == "m_config_0"
    assert rows[0]["Instance Group"] == "2:CPU"
    assert [each["Satisfies Constraints"] for each in rows[:3]] == ["Yes", "Yes", "No"]


def test_csv_has_the_figures_of_the_comparison(tmp_path: Path) -> None:
    found = ranking()
    earlier = measured(0, 8, 2, 5000.0, 1.0)
    found = replace(found, measurements=[earlier, *found.measurements[2:]])
    (path,) = write_tables(found, tmp_path)
    with path.open(newline="") as file:
        rows = [each for each in csv.DictReader(file) if each["Model Config Path"] == "m_config_0"]
    assert [each["Throughput (infer/sec)"] for each in rows] == ["900"]


def test_text_marks_ties_misses_and_failures() -> None:
    text = ranking_text(ranking())
    assert "tie" in text
    assert "misses" in text
    assert "failed: max_batch_size 1024: no memory" in text
    assert "as configured" in text
    assert "compared in 3 turns under concurrency 4:" in text
    assert "concurrency 64" not in text
    assert text.endswith("three times as many as now.")


def test_html_shows_winner_and_failures() -> None:
    text = report(ranking(), "Analysis of m", [("cpu", "<x86>")], 20.0).render()
    assert text.count("<svg") == 4
    assert "&lt;x86&gt;" in text
    assert "class=best" in text
    assert "gain under concurrency 4" in text
    assert "Measured under concurrency 64, not compared" in text
    assert "no memory" in text


def test_html_without_winner_says_why() -> None:
    empty = Ranking(None, [], None, [], reason="No configuration meets p99 1 ms; the best misses it by 40 %.")
    assert "the best misses it by 40 %" in report(empty, "Analysis").render()
