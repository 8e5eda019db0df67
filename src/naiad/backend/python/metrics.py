"""The metrics of a Python model's instance: the registrations of its workers, and their lifetime."""

import json
from collections.abc import Mapping
from typing import Any

from naiad.backend.custom_metrics import CustomMetrics, MetricHolder


class InstanceMetrics:
    """The metrics of the workers of one instance.

    A replacement worker registers the same metrics again; until then the metrics of the previous worker
    remain, so that counters do not restart.
    """

    def __init__(self, metrics: CustomMetrics | None) -> None:
        self._metrics = metrics
        self._earlier: list[MetricHolder] = []
        self.holder: MetricHolder | None = None
        """Of the worker that runs; None where metrics are not known."""

    @property
    def descriptor(self) -> int:
        """The page of cells, for workers to inherit; -1 without metrics. Raises OSError."""
        return -1 if self._metrics is None else self._metrics.descriptor

    def begin(self) -> None:
        """Note that a worker is started."""
        if self._metrics is not None:
            if self.holder is not None:
                self._earlier.append(self.holder)
            self.holder = self._metrics.holder()

    def settle(self) -> None:
        """Note that the worker is ready: metrics that it has not registered again are removed."""
        while self._earlier:
            self._earlier.pop().close()

    def close(self) -> None:
        """Release all metrics."""
        self.settle()
        if self.holder is not None:
            self.holder.close()


def define(holder: MetricHolder, notes: Mapping[str, Any]) -> dict[str, str | int]:
    """Register a worker's family or metric and return the result for it.

    Raises InferError; LookupError, TypeError or ValueError for a malformed request.
    """
    if "family" in notes:
        number = holder.new_family(str(notes["family"]), str(notes["description"]), str(notes["kind"]))
        return {"family": number}
    labels = {str(name): str(value) for name, value in notes["labels"].items()}
    bounds = [float(bound) for bound in notes["buckets"]]
    cell, known_bounds = holder.new_metric(int(notes["metric_of"]), labels, bounds)
    return {"cell": cell, "bounds": json.dumps(known_bounds)}
