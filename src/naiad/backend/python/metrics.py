"""The metrics of a Python model's instance: what its workers make known, and how long it lasts."""

import json
from collections.abc import Mapping
from typing import Any

from naiad.backend.custom_metrics import CustomMetrics, MetricHolder


class InstanceMetrics:
    """The metrics of the workers of one instance.

    A worker that takes the place of another makes the same metrics again; what the other had stays until then, so
    that counters do not begin anew.
    """

    def __init__(self, metrics: CustomMetrics | None) -> None:
        self._metrics = metrics
        self._earlier: list[MetricHolder] = []
        self.holder: MetricHolder | None = None
        """Of the worker that runs; None where metrics are not known."""

    @property
    def descriptor(self) -> int:
        """The page of cells, for workers to inherit; -1 where metrics are not known. Raises OSError."""
        return -1 if self._metrics is None else self._metrics.descriptor

    def begin(self) -> None:
        """Note that a worker is started."""
        if self._metrics is not None:
            if self.holder is not None:
                self._earlier.append(self.holder)
            self.holder = self._metrics.holder()

    def settle(self) -> None:
        """Note that the worker is ready: what it has not made again is gone."""
        while self._earlier:
            self._earlier.pop().close()

    def close(self) -> None:
        """Let go of all metrics."""
        self.settle()
        if self.holder is not None:
            self.holder.close()


def define(holder: MetricHolder, notes: Mapping[str, Any]) -> dict[str, str | int]:
    """Make what a worker asks for and return what it is told. Raises InferError; LookupError, TypeError or ValueError
    for what no worker asks for.
    """
    if "family" in notes:
        number = holder.new_family(str(notes["family"]), str(notes["description"]), str(notes["kind"]))
        return {"family": number}
    labels = {str(name): str(value) for name, value in notes["labels"].items()}
    bounds = [float(bound) for bound in notes["buckets"]]
    cell, known_bounds = holder.new_metric(int(notes["metric_of"]), labels, bounds)
    return {"cell": cell, "bounds": json.dumps(known_bounds)}
