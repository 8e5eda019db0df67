"""The columns of a measurement, gathered from the chunks of generator processes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from naiad.perf.records import MAX_FAILURE_KINDS, Columns, FailureKind, Records

_NAMES = (
    ("intended_ns", np.int64),
    ("start_ns", np.int64),
    ("sent_ns", np.int64),
    ("first_ns", np.int64),
    ("end_ns", np.int64),
    ("responses", np.int32),
    ("failure", np.int16),
    ("model", np.int16),
    ("template", np.int32),
    ("sequence_id", np.uint64),
    ("sequence_end", np.int8),
)


class ColumnStore:
    """Joins records into columns sorted by their end."""

    def __init__(self) -> None:
        self._failures: list[FailureKind] = []
        self.columns = self._columns_of(Records())

    def add(self, chunks: Sequence[Records]) -> Columns:
        """Append records; return them alone, sorted by their end."""
        added = _joined([self._columns_of(records) for records in chunks])
        self.columns = _joined([self.columns, added])
        self.columns.failures = added.failures = self._failures
        return added

    def _columns_of(self, records: Records) -> Columns:
        # The generator appends no more to these records, so their memory is used as it is.
        values: dict[str, Any] = {
            name: np.frombuffer(getattr(records, name), kind) for name, kind in _NAMES if len(records)
        }
        if not values:
            values = {name: np.empty(0, kind) for name, kind in _NAMES}
        elif records.failures:
            numbers = np.array([0, *(self._number(each) for each in records.failures)], np.int16)
            values["failure"] = numbers[values["failure"]]
        gaps_ns = np.array(records.gaps_ns, np.int64)
        return Columns(**values, gaps_ns=gaps_ns, failures=self._failures, timings=records.timings)

    def _number(self, failure: FailureKind) -> int:
        """Return 1 + the index of a kind, and count its failures."""
        kinds = [each.kind for each in self._failures]
        index = kinds.index(failure.kind) if failure.kind in kinds else min(len(kinds), MAX_FAILURE_KINDS - 1)
        if index == len(kinds):
            self._failures.append(FailureKind(failure.kind, failure.message))
        self._failures[index].count += failure.count
        return index + 1


def _joined(parts: Sequence[Columns]) -> Columns:
    if len(parts) == 1:
        return _sorted(parts[0])
    timings: list[tuple[int, str]] = []
    start = 0
    for part in parts:
        timings += [(start + index, text) for index, text in part.timings]
        start += len(part.end_ns)
    values = {name: np.concatenate([getattr(part, name) for part in parts]) for name, _ in _NAMES}
    values["gaps_ns"] = np.concatenate([part.gaps_ns for part in parts])
    return _sorted(Columns(**values, failures=parts[0].failures, timings=timings))


def _sorted(columns: Columns) -> Columns:
    ends = columns.end_ns
    if len(ends) < 2 or bool((ends[1:] >= ends[:-1]).all()):
        return columns
    order = np.argsort(ends, kind="stable")
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    values = {name: getattr(columns, name)[order] for name, _ in _NAMES}
    timings = sorted((int(places[index]), text) for index, text in columns.timings)
    return Columns(**values, gaps_ns=columns.gaps_ns, failures=columns.failures, timings=timings)
