"""Metrics that models and backends define: their holders and their exposition.

Values are in cells that all workers share (`worker.api.metrics`). Here is what they mean: families by name, and in
each the metrics by their labels. Each exists while a holder has its family.
"""

import contextlib
import json
import math
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from typing import TYPE_CHECKING, Any

from naiad.core.errors import ErrorCode, InferError, invalid_argument, unavailable
from naiad.telemetry.metrics.exposition import format_family, format_labels, format_value, series_names

if TYPE_CHECKING:
    from naiad.worker.api.metric_family import MetricCells, MetricFamily

_MOST_LABELS = 32
_MOST_BUCKETS = 256
_LONGEST_NAME = 256
_LONGEST_TEXT_BYTES = 4096
_FAMILY_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_KINDS = ("counter", "gauge", "histogram")


def check_family(name: str, help_text: str, kind: str) -> None:
    """Raise InferError for a name, description or kind that a family cannot have."""
    _check_name("metric name", name, _FAMILY_NAME, "letters, digits, _ and :, no digit first")
    _check_text(f"the description of metric family '{name}'", help_text)
    if kind not in _KINDS:
        raise invalid_argument(f"metric family '{name}': kind '{kind}' is not one of {', '.join(_KINDS)}")


def check_metric(family: str, kind: str, labels: Mapping[str, str], bounds: Sequence[float]) -> None:
    """Raise InferError for labels and bucket bounds that a metric cannot have."""
    where = f"metric family '{family}'"
    if len(labels) > _MOST_LABELS:
        raise invalid_argument(f"{where}: {len(labels)} labels; {_MOST_LABELS} are the most")
    for label, value in labels.items():
        # Prometheus keeps names with two underscores in front for itself.
        _check_name("label name", label, _LABEL_NAME, "letters, digits and _, no digit first, not __ in front")
        _check_text(f"{where}: the value of label '{label}'", value)
    if kind == "histogram":
        if "le" in labels:
            raise invalid_argument(f"{where}: label 'le' is the one of the histogram's buckets; use another name")
        _check_bounds(where, bounds)
    elif bounds:
        raise invalid_argument(f"{where}: a {kind} has no buckets")


def _check_name(what: str, name: str, pattern: re.Pattern[str], allowed: str) -> None:
    if not pattern.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise invalid_argument(f"Invalid {what} {name[:80]!r}: use {allowed}, at most {_LONGEST_NAME} characters")


