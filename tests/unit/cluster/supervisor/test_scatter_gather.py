"""Merged answers about a thousand models, while the event loop of the supervisor does other work."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pytest

from naiad.cluster.messages import AskActivity, AskMetrics, AskStatistics, Query
from naiad.cluster.packed_statistics import PackedStatistics, pack, unpack
from naiad.cluster.supervisor.scatter_gather import ExitedCounters, ScatterGather
from naiad.core.slices import finish
from naiad.telemetry.metrics import exposition
from naiad.telemetry.statistics.version_statistics import BatchStatistics, Duration, VersionStatistics

if TYPE_CHECKING:
    from naiad.cluster.supervisor.member_process import MemberProcess
    from naiad.cluster.supervisor.restarts import Supervision

MODELS = 400
ROWS = [
    VersionStatistics(
        f"m{number}", "1", success=Duration(number, 5), batch_stats=(BatchStatistics(1, *[Duration(number, 1)] * 3),)
    )
    for number in range(MODELS)
]
SERIES = "".join(f'c{{model="m{number}",version="1"}} {number}\n' for number in range(10 * MODELS))
METRICS = f"# HELP c text\n# TYPE c counter\n{SERIES}".encode()


class Member:
    """A server process with the statistics of many models."""

    is_alive = is_serving = True
    name = "process 0"

    def __init__(self, slot: int) -> None:
        self.slot = slot

    async def ask(self, query: Query, timeout_s: float) -> Any:
        return METRICS if isinstance(query, AskMetrics) else finish(pack(ROWS))


class CountingMember(Member):
    """A server process that says how many requests it has answered."""

    def __init__(self, slot: int) -> None:
        super().__init__(slot)
        self.activity = 0
        self.asked: list[str] = []

    async def ask(self, query: Query, timeout_s: float) -> Any:
        self.asked.append(type(query).__name__)
        if isinstance(query, AskActivity):
            return self.activity
        return b"" if isinstance(query, AskMetrics) else finish(pack([]))


def test_counters_of_idle_processes_are_seldom_noted() -> None:
    busy, idle = CountingMember(0), CountingMember(1)
    members = [cast("MemberProcess", each) for each in (busy, idle)]
    gather = ScatterGather(lambda: members, cast("Supervision", Restarts()))

    async def rounds(count: int) -> None:
        for _ in range(count):
            busy.activity += 1
            await gather.note_all()

    async def run() -> None:
        noted = ["AskActivity", "AskStatistics", "AskMetrics"]
        await rounds(3)
        assert busy.asked == noted * 3
        assert idle.asked == [*noted, "AskActivity", "AskActivity"]
        await rounds(15)
        assert busy.asked == noted * 18
        assert idle.asked.count("AskMetrics") == 2
        members[1] = cast("MemberProcess", CountingMember(1))  # a successor in the same slot
        await rounds(1)
        assert cast("CountingMember", members[1]).asked == noted

    asyncio.run(run())


def merged(query: Query, *, members: int = 4) -> tuple[Any, int]:
    """Return a merged answer, and the turns of the event loop meanwhile."""
    processes = [cast("MemberProcess", Member(slot)) for slot in range(members)]

    async def run() -> tuple[Any, int]:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        gather = ScatterGather(lambda: processes, cast("Supervision", Restarts()))
        turning = asyncio.ensure_future(turn())
        answer = await gather.answer(query)
        turning.cancel()
        return answer, turns

    return asyncio.run(run())


class Restarts:
    """No process has died."""

    def failing(self, now_ns: int) -> list[int]:
        return []


def test_statistics_of_many_models_leave_the_loop_free() -> None:
    answer, turns = merged(AskStatistics())
    rows = finish(unpack(answer))
    assert [row.success.count for row in rows] == [4 * number for number in range(MODELS)]
    assert turns > 100


def test_metrics_of_many_models_leave_the_loop_free() -> None:
    text, turns = merged(AskMetrics())
    assert b'c{model="m7",version="1"} 28\n' in text
    assert b"naiad_processes 4\n" in text
    assert turns > 100


def test_packed_statistics_come_in_pieces() -> None:
    slices = pack(ROWS)
    count = 0
    packed = PackedStatistics(())
    while packed == PackedStatistics(()):
        try:
            next(slices)
            count += 1
        except StopIteration as end:
            packed = end.value
    assert count == len(packed.pieces) == MODELS / 8
    assert finish(unpack(packed)) == ROWS


def test_reload_of_many_models_looks_once_at_series(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = ExitedCounters()
    for slot in (0, 1):
        counters.note_statistics(slot, ROWS)
        counters.note_metrics(slot, exposition.parse(METRICS))
    counters.retire(1)
    calls = count_calls(monkeypatch, "naiad.cluster.supervisor.scatter_gather.exposition_sum.without_models")
    counters.note_statistics(0, [VersionStatistics(row.name, "1") for row in ROWS])
    assert len(calls) == 1
    assert 'c{model="m7",version="1"}' in counters.metrics().samples["c"]
    assert counters.metrics().samples["c"]['c{model="m7",version="1"}'] == 7


def count_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> list[tuple[Any, ...]]:
    function: Callable[..., Any] = exposition.without_models
    calls: list[tuple[Any, ...]] = []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return function(*arguments)

    monkeypatch.setattr(name, counted)
    return calls
