"""Sums over processes, the dead included."""

from dataclasses import replace

from naiad.cluster.supervisor.scatter_gather import Ledger
from naiad.telemetry.statistics.parts import Duration
from naiad.telemetry.statistics.version import VersionStatistics


def counts(count: int, name: str = "m") -> VersionStatistics:
    return VersionStatistics(name, "1", inference_count=count, success=Duration(count, 10 * count))


def metrics(value: int, model: str = "m") -> bytes:
    lines = ["# HELP c Help", "# TYPE c counter", f'c{{model="{model}"}} {value}']
    lines += ["# HELP g Help", "# TYPE g gauge", f"g {value}"]
    return ("\n".join(lines) + "\n").encode()


def note(ledger: Ledger, slot: int, value: int, name: str = "m") -> None:
    ledger.note_statistics(slot, [counts(value, name)])
    ledger.note_metrics(slot, metrics(value, name))


def total(ledger: Ledger, model: str = "m") -> tuple[int, float]:
    """Return what statistics and metrics say about a model."""
    rows = {row.name: row.inference_count for row in ledger.statistics()}
    samples = ledger.metrics().samples
    return rows.get(model, 0), samples.get("c", {}).get(f'c{{model="{model}"}}', 0)


def test_what_processes_count_adds_up() -> None:
    ledger = Ledger()
    note(ledger, 0, 3)
    note(ledger, 1, 4)
    assert total(ledger) == (7, 7)
    note(ledger, 0, 5)
    assert total(ledger) == (9, 9)


def test_no_sum_goes_down_when_processes_die() -> None:
    ledger = Ledger()
    note(ledger, 0, 3)
    note(ledger, 1, 4)
    ledger.bury(1)
    assert total(ledger) == (7, 7)
    note(ledger, 1, 0)
    assert total(ledger) == (7, 7)
    note(ledger, 1, 2)
    ledger.bury(1)
    ledger.bury(0)
    note(ledger, 0, 1)
    assert total(ledger) == (10, 10)


def test_models_of_one_name_are_counted_apart() -> None:
    def rows(one: int, other: int) -> list[VersionStatistics]:
        return [replace(counts(one), namespace="/a"), replace(counts(other), namespace="/b")]

    ledger = Ledger()
    for slot in (0, 1):
        ledger.note_statistics(slot, rows(3, 4))
    ledger.bury(1)
    assert [(row.namespace, row.inference_count) for row in ledger.statistics()] == [("/a", 6), ("/b", 8)]
    ledger.note_statistics(0, rows(0, 5))  # that of /a was loaded anew
    assert [(row.namespace, row.inference_count) for row in ledger.statistics()] == [("/a", 0), ("/b", 9)]


def test_gauges_die_with_their_process() -> None:
    ledger = Ledger()
    note(ledger, 0, 3)
    note(ledger, 1, 4)
    ledger.bury(1)
    assert ledger.metrics().samples["g"] == {"g": 3}


def test_a_process_that_never_said_anything_leaves_nothing() -> None:
    ledger = Ledger()
    note(ledger, 0, 3)
    ledger.bury(1)
    assert total(ledger) == (3, 3)


def test_models_that_no_living_process_has_are_hidden() -> None:
    ledger = Ledger()
    note(ledger, 0, 3, "gone")
    note(ledger, 1, 4, "here")
    ledger.bury(0)
    assert total(ledger, "gone") == (0, 0)
    assert total(ledger, "here") == (4, 4)


def test_a_model_that_was_loaded_anew_begins_at_nothing() -> None:
    ledger = Ledger()
    note(ledger, 0, 3)
    note(ledger, 1, 9)
    ledger.bury(1)
    assert total(ledger) == (12, 12)
    note(ledger, 0, 0)
    assert total(ledger) == (0, 0)


def test_a_model_that_was_unloaded_leaves_nothing_for_its_next_life() -> None:
    ledger = Ledger()
    note(ledger, 0, 3)
    note(ledger, 1, 9)
    ledger.bury(1)
    ledger.note_statistics(0, [])
    ledger.note_metrics(0, b"")
    assert total(ledger) == (0, 0)
    note(ledger, 0, 1)
    assert total(ledger) == (1, 1)


def test_a_load_that_changes_nothing_forgets_nothing() -> None:
    ledger = Ledger()
    note(ledger, 0, 3)
    note(ledger, 1, 9)
    ledger.bury(1)
    note(ledger, 0, 3)
    assert total(ledger) == (12, 12)
