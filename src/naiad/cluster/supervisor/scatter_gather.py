"""Scatter-gather queries: each query goes to all processes, and their answers are merged into one.

The counters of exited processes are part of all sums, so no sum ever decreases. In the merged repository index a
version is ready if all processes have it ready.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import zip_longest
from typing import Any, TypeVar

from naiad.cluster.messages import (
    Answer,
    AskActivity,
    AskIndex,
    AskLive,
    AskMetrics,
    AskRollouts,
    AskStatistics,
    IsModelReady,
    IsReady,
    Query,
)
from naiad.cluster.packed_live import PackedLive, Rows, pack_live, unpack_live
from naiad.cluster.packed_statistics import PackedStatistics, pack, unpack
from naiad.cluster.process_channel import ClusterChannelError
from naiad.cluster.supervisor.live_totals import LiveTotals
from naiad.cluster.supervisor.member_process import MemberProcess
from naiad.cluster.supervisor.restarts import Supervision
from naiad.config.rollout.guard import RolloutCounts
from naiad.core.model import IndexEntry, ModelState
from naiad.core.slices import finish
from naiad.telemetry.live.live_answer import LiveAnswer, merge_answers, sum_rows, with_process
from naiad.telemetry.metrics import exposition as exposition_sum
from naiad.telemetry.metrics.exposition import Exposition, format_rows
from naiad.telemetry.statistics.version_statistics import BatchStatistics, Duration, VersionStatistics


class ExitedCounters:
    """The last counters of every process, and the sums of the exited ones.

    Sums use only noted counters, never a single answer: a process that dies during a query is counted once. Counts
    since its last answer are lost with a process.
    """

    def __init__(self) -> None:
        self._statistics: dict[int, Sequence[VersionStatistics]] = {}
        self._metrics: dict[int, Exposition] = {}
        self._left_statistics: list[VersionStatistics] = []
        self._left_metrics = Exposition()

    def note_statistics(self, slot: int, statistics: Sequence[VersionStatistics]) -> None:
        """Note the statistics of a process.

        Counters restart when a model is reloaded, and end when it is unloaded; then the counters of exited processes
        of it end as well.
        """
        counts = {row.key: _request_count(row) for row in statistics}
        self._forget_models(
            {
                (row.namespace, row.name)
                for row in self._statistics.get(slot, ())
                if counts.get(row.key, -1) < _request_count(row)
            }
        )
        self._statistics[slot] = statistics

    def note_metrics(self, slot: int, metrics: Exposition) -> None:
        """Note the metrics of a process."""
        self._metrics[slot] = metrics

    def retire(self, slot: int) -> None:
        """Keep the counters of an exited process; another process may take its slot."""
        self._left_statistics = sum_statistics([self._left_statistics, self._statistics.pop(slot, ())])
        metrics = self._metrics.pop(slot, None)
        if metrics is not None:
            self._left_metrics = exposition_sum.add([self._left_metrics, exposition_sum.cumulative(metrics)])

    def _forget_models(self, models: Set[tuple[str, str]]) -> None:
        if not models:
            return
        self._left_statistics = [
            counts for counts in self._left_statistics if (counts.namespace, counts.name) not in models
        ]
        self._left_metrics = exposition_sum.without_models(self._left_metrics, models)

    def statistics(self) -> list[VersionStatistics]:
        """Return the sums of the model versions of the live processes."""
        return sum_statistics(self.statistics_to_add())

    def statistics_to_add(self) -> Sequence[Sequence[VersionStatistics]]:
        """Return what the sums are made of; it does not change."""
        living = {counts.key for rows in self._statistics.values() for counts in rows}
        left = [counts for counts in self._left_statistics if counts.key in living]
        rows = [self._statistics[slot] for slot in sorted(self._statistics)]
        return [*rows, left]

    def metrics(self) -> Exposition:
        """Return the sums of the series of the live processes."""
        return sum_metrics(*self.metrics_to_add())

    def metrics_to_add(self) -> tuple[Sequence[Exposition], Exposition]:
        """Return what the sums are made of, of live processes and of exited ones; it does not change."""
        return [self._metrics[slot] for slot in sorted(self._metrics)], self._left_metrics


def _request_count(row: VersionStatistics) -> int:
    return row.success.count + row.fail.count


# If states differ, the first one is shown.
_PRECEDENCE = (ModelState.UNAVAILABLE, None, ModelState.UNKNOWN, ModelState.UNLOADING, ModelState.LOADING)

_Rows = Mapping[tuple[str, str], IndexEntry]


def merge_index(indexes: Sequence[Sequence[IndexEntry]]) -> list[IndexEntry]:
    """Return the rows of all processes as one index, ordered by name and version.

    A row about a version with different states names the states and the numbers of processes.
    """
    tables: list[_Rows] = [{(row.name, row.version): row for row in rows} for rows in indexes]
    keys = {key for table in tables for key in table}
    with_versions = {name for name, version in keys if version}
    # A process without any version of a model has a row for the model alone, which is not one of its versions.
    shown = [(name, version) for name, version in keys if version or name not in with_versions]
    return [_merged([_row(table, *key) for table in tables]) for key in sorted(shown, key=_order)]


def _order(key: tuple[str, str]) -> tuple[str, int]:
    return key[0], int(key[1] or 0)


def _row(table: _Rows, name: str, version: str) -> IndexEntry:
    found = table.get((name, version)) or table.get((name, ""))
    return replace(found, version=version) if found is not None else IndexEntry(name, version)


def _merged(rows: Sequence[IndexEntry]) -> IndexEntry:
    first = rows[0]
    if all(row == first for row in rows):
        return first
    for state in _PRECEDENCE:
        differing = [row for row in rows if row.state is state]
        if differing:
            row = differing[0]
            where = f"in {len(differing)} of {len(rows)} processes"
            reason = f"{where}: {row.reason or 'not loaded'}" if state in (ModelState.UNAVAILABLE, None) else where
            return replace(row, state=state or ModelState.UNAVAILABLE, reason=reason)
    return first


_log = logging.getLogger(__name__)

_FAILING = "Server processes that died again and again, and are started again after long pauses"
_TIMEOUT_S = 5.0
"""A process without an answer in this time is left out."""
_IDLE_ROUNDS = 15
"""So often the counters of an idle process are not noted: half a minute with the default interval."""


class ScatterGather:
    """Queries all serving processes."""

    def __init__(self, serving: Callable[[], Sequence[MemberProcess]], supervision: Supervision) -> None:
        self._serving = serving
        self._supervision = supervision
        self.exited_counters = ExitedCounters()
        self.live_totals = LiveTotals()
        self._noting = asyncio.Lock()
        """Answers are noted in the order in which they came: counters of a process that decrease mean a reload."""
        self._activities: dict[MemberProcess, object] = {}
        """What the processes have answered before their counters were noted last."""
        self._round = 0
        self.restart_count = 0
        """Processes that replaced a dead one."""

    async def answer(self, query: Query) -> Answer:
        """Return the merged answer of all processes."""
        answers = await self._ask(query)
        if isinstance(query, AskIndex) and not answers:
            raise ClusterChannelError("no process has answered; see the log")
        if isinstance(query, AskStatistics):
            return await asyncio.to_thread(_packed_sum, self.exited_counters.statistics_to_add())
        if isinstance(query, AskMetrics):
            own = self._own_metrics()
            sums = await asyncio.to_thread(_rendered_sum, *self.exited_counters.metrics_to_add())
            return sums + own
        if isinstance(query, AskLive):
            return await self._live_answer(answers)
        if isinstance(query, AskRollouts):
            return sum_rollouts([counts for counts in answers if isinstance(counts, Mapping)])
        if isinstance(query, AskIndex):
            return merge_index([index for index in answers if isinstance(index, Sequence)])
        return self._supervision.is_open and bool(answers) and all(answers)

    async def _live_answer(self, answers: Sequence[object]) -> PackedLive:
        found = [answer for answer in answers if isinstance(answer, LiveAnswer)]
        if not found:
            raise ClusterChannelError("no process has answered; see the log")
        # In a thread: the counters of a thousand models take tens of milliseconds.
        return await asyncio.to_thread(_packed_live_sum, found, self.live_totals.to_add())

    async def note_all(self) -> None:
        """Note the counters of the processes that have answered requests since, which bounds the loss when one dies.

        Counters that change without a request, such as counts of loads, are noted after `_IDLE_ROUNDS` calls.
        """
        members = self._serving()
        activities = await asyncio.gather(*[self._ask_one(member, AskActivity()) for member in members])
        found = dict(zip(members, activities, strict=True))
        self._round = (self._round + 1) % _IDLE_ROUNDS
        changed = [
            member
            for member, activity in found.items()
            if activity is not None and (not self._round or activity != self._activities.get(member))
        ]
        self._activities = found
        for query in (AskStatistics(), AskMetrics()) if changed else ():
            await self._ask(query, changed)

    async def _ask(self, query: Query, members: Sequence[MemberProcess] | None = None) -> list[object]:
        members = self._serving() if members is None else members
        answers = await asyncio.gather(*[self._ask_one(member, query) for member in members])
        if isinstance(query, IsReady | IsModelReady):
            # The other processes carry the load of one that has died; `naiad_processes` counts them. One that serves
            # and does not answer hangs, and gets connections all the same.
            return [
                bool(answer)
                for member, answer in zip(members, answers, strict=True)
                if answer is not None or member.is_serving
            ]
        return [answer for answer in answers if answer is not None]

    async def _ask_one(self, member: MemberProcess, query: Query) -> object:
        try:
            answer = await member.ask(query, _TIMEOUT_S)
        except ClusterChannelError as error:
            _log.warning("%s was left out of a merged answer: %s", member.name, error)
            return None
        if isinstance(query, AskStatistics | AskMetrics):
            async with self._noting:
                await self._note(member, query, answer)
        if isinstance(query, AskLive):
            async with self._noting:
                return await self._note_live(member, answer)
        return answer

    async def _note(self, member: MemberProcess, query: AskStatistics | AskMetrics, answer: object) -> None:
        """Note the counters in an answer.

        In a thread: the counters of a thousand models take a tenth of a second. A process may have exited before its
        answer is noted; then its counters are retired without it.
        """
        counters = self.exited_counters
        if isinstance(query, AskStatistics):
            rows = await asyncio.to_thread(finish, unpack(answer))  # type: ignore[arg-type]  # as asked
            if member.is_alive:
                counters.note_statistics(member.slot, rows)
        else:
            metrics = await asyncio.to_thread(exposition_sum.parse, answer)  # type: ignore[arg-type]  # as asked
            if member.is_alive:
                counters.note_metrics(member.slot, metrics)

    async def _note_live(self, member: MemberProcess, answer: object) -> LiveAnswer:
        """Note the counters in an answer for live streams, and return it unpacked, with the number of its process."""
        found: LiveAnswer = await asyncio.to_thread(finish, unpack_live(answer))  # type: ignore[arg-type]  # as asked
        if member.is_alive:
            self.live_totals.note(member.slot, found.rows)
        return with_process(found, member.slot + 1)

    def _own_metrics(self) -> bytes:
        text = "Server processes that were started again after one died"
        failing_count = len(self._supervision.failing(time.monotonic_ns()))
        own = [
            format_rows("naiad_processes", "gauge", "Server processes that serve", [({}, len(self._serving()))]),
            format_rows("naiad_process_restarts_total", "counter", text, [({}, self.restart_count)]),
            format_rows("naiad_processes_failing", "gauge", _FAILING, [({}, failing_count)]),
        ]
        return ("\n".join(own) + "\n").encode()


def _packed_sum(groups: Iterable[Sequence[VersionStatistics]]) -> PackedStatistics:
    return finish(pack(sum_statistics(groups)))


def _packed_live_sum(answers: Sequence[LiveAnswer], groups: Sequence[Rows]) -> PackedLive:
    return finish(pack_live(merge_answers(answers, sum_rows(groups))))


def _rendered_sum(living: Iterable[Exposition], left: Exposition) -> bytes:
    return sum_metrics(living, left).render()


def sum_metrics(living: Iterable[Exposition], left: Exposition) -> Exposition:
    """Return the sums of the series of live processes, with the counts of exited ones."""
    return exposition_sum.add_exited(exposition_sum.add(living), left)


def sum_rollouts(groups: Iterable[Mapping[str, RolloutCounts]]) -> dict[str, RolloutCounts]:
    """Return the counts of all processes for each rollout; of different states the counts of the latest one."""
    sums: dict[str, RolloutCounts] = {}
    for group in groups:
        for key, counts in group.items():
            sums[key] = sums[key] + counts if key in sums else counts
    return sums


_T = TypeVar("_T")


def sum_statistics(groups: Iterable[Sequence[VersionStatistics]]) -> list[VersionStatistics]:
    """Return one entry for each model version, in the order of first appearance."""
    sums: dict[tuple[str, str], VersionStatistics] = {}
    for group in groups:
        for counts in group:
            known = sums.get(counts.key)
            sums[counts.key] = counts if known is None else add_statistics(known, counts)
    return list(sums.values())


def add_statistics(one: VersionStatistics, other: VersionStatistics) -> VersionStatistics:
    """Return the sum of two counts of the same model version; the last inference is the later one."""
    values: dict[str, Any] = {name: _added(getattr(one, name), getattr(other, name)) for name in _STATISTICS}
    return VersionStatistics(
        last_inference_ms=max(one.last_inference_ms, other.last_inference_ms),
        batch_stats=_added_batches(one.batch_stats, other.batch_stats),
        **values,
    )


_STATISTICS = tuple(f.name for f in fields(VersionStatistics) if f.name not in ("last_inference_ms", "batch_stats"))
"""Fields that add up by themselves."""


def _added_batches(one: Sequence[BatchStatistics], other: Sequence[BatchStatistics]) -> Sequence[BatchStatistics]:
    sizes: dict[int, BatchStatistics] = {entry.batch_size: entry for entry in one}
    for entry in other:
        known = sizes.get(entry.batch_size)
        sizes[entry.batch_size] = entry if known is None else _added_batch(known, entry)
    return [sizes[size] for size in sorted(sizes)]


def _added_batch(one: BatchStatistics, other: BatchStatistics) -> BatchStatistics:
    return BatchStatistics(
        one.batch_size,
        _added(one.compute_input, other.compute_input),
        _added(one.compute_infer, other.compute_infer),
        _added(one.compute_output, other.compute_output),
    )


def _added(one: _T, other: _T) -> _T:
    """Add values of the same form: numbers, and structures of numbers; names are from `one`."""
    values: tuple[Any, Any] = (one, other)
    if isinstance(one, int):
        return values[0] + values[1]  # type: ignore[no-any-return]  # two integers
    if isinstance(one, Duration):
        return Duration(one.count + values[1].count, one.ns + values[1].ns)  # type: ignore[return-value]  # as `one`
    kind: Any = type(one)
    names = _field_names(kind)
    if names:
        added: _T = kind(*(_added(getattr(one, name), getattr(other, name)) for name in names))
        return added
    if isinstance(one, Mapping):
        return _added_mappings(*values)  # type: ignore[return-value]  # a mapping, as both are
    if isinstance(one, Sequence) and not isinstance(one, str):
        return _added_sequences(*values)  # type: ignore[return-value]  # a sequence, as both are
    return one


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


def _added_mappings(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> dict[Any, Any]:
    added = {**one}
    for key, value in other.items():
        added[key] = _added(added[key], value) if key in added else value
    return added


def _added_sequences(one: Sequence[Any], other: Sequence[Any]) -> tuple[Any, ...]:
    """Add position by position; the longer one keeps its tail."""
    missing = object()
    pairs = zip_longest(one, other, fillvalue=missing)
    return tuple(b if a is missing else a if b is missing else _added(a, b) for a, b in pairs)
