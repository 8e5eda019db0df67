"""Levels with scripted generators, and the columns that chunks make."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from naiad.core.request import RequestHeader
from naiad.tools.perf.generator.local_generator import LocalGenerator
from naiad.tools.perf.generator.setup import ModelSetup, Setup
from naiad.tools.perf.inputs.templates import TemplateSet
from naiad.tools.perf.measuring.level import ColumnStore, Level, PerfProgress, Tick
from naiad.tools.perf.perf_exchange import RequestTemplate, SentRequest
from naiad.tools.perf.perf_plan import (
    Concurrency,
    Load,
    Measuring,
    Protocol,
    RequestRate,
    Schedule,
    ServerTarget,
    Stop,
)
from naiad.tools.perf.records import Measurement, Records
from support.scripted_target import ScriptedTarget
from support.uvloop_run import run

_INPUTS = TemplateSet([RequestTemplate(RequestHeader(model_name="m"), [])], [range(1)])
_SETUP = Setup(ServerTarget("http://localhost", Protocol.HTTP), [ModelSetup(_INPUTS)])


class _Ticks(PerfProgress):
    """Calls `call` with a tick."""

    def __init__(self, call: Callable[[], None], after: int) -> None:
        self.ticks: list[Tick] = []
        self._call = call
        self._after = after

    def tick(self, tick: Tick) -> None:
        self.ticks.append(tick)
        if len(self.ticks) == self._after:
            self._call()


async def _measure(
    target: ScriptedTarget, load: Load, measuring: Measuring, call: Callable[[], None] | None = None, after: int = 0
) -> tuple[Measurement, list[Tick]]:
    reads = 0

    async def read_statistics() -> Mapping[str, Any]:
        nonlocal reads
        reads += 1
        return {"m/1": {"read": reads}}

    interrupted = asyncio.Event()
    progress = _Ticks(call or interrupted.set, after)
    generator = LocalGenerator(_SETUP, target)
    await generator.open(1)
    level = Level(load, measuring, generator, progress, read_statistics, interrupted)
    measurement = await level.measure()
    assert not target.outstanding
    await generator.close()
    return measurement, progress.ticks


def test_request_count_is_exact() -> None:
    async def main() -> None:
        target = ScriptedTarget(lambda _: 0.001)
        measuring = Measuring(Stop.REQUEST_COUNT, request_count=50, warmup_requests=20)
        measurement, _ = await _measure(target, Concurrency(4), measuring)
        assert len(measurement.columns.end_ns) == 50
        assert len(target.sent) == 70
        assert measurement.columns.start_ns[0] >= measurement.begin_ns
        assert measurement.end_ns == measurement.columns.end_ns[-1]

    run(main)


def test_schedule_is_played_once_and_whole() -> None:
    async def main() -> None:
        target = ScriptedTarget(lambda exchange: 0.05)
        measurement, _ = await _measure(target, Schedule(tuple(range(0, 100_000_000, 5_000_000))), Measuring())
        assert len(measurement.columns.end_ns) == len(target.sent) == 20
        assert measurement.columns.intended_ns[3] - measurement.begin_ns == 15_000_000
        assert not measurement.interrupted

    run(main)


def test_windows_are_the_last_three() -> None:
    async def main() -> None:
        target = ScriptedTarget(lambda _: 0.001)
        measuring = Measuring(Stop.TIME_WINDOWS, window_ms=100, stability_percent=1000)
        measurement, ticks = await _measure(target, Concurrency(2), measuring)
        assert len(measurement.boundaries_ns) == 4
        assert (measurement.begin_ns, measurement.end_ns) == (
            measurement.boundaries_ns[0],
            measurement.boundaries_ns[-1],
        )
        assert measurement.statistics_before == {"m/1": {"read": 1}}
        assert measurement.statistics_after == {"m/1": {"read": 4}}
        assert ticks[-1].requests == len(measurement.columns.end_ns)
        assert measurement.generator.processes == 1
        assert measurement.generator.ceiling_per_s > 0

    run(main)


def test_interrupt_reports_so_far() -> None:
    async def main() -> None:
        measurement, ticks = await _measure(ScriptedTarget(lambda _: 0.002), RequestRate(200), Measuring(), after=4)
        assert measurement.interrupted == "interrupt"
        assert len(measurement.columns.end_ns) == ticks[-1].requests > 0
        assert len(measurement.generator.late_ns) > 0

    run(main)


def test_failures_alone_end_measurement(monkeypatch: Any) -> None:
    monkeypatch.setattr("naiad.tools.perf.measuring.level._FAILURES_ONLY_S", 0.3)

    async def main() -> None:
        target = ScriptedTarget(lambda _: 0.001)

        def fail() -> None:
            target.failure = lambda _: "connection"

        measurement, _ = await _measure(target, Concurrency(2), Measuring(), fail, 2)
        assert measurement.interrupted == "server"
        assert (measurement.columns.failure == 0).any()
        assert [each.kind for each in measurement.columns.failures] == ["connection"]

    run(main)


def test_some_failures_do_not_end_measurement() -> None:
    async def main() -> None:
        target = ScriptedTarget(lambda _: 0.001, lambda _: "unavailable" if len(target.ended) % 5 else "")
        measuring = Measuring(Stop.REQUEST_COUNT, request_count=200)
        measurement, _ = await _measure(target, Concurrency(2), measuring)
        assert len(measurement.columns.end_ns) == 200
        assert not measurement.interrupted

    run(main)


_REQUESTS = st.lists(st.tuples(st.integers(1, 50), st.sampled_from(["", "a", "b", "c"]), st.booleans()))


@given(st.lists(_REQUESTS, max_size=5))
def test_columns_are_sorted_and_complete(chunks: list[list[tuple[int, str, bool]]]) -> None:
    store = ColumnStore()
    expected: list[tuple[int, str, str]] = []
    for number, requests in enumerate(chunks):
        records = Records()
        for end_ns, failure, has_timing in requests:
            exchange = SentRequest(lambda _: None)
            exchange.end_ns, exchange.failure = end_ns, failure
            exchange.timing = f"{number} {end_ns}" if has_timing else ""
            exchange.gaps_ns = [end_ns]
            records.add(exchange)
            expected.append((end_ns, failure, exchange.timing))
        store.add([records])
    columns = store.columns
    kinds = [""] + [each.kind for each in columns.failures]
    assert sorted(each[:2] for each in expected) == sorted(
        (int(end), kinds[failure]) for end, failure in zip(columns.end_ns, columns.failure, strict=True)
    )
    assert list(columns.end_ns) == sorted(columns.end_ns)
    assert sorted(text for _, text in columns.timings) == sorted(each[2] for each in expected if each[2])
    assert all(int(text.split()[1]) == columns.end_ns[index] for index, text in columns.timings)
    for kind in columns.failures:
        assert kind.count == sum(each[1] == kind.kind for each in expected)
    assert sorted(columns.gaps_ns) == sorted(each[0] for each in expected)


def test_sequence_ids_have_64_bits() -> None:
    records = Records()
    for sequence_id in (1, (1 << 64) - 1):
        exchange = SentRequest(lambda _: None)
        exchange.sequence_id = sequence_id
        records.add(exchange)
    store = ColumnStore()
    store.add([records])
    assert store.columns.sequence_id.tolist() == [1, (1 << 64) - 1]
