"""Counts of the single responses of decoupled models, and of the calls of models."""

from naiad.telemetry.statistics import part_statistics as response_statistics
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from naiad.telemetry.statistics.part_statistics import (
    CANCEL,
    EMPTY,
    FAIL,
    SUCCESS,
    CallStatistics,
    ResponseStatistics,
)
from naiad.telemetry.statistics.version_statistics import Duration, PositionStatistics

NEVER = Duration()


def test_every_outcome_has_its_own_counts():
    statistics = ResponseStatistics()
    for position, outcome in enumerate((SUCCESS, FAIL, EMPTY, CANCEL)):
        for start_ns in (100, 200):
            statistics.record(position, outcome, start_ns, start_ns + 7, start_ns + 10)
    infer, output, total = Duration(2, 14), Duration(2, 6), Duration(2, 20)
    assert statistics.snapshot() == [
        PositionStatistics(infer, output, total, NEVER, NEVER, NEVER),
        PositionStatistics(infer, output, NEVER, total, NEVER, NEVER),
        PositionStatistics(NEVER, NEVER, NEVER, NEVER, total, NEVER),
        PositionStatistics(NEVER, NEVER, NEVER, NEVER, NEVER, total),
    ]


def test_positions_are_bounded_and_last_counts_rest(monkeypatch):
    monkeypatch.setattr(response_statistics, "MAX_POSITIONS", 3)
    statistics = ResponseStatistics()
    for position in range(10):
        statistics.record(position, SUCCESS, 0, 1, 1)
    assert [row.success.count for row in statistics.snapshot()] == [1, 1, 8]


def test_they_are_part_of_a_models_statistics():
    statistics = ModelStatistics("m", "1")
    assert statistics.snapshot().response_stats == []
    statistics.responses.record(0, EMPTY, 1, 2, 2)
    (row,) = statistics.snapshot().response_stats
    assert row.empty_response == Duration(1, 1)


def test_called_models_are_counted_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(response_statistics, "MAX_CALLED_MODELS", 2)
    called = CallStatistics()
    called.record("x" * 1000, 1, has_failed=False)
    for model, has_failed in (("a", False), ("b", True), ("c", False), ("a", True), ("a", False)):
        called.record(model, 10, has_failed=has_failed)
    rows = [each.snapshot() for each in called.counts]
    assert [(row.model, row.success, row.fail) for row in rows] == [
        ("a", Duration(2, 20), Duration(1, 10)),
        ("b", Duration(), Duration(1, 10)),
    ]
