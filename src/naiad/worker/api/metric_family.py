"""`pb_utils.MetricFamily` and its metrics: the counters of a model, shown at `/metrics`.

The values are cells in memory that the server and all workers share (`MetricCells`). A worker changes them without a
message to the server, which reads them at a scrape; the counts of a dead worker remain. Byte-range locks exclude
other processes from a cell, and end with the process that holds them.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import weakref
from bisect import bisect_left
from functools import partial
from typing import Any, Mapping, Protocol, Sequence

from naiad.worker.api.arguments import NativeEnum, instance, number, text
from naiad.worker.api.failure import TritonModelException

CELLS = 1 << 17
"""Cells of a page, 1 MiB; the system allocates only the used part."""
_CELL_BYTES = 8
PAGE_BYTES = CELLS * _CELL_BYTES


class MetricCells:
    """One process's mapping of the page; thread-safe."""

    def __init__(self, descriptor: int) -> None:
        """Map the page that `anonymous_file(PAGE_BYTES)` has made. Raises OSError.

        The descriptor must stay open: closing it would end the locks that other threads hold.
        """
        self._descriptor = descriptor
        self._values = memoryview(mmap.mmap(descriptor, PAGE_BYTES)).cast("d")
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            # A process that the model forks while another thread counts would deadlock.
            # A weak reference, because hooks after a fork are kept forever.
            os.register_at_fork(after_in_child=partial(_renew_lock, weakref.ref(self)))

    def read(self, cell: int, count: int) -> Sequence[float]:
        """Return the values of consecutive cells."""
        return self._values[cell : cell + count].tolist()

    def value(self, cell: int) -> float:
        """Return the value of a cell."""
        return self._values[cell]

    def add(self, cell: int, amount: float) -> None:
        """Add to a cell."""
        with self._lock:
            self._hold(fcntl.LOCK_EX, cell)
            try:
                self._values[cell] += amount
            finally:
                self._hold(fcntl.LOCK_UN, cell)

    def set(self, cell: int, value: float) -> None:
        """Set the value of a cell."""
        with self._lock:
            # Otherwise another process could add to the previous value and undo this one.
            self._hold(fcntl.LOCK_EX, cell)
            try:
                self._values[cell] = value
            finally:
                self._hold(fcntl.LOCK_UN, cell)

    def observe(self, cell: int, bucket: int, value: float) -> None:
        """Count a value in a histogram: its sum is the first cell, its buckets follow."""
        with self._lock:
            # The lock of the first cell covers all of them.
            self._hold(fcntl.LOCK_EX, cell)
            try:
                self._values[cell] += value
                self._values[cell + 1 + bucket] += 1
            finally:
                self._hold(fcntl.LOCK_UN, cell)

    def clear(self, cell: int, count: int) -> None:
        """Set unused consecutive cells to 0."""
        self._values[cell : cell + count] = memoryview(bytes(count * _CELL_BYTES)).cast("d")

    def renew_lock(self) -> None:
        """Reset the lock in a forked process: its holder is a thread of another process."""
        self._lock = threading.Lock()

    def _hold(self, how: int, cell: int) -> None:
        fcntl.lockf(self._descriptor, how, _CELL_BYTES, cell * _CELL_BYTES)


def _renew_lock(reference: weakref.ref[MetricCells]) -> None:
    cells = reference()
    if cells is not None:
        cells.renew_lock()


_OUTSIDE = "no server counts metrics here"
_DELETED = "Invalid metric operation as the corresponding 'MetricFamily' has been deleted."


