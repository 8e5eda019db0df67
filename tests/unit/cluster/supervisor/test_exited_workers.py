"""Sums over processes, including exited ones."""

from dataclasses import replace

from naiad.cluster.supervisor.scatter_gather import ExitedCounters
from naiad.telemetry.metrics.exposition import parse
from naiad.telemetry.statistics.version_statistics import Duration, VersionStatistics


def counts(count: int, name: str = "m") -> VersionStatistics:
    return VersionStatistics(name, "1", inference_count=count, success=Duration(count, 10 * count))


def metrics(value: int, model: str = "m") -> bytes:
    lines = ["# HELP c Help", "# TYPE c counter", f'c{{model="{model}"}} {value}']
    lines += ["# HELP g Help", "# TYPE g gauge", f"g {value}"]
    return ("\n".join(lines) + "\n").encode()


def note(exited_counters: ExitedCounters, slot: int, value: int, name: str = "m") -> None:
    exited_counters.note_statistics(slot, [counts(value, name)])
    exited_counters.note_metrics(slot, parse(metrics(value, name)))


def total(exited_counters: ExitedCounters, model: str = "m") -> tuple[int, float]:
    """Return the statistics and metrics of a model."""
    rows = {row.name: row.inference_count for row in exited_counters.statistics()}
    samples = exited_counters.metrics().samples
    return rows.get(model, 0), samples.get("c", {}).get(f'c{{model="{model}"}}', 0)


def test_what_processes_count_adds_up() -> None:
    exited_counters = ExitedCounters()
    note(exited_counters, 0, 3)
    note(exited_counters, 1, 4)
    assert total(exited_counters) == (7, 7)
    note(exited_counters, 0, 5)
    assert total(exited_counters) == (9, 9)


def test_sums_never_decrease_when_processes_die() -> None:
    exited_counters = ExitedCounters()
    note(exited_counters, 0, 3)
    note(exited_counters, 1, 4)
    exited_counters.retire(1)
    assert total(exited_counters) == (7, 7)
    note(exited_counters, 1, 0)
    assert total(exited_counters) == (7, 7)
    note(exited_counters, 1, 2)
    exited_counters.retire(1)
    exited_counters.retire(0)
    note(exited_counters, 0, 1)
    assert total(exited_counters) == (10, 10)


def test_models_of_one_name_are_counted_apart() -> None:
    def rows(one: int, other: int) -> list[VersionStatistics]:
        return [replace(counts(one), namespace="/a"), replace(counts(other), namespace="/b")]

    exited_counters = ExitedCounters()
    for slot in (0, 1):
        exited_counters.note_statistics(slot, rows(3, 4))
    exited_counters.retire(1)
    assert [(row.namespace, row.inference_count) for row in exited_counters.statistics()] == [("/a", 6), ("/b", 8)]
    exited_counters.note_statistics(0, rows(0, 5))  # the model in /a was reloaded
    assert [(row.namespace, row.inference_count) for row in exited_counters.statistics()] == [("/a", 0), ("/b", 9)]


def test_gauges_die_with_their_process() -> None:
    exited_counters = ExitedCounters()
    note(exited_counters, 0, 3)
    note(exited_counters, 1, 4)
    exited_counters.retire(1)
    assert exited_counters.metrics().samples["g"] == {"g": 3}


def test_a_process_that_never_said_anything_leaves_nothing() -> None:
    exited_counters = ExitedCounters()
    note(exited_counters, 0, 3)
    exited_counters.retire(1)
    assert total(exited_counters) == (3, 3)


def test_models_that_no_living_process_has_are_hidden() -> None:
    exited_counters = ExitedCounters()
    note(exited_counters, 0, 3, "gone")
    note(exited_counters, 1, 4, "here")
    exited_counters.retire(0)
    assert total(exited_counters, "gone") == (0, 0)
    assert total(exited_counters, "here") == (4, 4)


def test_reloaded_model_starts_at_zero() -> None:
    exited_counters = ExitedCounters()
    note(exited_counters, 0, 3)
    note(exited_counters, 1, 9)
    exited_counters.retire(1)
    assert total(exited_counters) == (12, 12)
    note(exited_counters, 0, 0)
    assert total(exited_counters) == (0, 0)


def test_unloaded_model_leaves_no_counts() -> None:
    exited_counters = ExitedCounters()
    note(exited_counters, 0, 3)
    note(exited_counters, 1, 9)
    exited_counters.retire(1)
    exited_counters.note_statistics(0, [])
    exited_counters.note_metrics(0, parse(b""))
    assert total(exited_counters) == (0, 0)
    note(exited_counters, 0, 1)
    assert total(exited_counters) == (1, 1)


def test_a_load_that_changes_nothing_forgets_nothing() -> None:
    exited_counters = ExitedCounters()
    note(exited_counters, 0, 3)
    note(exited_counters, 1, 9)
    exited_counters.retire(1)
    note(exited_counters, 0, 3)
    assert total(exited_counters) == (12, 12)
