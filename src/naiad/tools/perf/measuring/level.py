"""The measurement of one load: warm-up, windows, and when it ends."""

import asyncio
import math
import time
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from naiad.tools.measure.result import Row
from naiad.tools.perf.generator.setup import MeasuredChunk
from naiad.tools.perf.load.arrivals import is_played_once
from naiad.tools.perf.perf_plan import Concurrency, Load, Measuring, PeriodicConcurrency, Ramp, Stop
from naiad.tools.perf.records import (
    MAX_FAILURE_KINDS,
    Columns,
    FailureKind,
    GeneratorFacts,
    KeptRequest,
    Measurement,
    Records,
    Unended,
)
from naiad.tools.perf.statistics.stability import StabilityVerdict, is_window_complete, verdict


@dataclass(frozen=True, slots=True)
class Tick:
    """A load so far."""

    elapsed_s: float
    """Since the measurement began; 0 during the warm-up."""
    requests: int
    failures: int
    rate_per_s: float
    """Successes a second since the tick before."""
    p50_us: float
    """Of the successes since the tick before; 0 without any."""
    p99_us: float
    reason: str
    """Why the measurement goes on."""


class PerfProgress:
    """Gets called on the event loop, and returns quickly; this one shows nothing."""

    def note(self, text: str) -> None:
        """The run differs from what its plan suggests."""

    def level_connects(self, load: Load) -> None:
        """The connections of a load are opened."""

    def level_started(self, load: Load) -> None:
        """A load begins."""

    def tick(self, tick: Tick) -> None:
        """Some hundred ms have passed."""

    def level_done(self, rows: Sequence[Row]) -> None:
        """A load has been measured: a row for each model."""


ReadStatistics = Callable[[], Awaitable[Mapping[str, Any]]]

_SHORTEST_POLL_S, _FIRST_POLL_S, _LONGEST_POLL_S = 0.001, 0.05, 0.25
_POLL_PER_COST = 10
"""A verdict takes at most a tenth of the time."""
_RAMP_S = 0.3
"""Unmeasured, until connections are busy and caches are warm."""
_LONGEST_RAMP_S = 5.0
_FAILURES_ONLY_S = 5.0
"""After so long with nothing but failures the server is regarded as gone."""
_DRAIN_S, _INTERRUPTED_DRAIN_S = 10.0, 1.0
_LONGEST_DRAIN_S = 60.0
_SHORTEST_WAIT_NS = 1_000_000_000
"""A request that was outstanding at the end for less says nothing about the server."""
_NO_PROGRESS_S = 10.0
"""A warm-up without a response for so long ends."""
_LEAD_NS = 50_000_000
"""From the order to the start of an open loop: every process has it by then."""
_STABLE_WINDOWS = 3


class Generator(Protocol):
    """What sends the load: a generator in this process, or several processes."""

    async def open(self, connections: int) -> None:
        """Connect for a number of outstanding requests."""

    async def start(self, load: Load, limit: int | None = None, begin_ns: int = 0) -> None:
        """Begin to send."""

    async def take(self) -> list[MeasuredChunk]:
        """Return what was measured since the last call, of each process."""

    async def stop(self, drain_s: float) -> list[MeasuredChunk]:
        """Send no more and return the rest."""

    async def close(self) -> None:
        """Disconnect."""


@dataclass(slots=True)
class _Totals:
    """Sums over a measurement."""

    late_ns: "array[int]" = field(default_factory=lambda: array("q"))
    first: list[MeasuredChunk] = field(default_factory=list)
    last: list[MeasuredChunk] = field(default_factory=list)
    kept: list[KeptRequest] = field(default_factory=list)
    unkept: int = 0

    def add(self, chunks: Sequence[MeasuredChunk]) -> None:
        self.last = list(chunks)
        for chunk in chunks:
            self.late_ns.extend(chunk.late_ns)
            self.kept += chunk.records.kept
            self.unkept += chunk.records.unkept

    def facts(self, unsent: int) -> GeneratorFacts:
        wall_s, cpu_s, busiest, ceiling = 0.0, 0.0, 0.0, 0.0
        for before, after in zip(self.first, self.last, strict=True):
            elapsed_s, used_s = (after.at_ns - before.at_ns) / 1e9, (after.cpu_ns - before.cpu_ns) / 1e9
            wall_s, cpu_s = max(wall_s, elapsed_s), cpu_s + used_s
            busiest = max(busiest, used_s / elapsed_s if elapsed_s else 0.0)
            ceiling += (after.sent - before.sent) / used_s if used_s else 0.0
        late_ns = np.array(self.late_ns, np.int64)
        return GeneratorFacts(len(self.first), wall_s, cpu_s, busiest, late_ns, ceiling, unsent)


