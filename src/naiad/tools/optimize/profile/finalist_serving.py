"""Finalists as models of a running naiad, under load of `naiad perf`.

Each one has a server of its own, so that a crash is its own and the memory, too. The servers take turns: in every
round each one gets single requests, then concurrent ones, while the other servers are idle.
"""

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from naiad.client import Client
from naiad.core.errors import InferError
from naiad.core.tensor import TensorSpec
from naiad.tools.measure.intervals import NONE
from naiad.tools.measure.result import Row
from naiad.tools.optimize.candidate import Conversion
from naiad.tools.optimize.correctness.runners.isolated import CandidateLimits
from naiad.tools.optimize.correctness.runners.model_runner import RunnerError
from naiad.tools.optimize.correctness.tensor_names import match_names
from naiad.tools.optimize.optimize_progress import Progress
from naiad.tools.optimize.optimize_result import SOURCE
from naiad.tools.optimize.optimize_source import Samples, Source
from naiad.tools.optimize.profile.candidate_configuration import configuration, write_model
from naiad.tools.optimize.profile.load_check import LoadCheck
from naiad.tools.optimize.profile.measuring import profile_samples
from naiad.tools.optimize.profile.processor import read_processor, tree_cpu_s
from naiad.tools.optimize.profile.profile_messages import Arrays
from naiad.tools.optimize.results.candidate_measurement import Round, Runtime, ServedMeasurement, figures_text
from naiad.tools.optimize.results.rounds import ROUNDS as _ROUNDS
from naiad.tools.optimize.results.rounds import is_settled, over_rounds
from naiad.tools.perf.perf_plan import (
    Concurrency,
    InputSettings,
    Measuring,
    ModelLoad,
    Plan,
    Protocol,
    ServerTarget,
    Stop,
)
from naiad.tools.perf.perf_session import Session
from naiad.tools.process.child import ProcessError, with_this_path
from naiad.tools.process.own_server import ServeProcess
from naiad.tools.process.usage import resident_mib
from naiad.tools.values.tensor import InputError

MOST_CONCURRENT = 16
_START_S = 60.0
_FLAGS = (
    "--model-control-mode=explicit",
    "--grpc-address=127.0.0.1",
    "--grpc-port=0",
    "--allow-http=false",
    "--allow-metrics=false",
)
_MOST_ROUNDS = 27
_LONGEST_SHARE = 8.0
"""Of the time of both loads of all finalists: rounds are added until then, while it is open which one is better."""
_FEWEST_ROUNDS = 5
"""Of a model whose requests take longer than its time."""
_REQUESTS_OF_A_ROUND = 5
"""By connection, unless a round would be longer than `_LONGEST_ROUND_S`."""
_LONGEST_ROUND_S = 2.0
_LONGER = 20
"""Factor of the time of a round in which no request has ended."""
_QUIET = Progress()


def serve(
    finalists: Sequence[tuple[Conversion, Runtime, int]],
    samples: Samples,
    source: Source,
    *,
    seconds: float = 1.0,
    limits: CandidateLimits | None = None,
    progress: Progress = _QUIET,
    check: LoadCheck | None = None,
) -> Iterator[tuple[str, ServedMeasurement]]:
    """Return name and figures of each finalist, in order, when all of them are measured.

    With `check`, the answers under load are compared, before the first round and after the last one; a finalist that
    answers otherwise than alone has figures with `error`.

    A finalist is a conversion with its runtime and the batch size that dynamic batching may make. `seconds` is the
    time of each of its two loads. A model that does not load or that fails requests has figures with `error`. Raises
    ValueError if there are no samples.
    """
    rows = profile_samples(samples)
    with tempfile.TemporaryDirectory(prefix="naiad-serve-") as home:
        models = [
            _Finalist(*finalist, rows, source, Path(home, str(index)), limits or CandidateLimits(), check)
            for index, finalist in enumerate(finalists)
        ]
        # In a thread: a notebook has a running loop in this one.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, _measure(models, seconds, progress)).result()
    for model in models:
        yield model.conversion.candidate.name, model.served()


