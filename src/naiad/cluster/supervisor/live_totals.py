"""The counters of the live stream over all processes, also of those that have exited.

As `ExitedCounters` does for statistics and metrics, it adds the last noted rows of the living processes and of the
exited ones, so that no total becomes smaller when a process dies.
"""

from collections.abc import Sequence

from naiad.cluster.packed_live import Rows
from naiad.telemetry.live.live_answer import VersionKey, sum_rows
from naiad.telemetry.statistics.live_counts import LiveCounts, has_restarted, without_gauges


class LiveTotals:
    """The last rows of each process by its slot, and the sums of the exited ones."""

    def __init__(self) -> None:
        self._rows: dict[int, Rows] = {}
        self._left: dict[VersionKey, LiveCounts] = {}

    def note(self, slot: int, rows: Rows) -> None:
        """Note the rows of a process.

        Counters restart when a version is reloaded; then the rows of exited processes of it end as well.
        """
        for key, before in self._rows.get(slot, {}).items():
            now = rows.get(key)
            if key in self._left and (now is None or has_restarted(now, before)):
                self._left = {left: row for left, row in self._left.items() if left != key}
        self._rows[slot] = rows

    def retire(self, slot: int) -> None:
        """Keep the counters of an exited process; another process may take its slot."""
        exited = self._rows.pop(slot, None)
        if exited:
            self._left = sum_rows([self._left, {key: without_gauges(row) for key, row in exited.items()}])

    def to_add(self) -> Sequence[Rows]:
        """Return what the sums are made of; it does not change."""
        return [*self._rows.values(), self._left]
