"""Profiles of candidates: each in a process of its own, a few processes at a time, measured in turns.

Processes of a group take turns of a fraction of the time, so that a machine that slows down slows all of them.
"""

import contextlib
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from naiad.tools.measure.intervals import NONE, Sample
from naiad.tools.measure.result import Interval
from naiad.tools.optimize.candidate import Conversion
from naiad.tools.optimize.correctness.runners.isolated import CandidateLimits, ModelProcess
from naiad.tools.optimize.correctness.runners.model_runner import RunnerError
from naiad.tools.optimize.optimize_progress import Progress
from naiad.tools.optimize.optimize_source import Samples, Source
from naiad.tools.optimize.profile.candidate_configuration import configuration, write_model
from naiad.tools.optimize.profile.profile_messages import Arrays, Loaded, ProfileJob, TimedCalls
from naiad.tools.optimize.results.candidate_measurement import Profile, Runtime, figures_text

BATCHES = (1, 2, 4, 8, 16, 32)
GROUP = 3
"""Processes that are alive at the same time."""
_ROUNDS = 8
"""As many as the coarsest blocks of the confidence intervals."""
_FEWEST_ROUNDS = 3
"""Of a model whose calls take longer than its time."""
_SAMPLES = 32
_GAIN = 1.05
"""A larger batch is better if its throughput is greater by this factor; two that are not end the search."""
_SEARCH_SHARE = 0.25
"""Of the time of a profile."""
_MODULE = "naiad.tools.optimize.profile.profile_child"
_QUIET = Progress()


def measure(
    conversions: Sequence[tuple[Conversion, Sequence[Runtime]]],
    samples: Samples,
    source: Source,
    *,
    seconds_per_profile: float = 1.0,
    limits: CandidateLimits | None = None,
    progress: Progress = _QUIET,
) -> Iterator[tuple[str, Profile]]:
    """Return name and profile of each candidate under each of its runtimes, as they are finished.

    A crash, a call longer than the limit, and too much memory are a profile with `error`. The time is that of
    measuring; loading and the first calls come on top. Raises ValueError if there are no samples.
    """
    rows = profile_samples(samples)
    jobs = [(conversion, runtime) for conversion, each in conversions for runtime in each]
    for first in range(0, len(jobs), GROUP):
        group = jobs[first : first + GROUP]
        for index, (conversion, runtime) in enumerate(group, first):
            progress.step("profile", f"{conversion.candidate.name} {runtime.name}", index, len(jobs))
        profiles = measure_group(group, rows, source, seconds_per_profile, limits or CandidateLimits())
        for (conversion, runtime), found in zip(group, profiles, strict=True):
            text = found.error or f"{figures_text(found.latency, found.throughput)} at batch {found.batch}"
            progress.done("profile", f"{conversion.candidate.name} {runtime.name}", text)
            yield conversion.candidate.name, found


def profile_samples(samples: Samples) -> list[Arrays]:
    """Return the first samples that have the shapes of the first one. Raises ValueError if there are none."""
    first = next(iter(samples), None)
    if first is None:
        raise ValueError("the data has no samples")
    shapes = {name: array.shape for name, array in first.items()}
    same = (each for each in samples if {name: array.shape for name, array in each.items()} == shapes)
    return list(itertools.islice(same, _SAMPLES))


def measure_group(
    jobs: Sequence[tuple[Conversion, Runtime]],
    samples: Sequence[Arrays],
    source: Source,
    seconds: float,
    limits: CandidateLimits,
) -> list[Profile]:
    """Return the profiles of models that take turns; all of them are in memory at the same time."""
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="naiad-profile-"))
        group: list[_ModelProfiler] = []
        for index, (conversion, runtime) in enumerate(jobs):
            profiler = _ModelProfiler(conversion, runtime, samples, source, Path(home, str(index)), seconds, limits)
            stack.callback(profiler.close)
            group.append(profiler)
        for profiler in group:
            profiler.start()
        for number in range(_ROUNDS):
            for profiler in group:
                profiler.take_turn(number)
        return [profiler.profile() for profiler in group]


