"""What all processes have counted, those that have died included, so that no sum ever goes down."""

from collections.abc import Sequence

from naiad.telemetry import exposition_sum
from naiad.telemetry.exposition_sum import Exposition
from naiad.telemetry.statistics_sum import sum_statistics
from naiad.telemetry.version_statistics import VersionStatistics


class Ledger:
    """The last counts of every process, and what is left of the dead.

    Sums are made of what was noted, never of an answer alone: a process that dies while others are still being asked
    is counted once. What a process counted after it was last asked dies with it.
    """

    def __init__(self) -> None:
        self._statistics: dict[int, Sequence[VersionStatistics]] = {}
        self._metrics: dict[int, Exposition] = {}
        self._left_statistics: list[VersionStatistics] = []
        self._left_metrics = Exposition()

    def note_statistics(self, slot: int, statistics: Sequence[VersionStatistics]) -> None:
        """Take over what a process has counted.

        Counters start again when a model is loaded anew, and end when it is unloaded; then what the dead have counted
        of it ends as well.
        """
        counts = {row.key: _request_count(row) for row in statistics}
        for row in self._statistics.get(slot, ()):
            if counts.get(row.key, -1) < _request_count(row):
                self._forget_model(row.namespace, row.name)
        self._statistics[slot] = statistics

    def note_metrics(self, slot: int, text: bytes) -> None:
        """Take over what a process shows."""
        self._metrics[slot] = exposition_sum.parse(text)

    def bury(self, slot: int) -> None:
        """Keep what a process had counted; another may take its slot."""
        self._left_statistics = sum_statistics([self._left_statistics, self._statistics.pop(slot, ())])
        metrics = self._metrics.pop(slot, None)
        if metrics is not None:
            self._left_metrics = exposition_sum.add([self._left_metrics, exposition_sum.cumulative(metrics)])

    def _forget_model(self, namespace: str, model: str) -> None:
        self._left_statistics = [
            counts for counts in self._left_statistics if (counts.namespace, counts.name) != (namespace, model)
        ]
        self._left_metrics = exposition_sum.without_model(self._left_metrics, model, namespace)

    def statistics(self) -> list[VersionStatistics]:
        """Return the sums of the model versions that a living process has."""
        living = {counts.key for rows in self._statistics.values() for counts in rows}
        left = [counts for counts in self._left_statistics if counts.key in living]
        rows = [self._statistics[slot] for slot in sorted(self._statistics)]
        return sum_statistics([*rows, left])

    def metrics(self) -> Exposition:
        """Return the sums of the series that a living process shows."""
        shown = exposition_sum.add([self._metrics[slot] for slot in sorted(self._metrics)])
        return exposition_sum.add_left(shown, self._left_metrics)


def _request_count(row: VersionStatistics) -> int:
    return row.success.count + row.fail.count