class MetricKind(NativeEnum):
    """The operations of a family's metrics."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class MetricServer(Protocol):
    """Registers families and metrics at the server. Both calls raise TritonModelException."""

    @property
    def cells(self) -> MetricCells:
        """The page of values."""

    def new_family(self, name: str, description: str, kind: str) -> int:
        """Return the number of a family, created or joined."""

    def new_metric(
        self, family: int, labels: Mapping[str, str], buckets: Sequence[float] | None
    ) -> tuple[int, Sequence[float]]:
        """Return the first cell of a metric, created or joined, and its bucket bounds."""

    def release_family(self, family: int) -> None:
        """Note the end of a family and its metrics; callable during garbage collection."""


_server: MetricServer | None = None


def set_metric_server(server: MetricServer | None) -> None:
    """Set the registration of families; for the server."""
    global _server  # noqa: PLW0603 - a process has one model
    _server = server


class Metric:
    """One series of a family: a value, or the buckets of a histogram. All workers share its value."""

    __slots__ = ("_bounds", "_cell", "_cells", "_family", "_kind")

    def __init__(self, family: MetricFamily, cells: MetricCells, cell: int, bounds: Sequence[float]) -> None:
        # Triton: a metric does not keep its family alive.
        self._family = weakref.ref(family)
        self._kind = family.kind
        self._cells = cells
        self._cell = cell
        self._bounds = bounds

    def increment(self, value: float) -> None:
        """Add to a counter or a gauge. Raises TritonModelException for a histogram; counters only grow."""
        amount = self._checked(value, "increment")
        if self._kind is MetricKind.HISTOGRAM:
            raise self._unsupported("increment", "Increment")
        if self._kind is MetricKind.COUNTER and not amount >= 0:
            raise TritonModelException(
                "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be incremented "
                f"monotonically by non-negative values, not by {amount}."
            )
        self._cells.add(self._cell, amount)

    def set(self, value: float) -> None:
        """Set a gauge. Raises TritonModelException for the other kinds."""
        number = self._checked(value, "set")
        if self._kind is not MetricKind.GAUGE:
            raise self._unsupported("set", "Set")
        self._cells.set(self._cell, number)

    def observe(self, value: float) -> None:
        """Count a value in a histogram. Raises TritonModelException for the other kinds and for NaN."""
        number = self._checked(value, "observe")
        if self._kind is not MetricKind.HISTOGRAM:
            raise self._unsupported("observe", "Observe")
        if number != number:
            raise TritonModelException("Failed to observe metric value: NaN belongs to no bucket.")
        self._cells.observe(self._cell, bisect_left(self._bounds, number), number)

    def value(self) -> float:
        """Return the value of a counter or a gauge. Raises TritonModelException for a histogram."""
        self._checked(0.0, "get")
        if self._kind is MetricKind.HISTOGRAM:
            raise self._unsupported("get", "Value")
        return self._cells.value(self._cell)

    def _checked(self, value: Any, verb: str) -> float:
        if self._family() is None:
            raise TritonModelException(_DELETED)
        return number(value, f"Metric: expected value to {verb}")

    def _unsupported(self, verb: str, operation: str) -> TritonModelException:
        return TritonModelException(
            f"Failed to {verb} metric value: TRITONSERVER_METRIC_KIND_{self._kind.name} does not support {operation}"
        )


class MetricFamily:
    """Metrics of one name and kind that differ in their labels; they are shown while the family lives."""

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind, server: MetricServer | None = None) -> None:
        """Create a family, or join one of this or another model; the first description stays.

        Raises TritonModelException for an invalid name, or the name of a family of another kind.
        """
        self._number = 0
        name = text(name, "MetricFamily: expected name")
        description = text(description, "MetricFamily: expected description", "replace")
        self.kind = instance(kind, MetricKind, "MetricFamily: expected kind")
        found = server or _server
        if found is None:
            raise TritonModelException(f"Error when creating MetricFamily: {_OUTSIDE}")
        self._server = found
        self._metrics: dict[Any, Metric] = {}
        try:
            self._number = found.new_family(name, description, kind.name.lower())
        except TritonModelException as error:
            raise TritonModelException(f"Error when creating MetricFamily: {error}") from None

    def Metric(  # noqa: N802 - Triton's name
        self, labels: dict[str, str] | None = None, buckets: list[float] | None = None
    ) -> Metric:
        """Return the metric with these labels. `buckets` are a histogram's upper bounds, ascending.

        Metrics with the same labels are one, in all instances and models. Raises TritonModelException for invalid
        labels and buckets.
        """
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is not None and not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        given: dict[Any, Any] = dict(labels or {})
        bounds = None if buckets is None else [number(bound, "Metric: expected each bucket") for bound in buckets]
        if (bounds is None) is (self.kind is MetricKind.HISTOGRAM):
            # Triton's text.
            what = "Unexpected buckets found." if bounds is not None else "Missing required buckets."
            raise TritonModelException(f"Failed to create metric. {what}")
        for name, value in given.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TritonModelException(
                    f"Error when creating Metric: label {name!r} is {value!r}; names and values must be strings"
                )
        key = tuple(sorted(given.items()))
        metric = self._metrics.get(key)
        if metric is None:
            try:
                cell, known_bounds = self._server.new_metric(self._number, given, bounds)
            except TritonModelException as error:
                raise TritonModelException(f"Error when creating Metric: {error}") from None
            metric = self._metrics.setdefault(key, Metric(self, self._server.cells, cell, list(known_bounds)))
        return metric

    def __del__(self) -> None:
        """Notify the server of the end of the family and its metrics."""
        if self._number:
            self._server.release_family(self._number)
