"""What this process answers to the live stream: counters of all versions, and details of those that a page shows.

What must be collected, such as the last requests, is collected only while pages ask for it: each query is a lease,
and `expire` ends what is no longer asked for.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from naiad.core.errors import InferError
from naiad.core.model import name_of
from naiad.core.slices import Slices
from naiad.engine.instances.instances import instance_specs
from naiad.engine.lookup.model_table import ModelTable
from naiad.engine.serving.served import Served
from naiad.telemetry.live.live_answer import (
    MAX_BATCHES,
    CallCounts,
    FailureEntry,
    GpuUse,
    InstanceRow,
    LiveAnswer,
    LiveDetail,
    LiveQuery,
    ModelVersionName,
    ReleasedBatch,
    VersionKey,
)
from naiad.telemetry.live.log_tail import LogTail
from naiad.telemetry.live.process_family import ProcessFamily
from naiad.telemetry.live.recent_requests import RecentRequests
from naiad.telemetry.live.tail import Tail
from naiad.telemetry.logs import log
from naiad.telemetry.statistics.model_statistics import ModelStatistics

if TYPE_CHECKING:
    from naiad.telemetry.statistics.live_counts import LiveCounts

MAX_FAILURES = 50
MAX_WATCHED = 64
"""Versions whose requests are kept one by one at the same time."""
_MAX_MESSAGE_CHARACTERS = 2048
_SLICE_VERSIONS = 64
"""Versions that are read in less than a millisecond."""


@dataclass(slots=True)
class _Watch:
    """A version whose requests are kept."""

    statistics: ModelStatistics
    requests: RecentRequests
    until_ns: int


class LiveState:
    """The state of this process for the live stream. Used on the event loop."""

    def __init__(self, models: ModelTable, is_ready: Callable[[], bool]) -> None:
        self._models = models
        self._is_ready = is_ready
        self.gpus: Callable[[], Sequence[GpuUse]] = tuple
        """Returns the GPUs as they were measured last; set by the server."""
        self._epoch_ns = time.time_ns() - time.monotonic_ns()
        """Unix time at which the monotonic clock was 0; read once, so that the time of a batch stays the same."""
        self._family = ProcessFamily()
        self._watches: dict[VersionKey, _Watch] = {}
        self._failures: Tail[FailureEntry] = Tail(MAX_FAILURES)
        self._failures_until_ns = 0
        self._log: LogTail | None = None
        self._log_until_ns = 0

    def answer(self, query: LiveQuery) -> Slices[LiveAnswer]:
        """Return the answer to a query; yields about every millisecond."""
        now_ns = time.monotonic_ns()
        until_ns = now_ns + int(query.lease_s * 1e9)
        self._keep_tails(query, until_ns)
        rows: dict[VersionKey, LiveCounts] = {}
        in_flight = 0
        for number, (key, served) in enumerate(self._versions(), start=1):
            count = served.in_flight_count
            pending = served.pending_count if count else 0
            row = served.statistics.live_counts(pending, count - pending)
            if row is not None:
                rows[key] = row
                in_flight += count
            if number % _SLICE_VERSIONS == 0:
                yield
        details = {}
        for name in query.details:
            detail = self._detail(name, now_ns, until_ns)
            if detail is not None:
                details[name] = detail
        yield
        self.expire(now_ns)
        cpu_s, resident_bytes = self._family.read()
        return LiveAnswer(
            is_ready=self._is_ready(),
            cpu_s=cpu_s,
            resident_bytes=resident_bytes,
            in_flight=in_flight,
            rows=rows,
            gpus=tuple(self.gpus()),
            details=details,
            failures=(self._failures.part(),),
            log=() if self._log is None or not query.has_log else (self._log.tail.part(),),
        )

    def expire(self, now_ns: int) -> None:
        """Collect no longer what no query has asked for lately."""
        for key, watch in list(self._watches.items()):
            if watch.until_ns < now_ns:
                self._end_watch(key)
        if self._log is not None and self._log_until_ns < now_ns:
            self._log.detach()
            self._log = None
        if self._failures_until_ns and self._failures_until_ns < now_ns:
            self._failures_until_ns = 0
            log.stop_showing_failures(self._note_failure)

    def _versions(self) -> Iterator[tuple[VersionKey, Served]]:
        for key, row in self._models.rows.items():
            for version, served in row.items():
                if version.isdigit():
                    yield (key, version), served

    # --- what is collected for pages --------------------------------------------------------------------------------

    def _keep_tails(self, query: LiveQuery, until_ns: int) -> None:
        if not self._failures_until_ns:
            log.show_failures(self._note_failure)
        self._failures_until_ns = max(self._failures_until_ns, until_ns)
        if query.has_log:
            if self._log is None:
                self._log = LogTail()
                self._log.attach()
            self._log_until_ns = max(self._log_until_ns, until_ns)

    def _note_failure(self, request_id: str, model: str, version: str, code: str, message: str) -> None:
        """Keep a failed request; called on any thread."""
        now_ms = time.time_ns() // 1_000_000
        self._failures.add(FailureEntry(now_ms, request_id, model, version, code, message[:_MAX_MESSAGE_CHARACTERS]))

    def _watch(self, served: Served, until_ns: int) -> RecentRequests | None:
        statistics = served.statistics
        key = (statistics.namespace + "::" + statistics.model, statistics.version)
        watch = self._watches.get(key)
        if watch is not None and watch.statistics is not statistics:  # it was reloaded
            self._end_watch(key)
            watch = None
        if watch is None:
            if len(self._watches) >= MAX_WATCHED:
                return None
            watch = self._watches[key] = _Watch(statistics, RecentRequests(), until_ns)
            statistics.observe(watch.requests)
        watch.until_ns = max(watch.until_ns, until_ns)
        return watch.requests

    def _end_watch(self, key: VersionKey) -> None:
        watch = self._watches.pop(key)
        watch.statistics.stop_observing(watch.requests)

    # --- details ----------------------------------------------------------------------------------------------------

    def _detail(self, name: ModelVersionName, now_ns: int, until_ns: int) -> LiveDetail | None:
        """Return a version in detail, None if it is not ready."""
        try:
            served = self._models.served(*name)
        except InferError:
            return None
        requests = self._watch(served, until_ns)
        return LiveDetail(
            version=served.version,
            recent=[] if requests is None else requests.recent(),
            slowest=[] if requests is None else requests.slowest(now_ns),
            batches=list(_batches(served.statistics, self._epoch_ns)),
            instances=list(_instances(served)),
            calls=_calls(served.statistics),
        )


def _batches(statistics: ModelStatistics, epoch_ns: int) -> Iterator[ReleasedBatch]:
    """Yield the last batches, newest first."""
    for batch in reversed(statistics.recent_batches()[-MAX_BATCHES:]):
        yield ReleasedBatch(
            (epoch_ns + batch.end_ns) // 1_000_000,
            batch.rows,
            batch.requests,
            f"{batch.reason}, {batch.decision}" if batch.decision else batch.reason,
            (batch.start_ns - batch.arrival_ns) // 1000,
            (batch.end_ns - batch.start_ns) // 1000,
        )


def _instances(served: Served) -> Iterator[InstanceRow]:
    instances = served.instances
    busy = served.busy_instances
    # A change of the instances in place may leave other specifications than instances for a moment.
    for instance, spec in zip(instances, instance_specs(served.config), strict=False):
        device = spec.device_id if spec.kind == "KIND_GPU" else None
        yield InstanceRow(spec.name, spec.kind, device, id(instance) in busy)


def _calls(statistics: ModelStatistics) -> dict[str, CallCounts]:
    """Return the requests to other models, by the steps of an ensemble or the code of a model."""
    found: dict[str, CallCounts] = {}
    for step in (each.snapshot() for each in (*statistics.steps, *statistics.called.counts)):
        name = name_of(step.model)
        known = found.get(name, CallCounts(0, 0, 0))
        found[name] = CallCounts(
            known.success + step.success.count,
            known.failure + step.fail.count,
            known.duration_ns + step.success.ns + step.fail.ns,
        )
    return found
