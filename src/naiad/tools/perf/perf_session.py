"""A run: reads the model, prepares its inputs, measures each load, and makes the result."""

import asyncio
import contextlib
import datetime
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np

from naiad.client import Client, ConnectionFailedError
from naiad.core.errors import InferError, invalid_argument
from naiad.core.model import ServerMetadata
from naiad.core.version import __version__
from naiad.tools.measure.result import Result, Row
from naiad.tools.perf.generator.local_generator import LocalGenerator
from naiad.tools.perf.generator.processes import GeneratorProcesses
from naiad.tools.perf.generator.setup import ModelSetup, Setup
from naiad.tools.perf.inputs.replay import Replay, ReplayedRequest, replay_inputs
from naiad.tools.perf.inputs.shared_memory import in_shared_memory
from naiad.tools.perf.inputs.templates import TemplateSet, prepare_inputs
from naiad.tools.perf.load.arrivals import check_load, is_played_once
from naiad.tools.perf.load.search import check_loads, load_of, values
from naiad.tools.perf.measuring.level import Generator, Level, PerfProgress
from naiad.tools.perf.measuring.observers import IdleCores, MetricsScrape
from naiad.tools.perf.measuring.server_model import (
    ModelReader,
    ServerModel,
    composing_models,
    make_client,
    read_model,
    read_server,
    read_statistics,
)
from naiad.tools.perf.perf_exchange import Target
from naiad.tools.perf.perf_plan import (
    Concurrency,
    Load,
    Mode,
    ModelLoad,
    PeriodicConcurrency,
    Plan,
    Protocol,
    Schedule,
    Search,
    ServerTarget,
)
from naiad.tools.perf.records import Measurement
from naiad.tools.perf.statistics.row import row
from naiad.tools.perf.targets import make_target
from naiad.tools.perf.targets.routed import RoutedTarget

_MAX_OUTSTANDING = 10_000
_MAX_OUTSTANDING_BYTES = 512 * 1024 * 1024
_SHARED_MEMORY_SLOTS = 64
"""Of open loops and of sweeps without an end."""
_OPEN_LOOP_CONNECTIONS = 16
"""At first; more are opened when requests wait for them."""
_BUSY_CPU_SHARE = 0.9
_CANCEL_S = 2.0
"""An interrupted run waits for so long until no further connection is opened."""
_SWITCH_INTERVAL_S = 0.0005
"""The thread that computes the verdict may not hold up the loop for Python's 5 ms."""


class LoadNotSentError(ConnectionFailedError):
    """The connections that a load needs could not be opened, or the run was interrupted meanwhile."""


