"""How a worker's metrics are made known to the server: over the line of its calls, once each."""

from __future__ import annotations

import json
import threading
from typing import Any, Mapping, Sequence

from naiad.backend.worker.calls import Calls
from naiad.backend.worker.metric_cells import MetricCells


class MetricLine:
    """The server, as the metrics of a worker see it."""

    def __init__(self, calls: Calls, descriptor: int) -> None:
        """`descriptor` is that of the page of cells, which is mapped when there is a metric."""
        self._calls = calls
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._cells: MetricCells | None = None

    @property
    def cells(self) -> MetricCells:
        """Where the values are."""
        with self._lock:
            if self._cells is None:
                self._cells = MetricCells(self._descriptor)
            return self._cells

    def new_family(self, name: str, description: str, kind: str) -> int:
        """Return the number of a family, made or joined. Raises TritonModelException."""
        answer = self._define({"family": name, "description": description, "kind": kind})
        return int(answer["family"])

    def new_metric(
        self, family: int, labels: Mapping[str, str], buckets: Sequence[float] | None
    ) -> tuple[int, Sequence[float]]:
        """Return the first cell of a metric, made or joined, and its bounds. Raises TritonModelException."""
        answer = self._define({"metric_of": family, "labels": dict(labels), "buckets": list(buckets or ())})
        return int(answer["cell"]), json.loads(answer["bounds"])

    def release_family(self, family: int) -> None:
        """Tell the server that a family is gone."""
        self._calls.release_family(family)

    def _define(self, notes: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._calls.define(notes))
        return answer
