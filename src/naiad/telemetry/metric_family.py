"""Metrics that others define: a family has a name, a kind and help, its metrics differ in labels."""

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal

from naiad.telemetry.exposition import format_family, format_labels, format_value

Kind = Literal["counter", "gauge", "histogram"]


class Metric:
    """One series of a family; thread-safe."""

    def __init__(self, kind: Kind, labels: Mapping[str, str], bounds: Sequence[float] = ()) -> None:
        self._kind = kind
        self._labels = dict(labels)
        self._bounds = tuple(bounds)
        self._buckets = [0] * (len(self._bounds) + 1)
        self._value = 0.0
        self._lock = threading.Lock()

    @property
    def value(self) -> float:
        """The count, the gauge's value, or the sum of what a histogram has observed."""
        return self._value

    def increment(self, amount: float = 1.0) -> None:
        """Add to a counter or a gauge. Raises ValueError for a histogram, and for less than nothing to a counter."""
        if self._kind == "histogram":
            raise ValueError("a histogram observes values, it is not incremented")
        if self._kind == "counter" and not amount >= 0:
            raise ValueError(f"a counter only grows: cannot add {amount}")
        with self._lock:
            self._value += amount

    def set(self, value: float) -> None:
        """Set a gauge. Raises ValueError for other kinds."""
        if self._kind != "gauge":
            raise ValueError(f"only a gauge is set, not a {self._kind}")
        self._value = float(value)

    def observe(self, value: float) -> None:
        """Count a value in a histogram. Raises ValueError for other kinds."""
        if self._kind != "histogram":
            raise ValueError(f"only a histogram observes, not a {self._kind}")
        with self._lock:
            self._value += value
            self._buckets[bisect_left(self._bounds, value)] += 1

    def samples(self, name: str) -> list[str]:
        """Return the lines of this series."""
        if self._kind != "histogram":
            return [f"{name}{format_labels(self._labels)} {format_value(self._value)}"]
        with self._lock:
            counts, total = list(accumulate(self._buckets)), self._value
        bounds = [*map(format_value, self._bounds), "+Inf"]
        lines = [
            f"{name}_bucket{format_labels({**self._labels, 'le': bound})} {count}"
            for bound, count in zip(bounds, counts, strict=True)
        ]
        labels = format_labels(self._labels)
        return [*lines, f"{name}_sum{labels} {format_value(total)}", f"{name}_count{labels} {counts[-1]}"]


class MetricFamily:
    """Metrics of one name; thread-safe."""

    def __init__(self, name: str, help_text: str, kind: Kind, *, bounds: Sequence[float] = ()) -> None:
        """`bounds` are a histogram's upper bucket bounds. Raises ValueError when they do not ascend."""
        if list(bounds) != sorted(set(bounds)):
            raise ValueError(f"buckets of metric '{name}' must ascend: {list(bounds)}")
        self.name = name
        self._help = help_text
        self._kind = kind
        self._bounds = tuple(bounds)
        self._metrics: dict[tuple[tuple[str, str], ...], Metric] = {}
        self._lock = threading.Lock()

    def metric(self, labels: Mapping[str, str] | None = None) -> Metric:
        """Return the metric with these labels, made at the first call."""
        labels = labels or {}
        key = tuple(sorted(labels.items()))
        with self._lock:
            found = self._metrics.get(key)
            if found is None:
                found = self._metrics[key] = Metric(self._kind, labels, self._bounds)
            return found

    def remove(self, labels: Mapping[str, str] | None = None) -> None:
        """Forget the metric with these labels, if there is one."""
        with self._lock:
            self._metrics.pop(tuple(sorted((labels or {}).items())), None)

    def render(self) -> str:
        """Return the family in the text format."""
        with self._lock:
            metrics = list(self._metrics.values())
        return format_family(self.name, self._kind, self._help, [s for m in metrics for s in m.samples(self.name)])