class Level:
    """Measures one load with a generator."""

    def __init__(
        self,
        load: Load,
        measuring: Measuring,
        generator: Generator,
        progress: PerfProgress,
        read_statistics: ReadStatistics,
        interrupted: asyncio.Event,
    ) -> None:
        self._load = load
        self._measuring = measuring
        self._generator = generator
        self._progress = progress
        self._read_statistics = read_statistics
        self._interrupted = interrupted
        self._store = ColumnStore()
        self._totals = _Totals()
        self._ended_outside: Counter[int] = Counter()
        """See `Measurement`."""
        self._boundaries_ns: list[int] = []
        self._snapshots: list[Mapping[str, Any]] = []
        """Statistics at each boundary."""
        self._begin_ns = self._now_ns = self._success_ns = 0
        self._state = StabilityVerdict(False, False, "")
        self._why = ""
        """Why the measurement ends early."""

    async def measure(self) -> Measurement:
        """Return the measurement. The generator is connected and idle, before and after."""
        is_counted = self._measuring.stop is Stop.REQUEST_COUNT and not is_played_once(self._load)
        is_single = is_counted or is_played_once(self._load)
        await self._warm_up(is_single=is_single)
        before = await self._read_statistics()
        if is_single:
            limit = self._measuring.request_count if is_counted else None
            lead_ns = 0 if isinstance(self._load, Concurrency | PeriodicConcurrency) else _LEAD_NS
            self._begin_ns = time.monotonic_ns() + lead_ns
            await self._generator.start(self._load, limit, self._begin_ns)
        self._totals.first = chunks = await self._generator.take()
        if not is_single:
            self._begin_ns = max(chunk.at_ns for chunk in chunks)
        self._boundaries_ns, self._snapshots = [self._begin_ns], [before]
        self._success_ns = self._now_ns = time.monotonic_ns()
        if is_single:
            await self._add(chunks)
        await self._watch(is_single=is_single)
        end_ns = self._end_ns(is_single=is_single)
        longest_ns = await asyncio.to_thread(_longest_success_ns, self._store.columns)
        # A server that is slow and not stuck answers within about the longest time seen.
        drain_s = min(max(_DRAIN_S, 2 * longest_ns / 1e9), _LONGEST_DRAIN_S)
        rest = await self._generator.stop(_INTERRUPTED_DRAIN_S if self._why else drain_s)
        unended = Unended()
        for chunk in rest:
            self._ended_outside.update(chunk.unended.model)
            unended.extend(chunk.unended, longer_than_ns=max(longest_ns * (2 if self._why else 1), _SHORTEST_WAIT_NS))
        measurement = await self._measurement(end_ns, sum(chunk.unsent for chunk in rest))
        measurement.unended = unended
        measurement.ended_outside = self._ended_outside
        return measurement

    async def _warm_up(self, *, is_single: bool) -> None:
        """Send unmeasured requests. A load of windows goes on without a pause, others begin when these have ended."""
        wanted = self._measuring.warmup_requests
        if is_single and not wanted:
            return
        load = Concurrency(1) if is_played_once(self._load) else self._load
        await self._generator.start(load, wanted if is_single else None)
        began_s, ended, failed, last_s = time.monotonic(), 0, 0, time.monotonic()
        while not self._interrupted.is_set():
            await self._pause(_FIRST_POLL_S)
            for chunk in await self._generator.take():
                ended += len(chunk.records)
                self._ended_outside.update(chunk.records.model)
                last_s = time.monotonic() if len(chunk.records) else last_s
                failed += sum(each.count for each in chunk.records.failures)
            elapsed_s = time.monotonic() - began_s
            has_only_failures = failed == ended and elapsed_s >= _FAILURES_ONLY_S
            is_long_enough = elapsed_s >= _LONGEST_RAMP_S or (elapsed_s >= _RAMP_S and ended > 0)
            is_stuck = time.monotonic() - last_s >= _NO_PROGRESS_S
            if has_only_failures or is_stuck or (ended >= wanted and (is_single or is_long_enough)):
                break
        if is_single:
            await self._generator.stop(_DRAIN_S)
            self._ended_outside.clear()

    async def _watch(self, *, is_single: bool) -> None:
        """Gather records until the measurement is over."""
        poll_s = _FIRST_POLL_S
        while not self._why:
            await self._pause(min(poll_s, self._left_s()))
            began_s = time.monotonic()
            chunks = await self._generator.take()
            await self._add(chunks)
            cost_s = time.monotonic() - began_s
            poll_s = max(min(2 * poll_s, _LONGEST_POLL_S), _POLL_PER_COST * cost_s)
            is_finished = all(chunk.is_finished for chunk in chunks)
            if is_finished or (self._state.is_done and not is_single):
                return
            if self._interrupted.is_set():
                self._why = "interrupt"
            elif self._now_ns - self._success_ns > _FAILURES_ONLY_S * 1e9 and self._store.columns.failures:
                self._why = "server"
            elif 0 < self._measuring.duration_ms * 1e6 <= self._now_ns - self._begin_ns:
                return

    def _left_s(self) -> float:
        """Return how long the load may take yet; at least 1 ms, so that the event loop gets to send."""
        if not self._measuring.duration_ms:
            return math.inf
        left_s = (self._begin_ns - time.monotonic_ns()) / 1e9 + self._measuring.duration_ms / 1e3
        return max(left_s, _SHORTEST_POLL_S)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._interrupted.wait()
        except TimeoutError:
            return

    async def _add(self, chunks: Sequence[MeasuredChunk]) -> None:
        self._totals.add(chunks)
        before_ns, self._now_ns = self._now_ns, min(chunk.at_ns for chunk in chunks)
        is_window = self._measuring.stop in (Stop.TIME_WINDOWS, Stop.COUNT_WINDOWS)
        # Sums over all requests so far take milliseconds: a thread does them, and numpy releases the lock.
        tick = await asyncio.to_thread(self._judge, [chunk.records for chunk in chunks], before_ns, is_window)
        self._progress.tick(tick)
        if len(self._snapshots) < len(self._boundaries_ns):
            self._snapshots.append(await self._read_statistics())

    def _judge(self, records: Sequence[Records], before_ns: int, is_window: bool) -> Tick:
        added = self._store.add(records)
        columns, now_ns = self._store.columns, self._now_ns
        if is_window and is_window_complete(self._measuring, columns, self._boundaries_ns[-1], now_ns):
            self._boundaries_ns.append(now_ns)
        self._state = verdict(self._measuring, columns, self._boundaries_ns, self._begin_ns, now_ns, self._load)
        is_success = added.failure == 0
        if is_success.any():
            self._success_ns = now_ns
        return self._tick(columns, np.sort((added.end_ns - added.intended_ns)[is_success]), now_ns - before_ns)

    def _tick(self, columns: Columns, latencies_ns: "np.ndarray[Any, Any]", since_ns: int) -> Tick:
        count = len(latencies_ns)
        return Tick(
            elapsed_s=(self._now_ns - self._begin_ns) / 1e9,
            requests=len(columns.end_ns),
            failures=sum(failure.count for failure in columns.failures),
            rate_per_s=count / since_ns * 1e9 if since_ns > 0 else 0.0,
            p50_us=float(latencies_ns[count // 2]) / 1e3 if count else 0.0,
            p99_us=float(latencies_ns[math.ceil(count * 0.99) - 1]) / 1e3 if count else 0.0,
            reason=self._state.reason,
        )

    def _end_ns(self, *, is_single: bool) -> int:
        """Return the end: now, or that of the last request of a load that ends by itself."""
        ends_ns = self._store.columns.end_ns
        if not is_single or self._why or not len(ends_ns):
            return self._now_ns
        length_s = sum(phase.duration_s for phase in self._load.phases) if isinstance(self._load, Ramp) else 0.0
        return max(int(ends_ns[-1]), self._begin_ns + int(length_s * 1e9))

    async def _measurement(self, end_ns: int, unsent: int) -> Measurement:
        boundaries_ns, snapshots = self._boundaries_ns, self._snapshots
        is_window = self._measuring.stop in (Stop.TIME_WINDOWS, Stop.COUNT_WINDOWS)
        if is_window and not self._why and len(boundaries_ns) > _STABLE_WINDOWS:
            # perf_analyzer: the result is that of the last three windows.
            begin_ns, end_ns = boundaries_ns[-1 - _STABLE_WINDOWS], boundaries_ns[-1]
            before, after = snapshots[-1 - _STABLE_WINDOWS], snapshots[-1]
        else:
            begin_ns, before, after = self._begin_ns, snapshots[0], await self._read_statistics()
            if boundaries_ns[-1] < end_ns:
                boundaries_ns.append(end_ns)
        return Measurement(
            begin_ns=begin_ns,
            end_ns=end_ns,
            boundaries_ns=boundaries_ns,
            columns=self._store.columns,
            generator=self._totals.facts(unsent),
            statistics_before=before,
            statistics_after=after,
            interrupted=self._why,
            kept=self._totals.kept,
            unkept=self._totals.unkept,
        )


def _longest_success_ns(columns: Columns) -> int:
    times_ns = (columns.end_ns - columns.intended_ns)[columns.failure == 0]
    return int(times_ns.max()) if len(times_ns) else 0


# --- columns ------------------------------------------------------------------------------------------------------

_NAMES = (
    "intended_ns", "start_ns", "sent_ns", "first_ns", "end_ns", "responses", "failure", "model", "template",
    "sequence_id", "sequence_end",
)  # fmt: skip
"""The columns with an entry for each request."""


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
        values: dict[str, Any] = {name: np.asarray(getattr(records, name)) for name in _NAMES}
        if records.failures:
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
    values = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _NAMES}
    values["gaps_ns"] = np.concatenate([part.gaps_ns for part in parts])
    return _sorted(Columns(**values, failures=parts[0].failures, timings=timings))


def _sorted(columns: Columns) -> Columns:
    ends = columns.end_ns
    if len(ends) < 2 or bool((ends[1:] >= ends[:-1]).all()):
        return columns
    order = np.argsort(ends, kind="stable")
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    values = {name: getattr(columns, name)[order] for name in _NAMES}
    timings = sorted((int(places[index]), text) for index, text in columns.timings)
    return Columns(**values, gaps_ns=columns.gaps_ns, failures=columns.failures, timings=timings)