def _check_text(what: str, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise invalid_argument(f"{what} is not valid Unicode: {text[:80]!r}") from None
    if size > _LONGEST_TEXT_BYTES:
        raise invalid_argument(f"{what} has {size} bytes; {_LONGEST_TEXT_BYTES} are the most")


def _check_bounds(where: str, bounds: Sequence[float]) -> None:
    if len(bounds) > _MOST_BUCKETS:
        raise invalid_argument(f"{where}: {len(bounds)} buckets; {_MOST_BUCKETS} are the most")
    if any(math.isnan(bound) for bound in bounds) or list(bounds) != sorted(set(bounds)):
        raise invalid_argument(f"{where}: bucket bounds must ascend, each once, not {list(bounds)}")
    if bounds and math.isinf(bounds[-1]):
        raise invalid_argument(f"{where}: every histogram has a bucket +Inf; leave it out")


MOST_HELD_CELLS = 16384
"""Cells that one holder may have: a label with another value in each request fills only these."""

_Key = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Metric:
    cell: int
    size: int
    labels: Mapping[str, str]
    bounds: Sequence[float]
    reference_count: int = 0


@dataclass(slots=True)
class _Family:
    name: str
    help: str
    kind: str
    metrics: dict[_Key, _Metric] = field(default_factory=dict)
    reference_count: int = 0


class CustomMetrics:
    """All custom metrics of a server process; thread-safe."""

    def __init__(self, is_taken: Callable[[str], bool] = lambda _: False) -> None:
        """`is_taken` returns whether one of the server's own metrics has a name."""
        self._is_taken = is_taken
        self._lock = threading.Lock()
        self._families: dict[str, _Family] = {}
        self._descriptor = -1
        self._cells: MetricCells | None = None
        self._unused_from = 0
        self._free: dict[int, list[int]] = {}
        """First cells of what metrics have left, by size."""
        self._leaving: deque[tuple[MetricHolder, int]] = deque()
        """Families that holders have released; a finalizer may do so in a thread that holds the lock."""

    @property
    def descriptor(self) -> int:
        """The page of cells, for workers to inherit. Raises OSError when it cannot be made."""
        with self._lock:
            return self._page()

    @property
    def cells(self) -> "MetricCells":
        """Where the values are. Raises OSError."""
        with self._lock:
            return self._mapped()

    def _page(self) -> int:
        if self._descriptor < 0:
            # Here and below: most servers have no metrics of models.
            from naiad.worker.api.metric_family import PAGE_BYTES
            from naiad.worker.channel.buffer_pool import anonymous_file

            self._descriptor = anonymous_file(PAGE_BYTES)
        return self._descriptor

    def _mapped(self) -> "MetricCells":
        if self._cells is None:
            from naiad.worker.api.metric_family import MetricCells

            self._cells = MetricCells(self._page())
        return self._cells

    def holder(self) -> "MetricHolder":
        """Return a new holder of metrics."""
        return MetricHolder(self)

    def close(self) -> None:
        """Release the page; no metric may be used any more."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def render(self) -> Iterable[str]:
        """Return each family in the text format."""
        with self._locked():
            cells = self._cells
            shown = [(family, list(family.metrics.values())) for family in self._families.values()]
        return [
            format_family(
                family.name,
                family.kind,
                family.help,
                [line for metric in metrics if cells is not None for line in _lines(family, metric, cells)],
            )
            for family, metrics in shown
        ]

    # --- called by holders ------------------------------------------------------------------------------------------

    def join_family(self, holder: "MetricHolder", name: str, help_text: str, kind: str) -> int:
        """Make a family, or note that one more has it; return its number there. Raises InferError."""
        check_family(name, help_text, kind)
        with self._locked():
            series = series_names(name, kind)
            if any(map(self._is_taken, series)):
                raise _exists(f"the server has a metric family '{name}' of its own; use another name")
            family = self._families.get(name)
            if family is None:
                self._check_series(name, series)
                family = self._families[name] = _Family(name, help_text, kind)
            elif family.kind != kind:
                # Triton's text, followed by the subject.
                raise _exists(f"Family name already exists with different type: '{name}' is a {family.kind}")
            family.reference_count += 1
            number = next(holder.numbers)
            holder.held[number] = (family, {})
            return number

    def _check_series(self, name: str, series: Sequence[str]) -> None:
        """Raise InferError if another family has one of the series: `a` as a histogram has `a_count`."""
        for other in self._families.values():
            shared = set(series).intersection(series_names(other.name, other.kind))
            if shared:
                raise _exists(
                    f"metric family '{name}' would have the series '{min(shared)}' of the {other.kind} "
                    f"'{other.name}'; use another name"
                )

    def join_metric(
        self, holder: "MetricHolder", number: int, labels: Mapping[str, str], bounds: Sequence[float]
    ) -> tuple[int, Sequence[float]]:
        """Make a metric, or note that one more has it; return its first cell and its bounds. Raises InferError."""
        key = tuple(sorted(labels.items()))
        with self._locked():
            if number not in holder.held:
                raise invalid_argument(f"there is no metric family {number}")
            family, held = holder.held[number]
            metric = family.metrics.get(key)
            if metric is None:
                check_metric(family.name, family.kind, labels, bounds)
                size = 2 + len(bounds) if family.kind == "histogram" else 1
                if holder.cell_count + size > MOST_HELD_CELLS:
                    raise unavailable(
                        f"metric family '{family.name}': an instance may have {MOST_HELD_CELLS} values; use labels "
                        "with few values"
                    )
                metric = _Metric(self._take_cells(family.name, size), size, dict(labels), bounds)
                family.metrics[key] = metric
            if key not in held:
                metric.reference_count += 1
                holder.cell_count += metric.size
                held[key] = metric
            return metric.cell, metric.bounds

    def leave_family(self, holder: "MetricHolder", number: int) -> None:
        """Note that one fewer has a family; does nothing when that has been done. Never waits for the lock."""
        self._leaving.append((holder, number))
        self._release()

    def leave(self, holder: "MetricHolder") -> None:
        """Note that a holder has nothing any more."""
        with self._locked():
            for number in list(holder.held):
                self._drop(holder, number)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        finally:
            self._release()

    def _release(self) -> None:
        """Remove released families, or leave that to the thread that holds the lock, which checks afterwards."""
        while self._leaving and self._lock.acquire(blocking=False):
            try:
                with contextlib.suppress(IndexError):  # another thread was quicker
                    self._drop(*self._leaving.popleft())
            finally:
                self._lock.release()

    def _drop(self, holder: "MetricHolder", number: int) -> None:
        found = holder.held.pop(number, None)
        if found is None:
            return
        family, held = found
        for key, metric in held.items():
            metric.reference_count -= 1
            holder.cell_count -= metric.size
            if not metric.reference_count:
                del family.metrics[key]
                self._free.setdefault(metric.size, []).append(metric.cell)
        family.reference_count -= 1
        if not family.reference_count:
            del self._families[family.name]

    def _take_cells(self, name: str, size: int) -> int:
        from naiad.worker.api.metric_family import CELLS

        cells = self._mapped()
        free = self._free.get(size)
        if free:
            cell = free.pop()
        elif self._unused_from + size <= CELLS:
            cell = self._unused_from
            self._unused_from += size
        else:
            raise unavailable(f"metric family '{name}': the {CELLS} values that a server may have are in use")
        cells.clear(cell, size)
        return cell


class MetricHolder:
    """A holder of metrics: a worker, or a backend in this process. They are shown until `close`. Thread-safe."""

    def __init__(self, metrics: CustomMetrics) -> None:
        self._metrics = metrics
        self.numbers = count(1)
        """Of families; used by `CustomMetrics` alone, like what follows."""
        self.held: dict[int, tuple[_Family, dict[_Key, _Metric]]] = {}
        self.cell_count = 0

    @property
    def cells(self) -> "MetricCells":
        """Where the values are. Raises OSError."""
        return self._metrics.cells

    def family(self, name: str, description: str, kind: str) -> "MetricFamily":
        """Return a family of the kind counter, gauge or histogram, for use in this process.

        Its metrics are shown for as long as the object lives and the holder is not closed. Raises InferError for what
        it cannot be.
        """
        from naiad.worker.api.metric_family import MetricFamily, MetricKind

        return MetricFamily(name, description, MetricKind[kind.upper()], self)

    def new_family(self, name: str, description: str, kind: str) -> int:
        """Return the number of a family, made or joined. Raises InferError."""
        return self._metrics.join_family(self, name, description, kind)

    def new_metric(
        self, family: int, labels: Mapping[str, str], buckets: Sequence[float] | None
    ) -> tuple[int, Sequence[float]]:
        """Return the first cell of a metric, made or joined, and its bucket bounds. Raises InferError."""
        return self._metrics.join_metric(self, family, labels, tuple(buckets or ()))

    def release_family(self, family: int) -> None:
        """Release a family and its metrics; callable in a finalizer."""
        self._metrics.leave_family(self, family)

    def close(self) -> None:
        """Release everything."""
        self._metrics.leave(self)


def _lines(family: _Family, metric: _Metric, cells: "MetricCells") -> list[str]:
    name, labels = family.name, format_labels(metric.labels)
    total, *buckets = cells.read(metric.cell, metric.size)
    if family.kind != "histogram":
        return [f"{name}{labels} {format_value(total)}"]
    counts = [int(number) for number in accumulate(buckets)]
    bounds = [*map(format_value, metric.bounds), "+Inf"]
    rows = [
        f"{name}_bucket{format_labels({**metric.labels, 'le': bound})} {number}"
        for bound, number in zip(bounds, counts, strict=True)
    ]
    return [*rows, f"{name}_sum{labels} {format_value(total)}", f"{name}_count{labels} {counts[-1]}"]


def _exists(message: str) -> InferError:
    return InferError(ErrorCode.ALREADY_EXISTS, message)


# --- metrics of workers ---------------------------------------------------------------------------------------------


class InstanceMetrics:
    """The metrics of the workers of one instance of a Python model.

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