async def _measure(models: Sequence["_Finalist"], seconds: float, progress: Progress) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for model in models:
            stack.callback(model.open().close)
        for index, model in enumerate(models):
            progress.step("serve", model.conversion.candidate.name, index, len(models))
            await model.start(stack)
        names = [model.conversion.candidate.name for model in models]
        begin_s, base = time.monotonic(), names.index(SOURCE) if SOURCE in names else 0
        for number in range(_MOST_ROUNDS):
            is_over = time.monotonic() - begin_s > _LONGEST_SHARE * seconds * len(models)
            if number >= _ROUNDS and (is_over or is_settled([model.rounds for model in models], base)):
                break
            for model in models:
                await model.take_turn(number, seconds)
        for model in models:
            await model.check_answers()
    for model in models:
        found = model.served()
        text = found.error or figures_text(found.latency, found.throughput)
        progress.done("serve", model.conversion.candidate.name, text)


@dataclass
class _Finalist:
    """A finalist and its server. After a failure it does nothing more."""

    conversion: Conversion
    runtime: Runtime
    batch: int
    samples: Sequence[Arrays]
    source: Source
    folder: Path
    limits: CandidateLimits
    check: LoadCheck | None = None
    error: str = ""
    rounds: list[Round] = field(default_factory=list)
    max_batch_size: int = 0
    memory_mib: float = 0.0
    rows: int = 1
    """Samples of a request."""
    _server: ServeProcess | None = None
    _session: Session | None = None
    _url: str = ""
    _names: Mapping[str, str] = field(default_factory=dict)
    """The model's inputs by the source's."""
    _before_mib: float = 0.0
    _used_s: float = 0.0
    _requests: dict[int, int] = field(default_factory=dict)
    """By concurrency."""
    _single: list[Row] = field(default_factory=list)
    _concurrent: list[Row] = field(default_factory=list)

    @property
    def concurrency(self) -> int:
        """Return the requests outstanding in the second load: two batches."""
        return min(MOST_CONCURRENT, 2 * max(1, self.max_batch_size))

    def open(self) -> ServeProcess:
        """Start the server; it takes a second until it listens."""
        self._write(self.batch)
        flags = [f"--model-repository={self._repository}", *_FLAGS]
        self._server = ServeProcess(flags, environment=with_this_path())
        return self._server

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        """Load the model and prepare its requests."""
        assert self._server is not None
        try:
            addresses = await self._server.ready(_START_S)
            url = self._url = f"grpc://{addresses.urls['grpc']}"
            self._before_mib = resident_mib(self._server.pid)
            inputs = await self._load(url)
            plan = Plan(
                ServerTarget(url, Protocol.GRPC, request_timeout_s=self.limits.call_s),
                [ModelLoad(self.conversion.candidate.name, inputs=InputSettings((self._write_samples(inputs),)))],
                Concurrency(1),
                processes=1,
            )
            self._session = await stack.enter_async_context(Session(plan))
        except ProcessError as error:
            self._fail(f"the server did not start: {error}")
        except (RunnerError, InferError, InputError) as error:
            self._fail(str(error))

    async def take_turn(self, number: int, seconds: float) -> None:
        """Send single requests, then concurrent ones."""
        is_late = number >= _FEWEST_ROUNDS and self._used_s > 4 * seconds
        if self.error or self._session is None or self._server is None or is_late:
            return
        begin_s = time.monotonic()
        if not number:
            await self.check_answers()
        before, used_s = read_processor(), 0.0
        try:
            for load, found in ((1, self._single), (self.concurrency, self._concurrent)):
                if not number:  # The first requests start threads and allocate memory.
                    self._requests[load] = await self._requests_of_a_round(load, seconds / _ROUNDS)
                count = Measuring(Stop.REQUEST_COUNT, request_count=self._requests[load], percentile=99)
                cpu_s = tree_cpu_s(self._server.pid)
                found.append(await self._send(load, count))
                used_s = tree_cpu_s(self._server.pid) - cpu_s
                self.memory_mib = max(self.memory_mib, resident_mib(self._server.pid) - self._before_mib)
            self._add_round(used_s, read_processor().others_since(before))
        except (RunnerError, InferError) as error:
            self._fail(str(error))
        if self.memory_mib > self.limits.memory_mib:
            self._fail(f"it uses {self.memory_mib:.0f} MiB of memory, allowed are {self.limits.memory_mib:.0f} MiB")
        self._used_s += time.monotonic() - begin_s

    async def check_answers(self) -> None:
        """Compare the answers under load with the source's; a difference is the failure of this finalist."""
        if self.check is None or self.error or self._session is None or self.rows != 1:
            return  # A model with a fixed number of rows takes no single samples.
        try:
            async with Client(self._url, timeout_s=self.limits.call_s) as client:
                different = await self.check.difference(
                    client,
                    self.conversion.candidate,
                    self.samples,
                    self._names,
                    self.concurrency,
                    self.source.outputs,
                )
        except (RunnerError, InferError) as error:
            different = f"requests fail: {error}"
        if different:
            self._fail(different)

    def _add_round(self, used_s: float, others: float) -> None:
        latency, row = self._single[-1].latency.percentiles[50].value, self._concurrent[-1]
        inferences = self.rows * self._requests[self.concurrency]
        self.rounds.append(Round(latency, self.rows * row.throughput.value, 1e6 * used_s / inferences, others))

    def served(self) -> ServedMeasurement:
        """Return the figures."""
        command = (
            f"naiad perf -m {self.conversion.candidate.name} -i grpc -u localhost:8001 "
            f"--concurrency-range {self.concurrency} --input-data samples.npz"
        )
        if self.error or not self._concurrent:
            error = self.error or "it was not measured"
            return ServedMeasurement(
                self.runtime, NONE, 0.0, NONE, self.concurrency, self.max_batch_size, 0.0, command, error
            )
        return ServedMeasurement(
            self.runtime,
            over_rounds([row.latency.percentiles[50].value for row in self._single]),
            statistics.median(row.latency.percentiles[99].value for row in self._concurrent),
            over_rounds([self.rows * row.throughput.value for row in self._concurrent]),
            self.concurrency,
            self.max_batch_size,
            self.memory_mib,
            command,
            cpu=over_rounds([each.cpu_us for each in self.rounds]),
            rounds=self.rounds,
        )

    async def _load(self, url: str) -> Sequence[TensorSpec]:
        """Load the model, without batches if it cannot have them; return its inputs. Raises InferError."""
        name = self.conversion.candidate.name
        async with Client(url, timeout_s=self.limits.load_s) as client:
            for size in (self.batch, 0) if self.source.has_batch else (0,):
                self._write(size)
                try:
                    await client.load(name)
                    break
                except InferError:
                    if not size:
                        raise
            return (await client.model_metadata(name)).inputs

    @property
    def _repository(self) -> Path:
        return self.folder / "models"

    def _write(self, max_batch_size: int) -> None:
        self.max_batch_size = max_batch_size if self.source.has_batch else 0
        candidate = self.conversion.candidate
        text = configuration(candidate, self.conversion, self.source, self.runtime, self.max_batch_size)
        write_model(self._repository, self.conversion, text)

    def _write_samples(self, inputs: Sequence[TensorSpec]) -> str:
        """Write the samples as `naiad perf` reads them and return the path. Raises RunnerError."""
        known = self.source.inputs or [TensorSpec(name, inputs[0].datatype, ()) for name in self.samples[0]]
        names = match_names(known, inputs, "inputs")
        has_rows = self.source.has_batch and not self.max_batch_size
        if has_rows:
            self.rows = max(1, inputs[0].shape[0])
        self._names = names
        arrays = {}
        for name in self.samples[0]:
            array = np.stack([each[name] for each in self.samples])
            array = array.astype(np.bytes_) if array.dtype == object else array
            arrays[names[name]] = np.stack([array] * self.rows, 1) if has_rows else array
        path = self.folder / "samples.npz"
        np.savez(path, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for `allow_pickle`
        return str(path)

    async def _requests_of_a_round(self, concurrency: int, seconds: float) -> int:
        """Return the number of requests that take about so long, at least some for each concurrent one."""
        for length in (seconds, _LONGER * seconds):
            measuring = Measuring(window_ms=max(1, round(length * 1000)), max_trials=1, warmup_requests=concurrency)
            row = await self._send(concurrency, measuring)
            if row.request_count:
                rate = row.throughput.value
                enough = min(_REQUESTS_OF_A_ROUND * concurrency, rate * _LONGEST_ROUND_S)
                return round(max(rate * seconds, enough, concurrency))
        raise RunnerError(f"no request has ended in {_LONGER * seconds:g} s")

    async def _send(self, concurrency: int, measuring: Measuring) -> Row:
        """Return the figures of a load. Raises RunnerError if a request fails."""
        assert self._session is not None
        self._session.plan = replace(self._session.plan, measuring=measuring)
        (row,) = await self._session.measure(Concurrency(concurrency))
        if row.errors:
            raise RunnerError(f"requests fail: {row.errors[0].message}")
        return row

    def _fail(self, error: str) -> None:
        assert self._server is not None
        self.error = error if self._server.is_alive else f"the server ended: {self._server.process.last_output(300)}"