class Session:
    """A plan against a server, for one event loop.

        async with Session(plan) as session:
            rows = await session.measure(Concurrency(8))

    Errors of requests do not end a measurement: they are in its rows.
    """

    def __init__(
        self,
        plan: Plan,
        progress: PerfProgress | None = None,
        targets: Callable[[ServerTarget, Sequence[str]], Target] = make_target,
        export: "Export | None" = None,
    ) -> None:
        self.plan = plan
        self.server = ServerMetadata("", "", ())
        self.loads: Search | Load = plan.loads
        """Of the plan, or the schedule of its data or of recorded traffic."""
        self._progress = progress or PerfProgress()
        self._targets = targets
        self._export = export
        self._stack = contextlib.AsyncExitStack()
        self._interrupted = asyncio.Event()
        self._composing: Mapping[str, Sequence[str]] = {}
        self._generator: Generator | None = None
        self._processes = max(1, plan.processes)
        self._services: Sequence[ServerTarget] = (plan.service,)
        """By route of the templates."""
        self._target: Target | None = None
        """The models in this process, which serve all loads."""

    async def __aenter__(self) -> Self:
        """Open the session."""
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the session."""
        await self.close()

    async def open(self) -> None:
        """Read the models, prepare their inputs and connect.

        Raises InferError with URL and model for a model that is not there or a plan that makes no sense,
        ConnectionFailedError with the URL for a server that cannot be reached, InputError for data that does not fit.
        """
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise

    async def _open(self) -> None:
        check_loads(self.plan.loads, self.plan.measuring.latency_limit_us)
        self._client = await self._make_client()
        self._stack.callback(self._client.close)
        self.server = await read_server(self._client)
        script: Sequence[ReplayedRequest] = ()
        replay: Replay | None = None
        if self.plan.replay_files:
            replay = await asyncio.to_thread(replay_inputs, self.plan)
            named = {model.name: model for model in self.plan.models}
            self.plan = replace(self.plan, models=[named.get(name) or ModelLoad(name) for name in replay.models])
            self.loads, script, self._services = replay.schedule, replay.requests, replay.services
            for note in replay.notes:
                self._progress.note(note)
        found = [await read_model(self._client, self.plan, model) for model in self.plan.models]
        self._composing = await composing_models(self._client, found)
        if replay is not None:
            models = [ModelSetup(inputs) for inputs in replay.inputs]
        else:
            models = [await self._model(*pair) for pair in zip(self.plan.models, found, strict=True)]
        if self.plan.is_fixed_schedule:
            self.loads = Schedule(_schedule(models))
            check_load(self.loads)
        if script and self._processes > 1:
            raise invalid_argument("recorded traffic is sent by one process, in its order; leave out --processes")
        if isinstance(self.loads, PeriodicConcurrency) and self._processes > 1:
            raise invalid_argument("periodic concurrency is sent by one process; leave out --processes")
        self._setup = Setup(
            service=self.plan.service,
            models=models,
            timing_share=self.plan.timing_share,
            validates=True,
            keeps_bodies=self.plan.keeps_requests,
            script=script,
            max_outstanding=_max_outstanding(models),
            seed=self.plan.models[0].inputs.seed,
        )
        self._generator = await self._make_generator()

    async def _make_client(self) -> ModelReader:
        if self.plan.service.protocol is not Protocol.IN_PROCESS:
            return make_client(self.plan)
        from naiad.tools.perf.targets.in_process import (
            EmbeddedClient,  # modules of a server
            InProcessTarget,
        )

        if self._processes > 1:
            raise invalid_argument("a model in this process is measured by one process; leave out --processes")
        target = InProcessTarget(self.plan.service, [model.name for model in self.plan.models])
        self._stack.push_async_callback(target.close)
        await target.open(1)
        self._target = target
        return EmbeddedClient(target.server)

    async def _model(self, plan: ModelLoad, found: ServerModel) -> ModelSetup:
        inputs = await asyncio.to_thread(
            prepare_inputs,
            plan,
            found.metadata,
            found.config,
            self.plan.service,
            is_only_model=len(self.plan.models) == 1 and not plan.inputs.is_shared,
        )
        kind = plan.inputs.shared_memory
        if kind != "none":
            if not isinstance(self._client, Client):
                raise invalid_argument("a model in this process needs no shared memory; leave out --shared-memory")
            if self._processes > 1:
                raise invalid_argument("shared memory is used by one generator process; leave out --processes")
            slots = self._slots()
            inputs = await self._stack.enter_async_context(in_shared_memory(self._client, kind, inputs, slots))
        is_sequence = found.config is not None and found.config.HasField("sequence_batching")
        sequences = None
        if is_sequence:
            # Requests over several connections may overtake each other: a sequence waits for its response there.
            is_ordered = self.plan.service.mode is Mode.STREAM or self.plan.service.protocol is Protocol.IN_PROCESS
            sequences = replace(plan.sequences, are_serial=plan.sequences.are_serial or not is_ordered)
        has_data = any(source not in ("random", "zero") for source in plan.inputs.sources)
        return ModelSetup(inputs, plan.weight, sequences, uses_stream_length=has_data)

    def _slots(self) -> int:
        loads = self.loads
        if isinstance(loads, Concurrency | PeriodicConcurrency):
            return _most_outstanding(loads)
        if isinstance(loads, Search) and not loads.is_rate and loads.end:
            return int(loads.end)
        return _SHARED_MEMORY_SLOTS

    async def _make_generator(self) -> Generator:
        generator: Generator
        if self._processes > 1:
            generator = GeneratorProcesses(self._setup, self._processes)
        else:
            generator = LocalGenerator(self._setup, self._target or self._make_target())
        try:
            await generator.open(1)
        except BaseException:
            await generator.close()
            raise
        return generator

    def _make_target(self) -> Target:
        models = [model.name for model in self.plan.models]
        targets = [self._targets(service, models) for service in self._services]
        return targets[0] if len(targets) == 1 else RoutedTarget(targets)

    async def measure(self, load: Load) -> list[Row]:
        """Measure a load; return a row for each model. Raises InferError(INVALID_ARG) for one that makes no sense,
        LoadNotSentError for one whose connections cannot be opened.

        A single generator process that turns out to be the limit is replaced by several, and the load is measured
        again, while cores are free and the plan does not say how many processes to use.
        """
        check_load(load)
        while True:
            measurement, idle_cores = await self._measured(load)
            if not self._can_grow(measurement, load, idle_cores):
                break
            self._processes += 1
            assert self._generator is not None
            await self._generator.close()
            self._generator = None
            self._generator = await self._make_generator()
        rows = await asyncio.to_thread(self._rows, load, measurement)
        if self._export is not None:
            await asyncio.to_thread(self._export, self, load, measurement)
        self._progress.level_done(rows)
        return rows

    async def _measured(self, load: Load) -> tuple[Measurement, float]:
        assert self._generator is not None, "the session is not open"
        await self._connect(load)
        self._progress.level_started(load)
        plan, idle_cores = self.plan, IdleCores()
        level = Level(load, plan.measuring, self._generator, self._progress, self._statistics, self._interrupted)
        scrape = MetricsScrape(plan.metrics_url, plan.metrics_interval_ms / 1e3) if plan.metrics_url else None
        try:
            if scrape:
                scrape.start()
            with _short_switch_interval():
                measurement = await level.measure()
        finally:
            if scrape:
                scrape.stop()
        measurement.metrics = list(scrape.scrapes) if scrape else []
        measurement.composing = self._composing
        return measurement, idle_cores.mean()

    async def _connect(self, load: Load) -> None:
        """Open the connections of a load; an interrupt ends it."""
        assert self._generator is not None
        self._progress.level_connects(load)
        opening = asyncio.ensure_future(self._generator.open(_most_outstanding(load)))
        interrupted = asyncio.ensure_future(self._interrupted.wait())
        try:
            await asyncio.wait((opening, interrupted), return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()
                return
        except InferError as error:
            raise LoadNotSentError(error.message) from error
        finally:
            interrupted.cancel()
            if not opening.done():
                opening.cancel()
                await asyncio.wait((opening,), timeout=_CANCEL_S)
        raise LoadNotSentError("interrupted before its connections were open")

    def _rows(self, load: Load, measurement: Measurement) -> list[Row]:
        return [row(self.plan, index, load, measurement) for index in range(len(self.plan.models))]

    def _can_grow(self, measurement: Measurement, load: Load, idle_cores: float) -> bool:
        if self.plan.processes or self._target or measurement.interrupted or is_played_once(load):
            return False
        facts = measurement.generator
        wants_more = isinstance(load, Concurrency) or facts.unsent > 0 or _is_late(facts.late_ns)
        is_shared = any(model.inputs.outputs is not None for model in self._setup.models)
        is_busy = facts.busiest_cpu_share > _BUSY_CPU_SHARE
        return is_busy and wants_more and not is_shared and idle_cores >= 1.0

    @property
    def inputs(self) -> Sequence[TemplateSet]:
        """The requests of each model."""
        return [model.inputs for model in self._setup.models]

    async def _statistics(self) -> Mapping[str, Any]:
        return await read_statistics(self._client)

    def interrupt(self) -> None:
        """End the measurement in progress; its rows say so."""
        self._interrupted.set()

    @property
    def is_interrupted(self) -> bool:
        """Whether the run is to end."""
        return self._interrupted.is_set()

    async def close(self) -> None:
        """Disconnect, and release shared memory."""
        generator, self._generator = self._generator, None
        if generator is not None:
            await generator.close()
        await self._stack.aclose()


Export: TypeAlias = Callable[[Session, Load, Measurement], None]


async def run(
    plan: Plan,
    progress: PerfProgress | None = None,
    *,
    command: Sequence[str] = (),
    targets: Callable[[ServerTarget, Sequence[str]], Target] = make_target,
    export: Export | None = None,
) -> Result:
    """Carry out a plan: open a session, measure its loads, and return the result.

    `export` gets each load when it has been measured, in a thread.

    SIGINT and SIGTERM end the load in progress, and the result has what was measured so far; a second signal ends the
    process. Raises as `Session.open` does, and LoadNotSentError if not even the first load could be sent.
    """
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    async with Session(plan, progress, targets, export) as session:
        with _signals(session):
            rows, found, exit_reason = await _measure_all(session)
        return Result(
            command=command,
            started=started,
            environment=_environment(session),
            percentile=plan.measuring.percentile,
            rows=rows,
            found=found,
            exit_reason=exit_reason,
        )


async def _measure_all(session: Session) -> tuple[list[Row], float | None, str]:
    rows: list[Row] = []
    found: float | None = None
    for _ in range(session.plan.repeat):
        loads = session.loads
        try:
            if not isinstance(loads, Search):
                rows += await session.measure(loads)
            else:
                found = await _search(session, loads, rows)
        except LoadNotSentError as error:
            if not rows and not session.is_interrupted:
                raise
            return rows, found, "interrupted" if session.is_interrupted else error.message
        if rows and rows[-1].interrupted:
            return rows, found, _exit_reason(session, rows[-1])
        if session.is_interrupted:
            return rows, found, "interrupted"
    return rows, found, ""


async def _search(session: Session, search: Search, rows: list[Row]) -> float | None:
    """Measure the values of a search; return the highest within the latency limit."""
    run_of_values = values(search)
    limit_us, best = session.plan.measuring.latency_limit_us, None
    value = next(run_of_values)
    while True:
        measured = await session.measure(load_of(search, value))
        rows += measured
        if measured[0].interrupted or session.is_interrupted:
            return best
        is_within = all(0 < _judged_us(session.plan, each) < limit_us for each in measured) if limit_us else True
        best = value if limit_us and is_within else best
        try:
            value = run_of_values.send(is_within)
        except StopIteration as end:
            return end.value if limit_us else None


def _judged_us(plan: Plan, row: Row) -> float:
    percentile = plan.measuring.percentile
    return row.latency.mean.value if percentile is None else row.latency.percentiles[percentile].value


def _exit_reason(session: Session, last: Row) -> str:
    if last.interrupted == "interrupt":
        return "interrupted"
    errors = f": {last.errors[0].message}" if last.errors else ""
    return f"the server at {session.plan.service.url} has answered no request for 5 s{errors}"


@contextlib.contextmanager
def _signals(session: Session) -> Iterator[None]:
    loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def remove() -> None:
        for number, handler in before.items():
            if loop.remove_signal_handler(number) and handler is not None:
                signal.signal(number, handler)  # the event loop leaves the system's default

    def interrupt() -> None:
        session.interrupt()
        remove()

    try:
        for number in numbers:
            loop.add_signal_handler(number, interrupt)
    except (ValueError, RuntimeError, NotImplementedError):
        pass  # Not the main thread: the caller ends the run with `interrupt`.
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
            remove()


@contextlib.contextmanager
def _short_switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _environment(session: Session) -> dict[str, str]:
    return {
        "naiad": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cores": str(os.cpu_count() or 1),
        "protocol": session.plan.service.protocol.value,
        "url": session.plan.service.url,
        "server": session.server.name,
        "server_version": session.server.version,
    }


def _schedule(models: Sequence[ModelSetup]) -> tuple[int, ...]:
    if len(models) != 1 or not models[0].inputs.offsets_ns:
        raise invalid_argument(
            "a fixed schedule needs one model, batch size 1, and a `timestamp` (ms) in each entry of its data"
        )
    return models[0].inputs.offsets_ns


def _most_outstanding(load: Load) -> int:
    match load:
        case Concurrency():
            return load.value
        case PeriodicConcurrency():
            return load.end
    return _OPEN_LOOP_CONNECTIONS


def _max_outstanding(models: Sequence[ModelSetup]) -> int:
    largest = max(_largest_bytes(model.inputs) for model in models)
    return max(1, min(_MAX_OUTSTANDING, _MAX_OUTSTANDING_BYTES // max(largest, 1)))


def _largest_bytes(inputs: TemplateSet) -> int:
    return max(sum(len(data) for data in template.data) for template in inputs.templates)


def _is_late(late_ns: "np.ndarray[Any, np.dtype[np.int64]]") -> bool:
    return len(late_ns) > 0 and float(np.mean(late_ns > 1_000_000)) > 0.01
