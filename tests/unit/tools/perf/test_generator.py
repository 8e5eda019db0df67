"""The generator against a scripted target: what it sends, when, and what it records."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.request import RequestHeader
from naiad.core.tensor import TensorSpec
from naiad.tools.perf.generator.local_generator import LocalGenerator
from naiad.tools.perf.generator.setup import MeasuredChunk, ModelSetup, Setup
from naiad.tools.perf.inputs.memory_blocks import OutputSlots
from naiad.tools.perf.inputs.replay import ReplayedRequest
from naiad.tools.perf.inputs.templates import TemplateSet
from naiad.tools.perf.perf_exchange import RequestTemplate, SentRequest
from naiad.tools.perf.perf_plan import (
    Concurrency,
    Intervals,
    Load,
    Phase,
    Protocol,
    Ramp,
    RequestRate,
    Schedule,
    Sequences,
    ServerTarget,
)
from support.scripted_target import ScriptedTarget
from support.uvloop_run import run

_TEMPLATES = [RequestTemplate(RequestHeader(model_name="m"), [], source=str(index)) for index in range(3)]
_PLAIN = ModelSetup(TemplateSet(_TEMPLATES, [range(3)]))
_STATEFUL = ModelSetup(
    TemplateSet(_TEMPLATES, [range(3)]), sequences=Sequences(length=4, length_variation_percent=50, count=3)
)
_SETUP = Setup(ServerTarget("http://localhost", Protocol.HTTP), [_PLAIN])


def _setup(*models: ModelSetup, max_outstanding: int = 100, part: int = 0, parts: int = 1) -> Setup:
    return replace(_SETUP, models=models or (_PLAIN,), max_outstanding=max_outstanding, part=part, parts=parts)


@pytest.fixture(params=["uvloop", "asyncio"])
def run_on(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    return run if request.param == "uvloop" else lambda main: asyncio.run(main())  # type: ignore[arg-type, return-value]


async def _play(generator: LocalGenerator, load: Load, limit: int | None = None) -> MeasuredChunk:
    """Send a load that ends, or a limited number of requests, and return what was measured."""
    await generator.start(load, limit)
    while True:
        await asyncio.sleep(0.002)
        loop = generator._loop
        assert loop is not None
        if loop.is_finished:
            (chunk,) = await generator.take()
            await generator.stop(1)
            return chunk


def test_concurrency_is_kept(run_on: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
    async def main() -> None:
        target = ScriptedTarget(lambda _: 0.001)
        generator = LocalGenerator(_setup(), target)
        await generator.open(7)
        chunk = await _play(generator, Concurrency(7), 300)
        assert target.most_outstanding == 7
        assert chunk.sent == len(chunk.records) == len(target.ended) == 300
        assert chunk.records.intended_ns == chunk.records.start_ns
        assert Counter(chunk.records.template) == {0: 100, 1: 100, 2: 100}
        await generator.close()

    run_on(main)


def test_stop_waits_for_outstanding_requests() -> None:
    async def main() -> None:
        target = ScriptedTarget(lambda _: 0.01)
        generator = LocalGenerator(_setup(), target)
        await generator.open(4)
        await generator.start(Concurrency(4))
        await asyncio.sleep(0.03)
        await generator.stop(1)
        assert len(target.sent) == len(target.ended) == len({id(each) for each in target.ended})
        assert not target.outstanding
        assert target.connections == [4]

    run(main)


def test_requests_without_response_are_given_up() -> None:
    async def main() -> None:
        target = ScriptedTarget(lambda _: 60)
        generator = LocalGenerator(_setup(), target)
        await generator.open(2)
        await generator.start(Concurrency(2))
        (chunk,) = await generator.stop(0.02)
        assert chunk.outstanding == 2
        assert target.connections == [2, 2]

    run(main)


@pytest.mark.parametrize("is_growing", [False, True])
def test_stop_and_close_end_while_connections_wait(monkeypatch: pytest.MonkeyPatch, is_growing: bool) -> None:
    monkeypatch.setattr("naiad.tools.perf.generator.local_generator._RECONNECT_S", 0.02)
    cancelled = 0

    class Waiting(ScriptedTarget):
        async def open(self, connections: int) -> None:
            nonlocal cancelled
            if self.sent:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled += 1
                    raise
            await super().open(connections)

    async def main() -> None:
        target = Waiting(lambda _: 60)
        generator = LocalGenerator(_setup(), target)
        await generator.open(2)
        await generator.start(RequestRate(1000) if is_growing else Concurrency(2))
        await asyncio.sleep(0.02)
        await generator.take()
        await asyncio.sleep(0)
        await generator.stop(0.01)
        assert cancelled == is_growing
        await generator.close()
        assert target.is_closed
        assert cancelled == 1 + is_growing

    run(main)


def test_stall_shows_in_latencies(run_on: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
    async def main() -> None:
        target = ScriptedTarget()
        generator = LocalGenerator(_setup(), target)
        await generator.open(4)
        target.stall_until_s = time.monotonic() + 0.5
        chunk = await _play(generator, RequestRate(100), 100)
        latencies_ns = np.array(chunk.records.end_ns) - np.array(chunk.records.intended_ns)
        # The requests of the first half second end together, after it: their latencies fall from 0.5 s to 0.
        assert np.sum(latencies_ns > 0.2e9) >= 28
        assert latencies_ns.max() >= 0.45e9
        assert len(chunk.records) == 100

    run_on(main)


def test_requests_over_limit_wait_and_count(run_on: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
    async def main() -> None:
        target = ScriptedTarget(lambda _: 0.01)
        generator = LocalGenerator(_setup(max_outstanding=2), target)
        await generator.open(2)
        chunk = await _play(generator, Schedule((0,) * 20))
        assert target.most_outstanding == 2
        assert len(chunk.records) == 20
        latencies_ns = sorted(np.array(chunk.records.end_ns) - np.array(chunk.records.intended_ns))
        assert latencies_ns[-1] > 5 * latencies_ns[0]
        assert sorted({each.slot for each in target.sent}) == [0, 1]
        assert len(chunk.late_ns) == 20

    run_on(main)


def test_unsent_requests_are_counted() -> None:
    async def main() -> None:
        generator = LocalGenerator(_setup(max_outstanding=1), ScriptedTarget(lambda _: 0.05))
        await generator.open(1)
        await generator.start(RequestRate(1000))
        await asyncio.sleep(0.1)
        (chunk,) = await generator.stop(1)
        assert chunk.sent + chunk.unsent >= 100

    run(main)


@pytest.mark.parametrize(
    "load",
    [Schedule(tuple(range(0, 50_000_000, 1_000_000))), Ramp((Phase(0.1, 0, 1000),)), Intervals((0, 2_000_000))],
)
def test_open_loads_send_when_due(load: Load) -> None:
    async def main() -> None:
        target = ScriptedTarget()
        generator = LocalGenerator(_setup(), target)
        await generator.open(1)
        await _play(generator, load, 50)
        assert all(each.start_ns >= each.intended_ns for each in target.sent)
        assert [each.template_index for each in target.sent] == [number % 3 for number in range(50)]

    run(main)


def test_parts_of_a_schedule_are_complete() -> None:
    async def main() -> None:
        offsets = []
        for part in range(3):
            target = ScriptedTarget()
            generator = LocalGenerator(_setup(part=part, parts=3), target)
            await generator.open(1)
            begin_ns = time.monotonic_ns()
            await generator.start(Schedule(tuple(range(0, 10_000_000, 1_000_000))), begin_ns=begin_ns)
            while len(target.ended) < (4, 3, 3)[part]:
                await asyncio.sleep(0.001)
            offsets += [each.intended_ns - begin_ns for each in target.sent]
            await generator.stop(1)
        assert sorted(offsets) == list(range(0, 10_000_000, 1_000_000))

    run(main)


@pytest.mark.parametrize("load", [Concurrency(3), RequestRate(2000)])
def test_sequences_end_with_their_load(load: Load) -> None:
    async def main() -> None:
        target = ScriptedTarget(lambda _: 0.002)
        generator = LocalGenerator(_setup(_STATEFUL), target)
        await generator.open(3)
        await generator.start(load)
        await asyncio.sleep(0.1)
        await generator.stop(1)
        _check_sequences(target.sent)

    run(main)


def test_serial_sequences_wait_for_responses() -> None:
    async def main() -> None:
        target = ScriptedTarget(lambda _: 0.002)
        sequences = Sequences(length=4, count=2, are_serial=True)
        generator = LocalGenerator(_setup(replace(_STATEFUL, sequences=sequences)), target)
        await generator.open(3)
        await _play(generator, RequestRate(5000), 100)
        assert target.most_outstanding == 2
        _check_sequences(target.sent)

    run(main)


def test_too_few_ids_for_concurrency_are_refused() -> None:
    async def main() -> None:
        generator = LocalGenerator(_setup(_with_ids(2)), ScriptedTarget())
        await generator.open(3)
        with pytest.raises(InferError, match="concurrency 3 needs as many live sequences, and there are 2"):
            await generator.start(Concurrency(3))
        await generator.close()

    run(main)


def test_open_loop_waits_for_free_ids() -> None:
    async def main() -> None:
        target = ScriptedTarget(lambda _: 0.001)
        generator = LocalGenerator(_setup(_with_ids(2)), target)
        await generator.open(3)
        chunk = await _play(generator, RequestRate(5000), 60)
        assert len(chunk.records) == 60
        assert set(chunk.records.sequence_id) == {1, 2}
        assert not chunk.records.failures

    run(main)


def test_close_ends_a_load_in_progress() -> None:
    async def main() -> None:
        target = ScriptedTarget()
        generator = LocalGenerator(_setup(), target)
        await generator.open(1)
        await generator.start(RequestRate(1000))
        await generator.close()
        sent = len(target.sent)
        await asyncio.sleep(0.02)
        assert len(target.sent) == sent

    run(main)


def _with_ids(count: int) -> ModelSetup:
    return replace(_STATEFUL, sequences=Sequences(length=4, count=4, first_id=1, last_id=count))


def _check_sequences(sent: list[SentRequest]) -> None:
    by_id: dict[int, list[SentRequest]] = {}
    for each in sent:
        by_id.setdefault(each.sequence_id, []).append(each)
    assert len(by_id) > 3
    for requests in by_id.values():
        assert [each.sequence_start for each in requests] == [True] + [False] * (len(requests) - 1)
        assert [each.sequence_end for each in requests] == [False] * (len(requests) - 1) + [True]


def test_failed_sequences_are_ended() -> None:
    async def main() -> None:
        numbers = itertools.count()
        target = ScriptedTarget(failure=lambda _: "" if next(numbers) % 5 else "unavailable")
        generator = LocalGenerator(_setup(_STATEFUL), target)
        await generator.open(3)
        chunk = await _play(generator, Concurrency(3), 200)
        assert [(each.kind, each.count) for each in chunk.records.failures] == [("unavailable", 40)]
        by_id: dict[int, list[SentRequest]] = {}
        for each in target.sent:
            by_id.setdefault(each.sequence_id, []).append(each)
        for requests in by_id.values():
            if requests[0].failure:
                assert len(requests) == 1
            for failed, following in itertools.pairwise(requests):
                assert not failed.failure or following.sequence_end

    run(main)


def test_only_sequences_without_failure_count() -> None:
    """A server that has lost the state of a sequence fails in its middle, and takes its end."""

    async def main() -> None:
        target = ScriptedTarget(
            failure=lambda each: "invalid_arg" if each.sequence_id % 2 and is_second(each) else ""
        )
        steps: Counter[int] = Counter()

        def is_second(each: SentRequest) -> bool:
            steps[each.sequence_id] += 1
            return steps[each.sequence_id] == 2

        setup = _setup(_with_ids(1000))
        generator = LocalGenerator(setup, target)
        await generator.open(1)
        chunk = await _play(generator, Concurrency(1), 200)
        ids = {
            number
            for number, is_end in zip(chunk.records.sequence_id, chunk.records.sequence_end, strict=True)
            if is_end
        }
        assert len(ids) > 10
        assert not any(number % 2 for number in ids)

    run(main)


def test_models_share_the_load() -> None:
    async def main() -> None:
        generator = LocalGenerator(_setup(replace(_PLAIN, weight=3), _STATEFUL), ScriptedTarget())
        await generator.open(4)
        chunk = await _play(generator, Concurrency(4), 400)
        assert Counter(chunk.records.model) == {0: 300, 1: 100}

    run(main)


def test_broken_connections_do_not_spin() -> None:
    async def main() -> None:
        target = ScriptedTarget(failure=lambda _: "connection")
        generator = LocalGenerator(_setup(), target)
        await generator.open(2)
        await generator.start(Concurrency(2))
        await asyncio.sleep(0.1)
        await generator.stop(1)
        assert 2 <= len(target.sent) <= 14

    run(main)


def test_connections_grow_with_outstanding_requests() -> None:
    async def main() -> None:
        target = ScriptedTarget(lambda _: 0.2)
        generator = LocalGenerator(_setup(), target)
        await generator.open(2)
        await generator.start(RequestRate(500))
        await asyncio.sleep(0.05)
        await generator.take()
        await asyncio.sleep(0)
        assert target.connections[-1] > 2
        await generator.stop(1)

    run(main)


def test_wrong_outputs_are_failures() -> None:
    expected = {"OUT": np.array([1, 2], np.int32)}
    inputs = TemplateSet(
        [RequestTemplate(RequestHeader(model_name="m"), [], expected, "data.json step 0")], [range(1)]
    )

    def respond(exchange: SentRequest) -> str:
        values = np.array([1, 2 + len(target.ended) % 2], np.int32)
        exchange.body = [([TensorSpec("OUT", DataType.INT32, (2,))], [values.tobytes()])]
        return ""

    target = ScriptedTarget(failure=respond)

    async def main() -> None:
        generator = LocalGenerator(replace(_SETUP, models=[ModelSetup(inputs)], validates=True), target)
        await generator.open(1)
        chunk = await _play(generator, Concurrency(1), 6)
        (failure,) = chunk.records.failures
        assert (failure.kind, failure.count) == ("validation", 3)
        assert failure.message == "data.json step 0: output 'OUT'[1]: expected 2, got 3"

    run(main)


def test_recorded_traffic_is_sent_as_scripted() -> None:
    async def main() -> None:
        script = [ReplayedRequest(number % 2, 2 - number, 7, number == 0, number == 2) for number in range(3)]
        target = ScriptedTarget()
        generator = LocalGenerator(replace(_setup(_PLAIN, _PLAIN), script=script), target)
        await generator.open(1)
        await _play(generator, Schedule((0, 0, 1_000_000)))
        sent = [
            (each.model_index, each.template_index, each.sequence_id, each.sequence_start, each.sequence_end)
            for each in target.sent
        ]
        assert sent == [(0, 2, 7, True, False), (1, 1, 7, False, False), (0, 0, 7, False, True)]

    run(main)


def test_slots_have_requests_of_their_own() -> None:
    async def main() -> None:
        outputs = OutputSlots({"OUT": 64}, 4)
        outputs.block = SimpleNamespace(name="region")  # type: ignore[assignment]
        inputs = replace(_PLAIN.inputs, outputs=outputs)
        target = ScriptedTarget(lambda _: 0.001)
        generator = LocalGenerator(_setup(ModelSetup(inputs)), target)
        await generator.open(4)
        await _play(generator, Concurrency(4), 50)
        for exchange, prepared in zip(target.sent, target.prepared, strict=True):
            (output,) = prepared.template.header.outputs
            assert output.shared_memory is not None
            assert output.shared_memory.offset == 64 * exchange.slot

    run(main)