@dataclass
class _ModelProfiler:
    """The measurement of one model in a process. After a failure it does nothing more."""

    conversion: Conversion
    runtime: Runtime
    samples: Sequence[Arrays]
    source: Source
    folder: Path
    seconds: float
    limits: CandidateLimits
    error: str = ""
    batch: int = 1
    _process: ModelProcess | None = field(init=False)
    _loaded: Loaded | None = None
    _single: list[int] = field(default_factory=list)
    """Times of calls with one sample, in ns."""
    _best: list[int] = field(default_factory=list)
    """Times of calls with `batch` samples."""
    _memory_mib: float = 0.0
    _used_s: float = 0.0

    def __post_init__(self) -> None:
        """Start the process, which waits for the model."""
        self._process = ModelProcess(_MODULE, [], self.limits)

    def start(self) -> None:
        """Load the model and find its best batch size."""
        candidate, source, runtime = self.conversion.candidate, self.source, self.runtime
        sizes = (BATCHES[-1], 0) if source.has_batch else (0,)
        texts = [configuration(candidate, self.conversion, source, runtime, size) for size in sizes]
        directory = write_model(self.folder, self.conversion, texts[0])
        names = [spec.name for spec in source.inputs] or list(self.samples[0])
        job = ProfileJob(directory, candidate.backend, texts, names, self.samples, source.has_batch)
        assert self._process is not None
        try:
            self._loaded = self._process.call(job, self.limits.load_s)
            self._search()
        except RunnerError as error:
            self._fail(error)

    def take_turn(self, number: int) -> None:
        """Measure a round: calls with one sample, then with the best batch."""
        if self.error or (number >= _FEWEST_ROUNDS and self._used_s > 2 * self.seconds):
            return
        share = 1 - _SEARCH_SHARE if self.batch == self._least else (1 - _SEARCH_SHARE) / 2
        try:
            self._single += self._calls(self._least, share * self.seconds / _ROUNDS)
            if self.batch != self._least:
                self._best += self._calls(self.batch, share * self.seconds / _ROUNDS)
        except RunnerError as error:
            self._fail(error)

    def profile(self) -> Profile:
        """Return the figures."""
        if self.error or self._loaded is None:
            return Profile(self.runtime, NONE, NONE, 1, 0.0, 0.0, self.error)
        single, best = _median_us(self._single), _median_us(self._best or self._single)
        return Profile(
            self.runtime,
            single,
            Interval(*(self.batch * 1e6 / each for each in (best.value, best.high, best.low))),
            self.batch,
            self._loaded.load_s,
            self._memory_mib,
        )

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()
            self._process = None

    @property
    def _least(self) -> int:
        """The fewest samples of a call."""
        assert self._loaded is not None
        return self._loaded.max_batch if self._loaded.is_fixed else 1

    def _search(self) -> None:
        """Try larger batches until two in a row do not raise the throughput, or the time is over."""
        assert self._loaded is not None
        limit = self._loaded.max_batch or BATCHES[-1]
        self.batch, best, misses = self._least, 0.0, 0
        for batch in [self._least] if self._loaded.is_fixed else [each for each in BATCHES if each <= limit]:
            try:
                calls = self._calls(batch, _SEARCH_SHARE * self.seconds / len(BATCHES))
            except RunnerError:
                if batch == self._least or self._process is None or not self._process.is_alive:
                    raise
                break  # The model takes no such batch.
            throughput = batch / float(np.median(calls))
            if throughput > best * _GAIN:
                self.batch, best, misses = batch, throughput, 0
            else:
                misses += 1
            if misses == 2 or self._used_s > self.seconds:
                break

    def _calls(self, batch: int, seconds: float) -> Sequence[int]:
        assert self._process is not None
        begin_s = time.monotonic()
        found: TimedCalls = self._process.call((batch, seconds), 2 * seconds + self.limits.call_s)
        self._used_s += time.monotonic() - begin_s
        self._memory_mib = max(self._memory_mib, found.memory_mib)
        return found.durations_ns

    def _fail(self, error: RunnerError) -> None:
        self.error = str(error)
        self.close()


def _median_us(durations_ns: Sequence[int]) -> Interval:
    """Return the median time of calls; the clock stands still between them, so that the blocks are rounds.

    The median, since the mean is that of the other processes on a machine that is not idle.
    """
    ends_ns = np.cumsum(durations_ns, dtype=np.int64)
    sample = Sample(ends_ns, np.array(durations_ns, np.float64) / 1e3, 0, int(ends_ns[-1]))
    return sample.percentiles([50])[50]
