"""The evidence of a package: samples, the source's answers to them, and the tolerances that hold."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from naiad.core.tensor import Array
from naiad.files.records import read_record, to_json
from naiad.tools.optimize.candidate import Candidate, Precision
from naiad.tools.optimize.correctness.gate import judge
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.model_runner import Arrays, Runner, RunnerError
from naiad.tools.optimize.correctness.scores.elements import agrees_on_first
from naiad.tools.optimize.correctness.scores.tolerances import Kind, step_of
from naiad.tools.optimize.optimize_source import Format, Samples
from naiad.tools.optimize.package.package_files import TOLERANCES
from naiad.tools.optimize.results.verdict import Tolerance, Verdict
from naiad.tools.optimize.samples.chunks import ChunkedSamples, write_chunks
from naiad.tools.optimize.samples.sample_reader import digest

MAX_SAMPLES = 32
MAX_BYTES = 16_000_000
"""Of samples and answers; one sample is kept however large it is."""
_SAMPLES, _ANSWERS, _OWN_ANSWERS = "samples", "answers", "own_answers"
Names = tuple[Mapping[str, str], Mapping[str, str]]
"""Of inputs and of outputs: the model's by the source's."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """How the model's answers to the samples are judged."""

    precision: Precision
    has_batch: bool
    inputs: Mapping[str, str]
    """The model's names by the source's, which samples and answers have."""
    outputs: Mapping[str, str]
    kinds: Mapping[str, Kind]
    tolerances: Mapping[str, Tolerance]
    own: Sequence[str]
    """Outputs that were accepted by a metric: they must be what the model itself answered when it was packaged."""
    is_float32: bool = False
    """The model computes outputs in FP64 with the digits of FP32."""


_ROOM = 1.5
"""Factor of tolerances in a package."""


class StoredAnswers(Runner):
    """A source whose answers are known."""

    def __init__(self, requests: Sequence[Arrays], answers: Sequence[Arrays]) -> None:
        self._answers = {digest([request]): answer for request, answer in zip(requests, answers, strict=True)}

    def infer(self, inputs: Arrays) -> Arrays:
        """Return the answer. Raises RunnerError for a request that is not known."""
        answer = self._answers.get(digest([inputs]))
        if answer is None:
            raise RunnerError("the package has no answer to this request")
        return answer


@dataclass(frozen=True, slots=True)
class Evidence:
    """Samples with their answers, and how they are judged."""

    samples: Sequence[Arrays]
    answers: Sequence[Arrays]
    """The source's; with a batch dimension of 1, if the model has one."""
    own_answers: Sequence[Arrays]
    """The model's, of the outputs in `expectation.own`."""
    expectation: Expectation

    def requests(self) -> list[Arrays]:
        """Return the samples as requests."""
        return [request_of(sample, has_batch=self.expectation.has_batch) for sample in self.samples]

    def judge(self, runner: Runner, name: str) -> Verdict:
        """Return the gate's verdict on a model under the name of its candidate."""
        expectation = self.expectation
        expected = [{**answer, **own} for answer, own in zip(self.answers, self.own_answers, strict=True)]
        settings = Settings(expectation.has_batch, expectation.tolerances, expectation.kinds, are_probed=False)
        # The gate uses name and precision alone.
        candidate = Candidate(name, Format.PYTHON, expectation.precision, "", is_float32=expectation.is_float32)
        return judge(StoredAnswers(self.requests(), expected), runner, self.samples, candidate, settings)

    def write(self, folder: Path) -> None:
        """Write the evidence to a folder."""
        write_chunks(self.samples, folder / _SAMPLES)
        write_chunks(self.answers, folder / _ANSWERS)
        if self.expectation.own:
            write_chunks(self.own_answers, folder / _OWN_ANSWERS)
        (folder / TOLERANCES).write_text(to_json(self.expectation), encoding="utf-8")


def read_evidence(folder: Path) -> Evidence:
    """Return the evidence in a folder. Raises ValueError, KeyError, TypeError, OSError if it is not complete."""
    expectation = read_record(Expectation, json.loads((folder / TOLERANCES).read_text(encoding="utf-8")))
    samples, answers = list(ChunkedSamples(folder / _SAMPLES)), list(ChunkedSamples(folder / _ANSWERS))
    own = list(ChunkedSamples(folder / _OWN_ANSWERS)) if expectation.own else [{}] * len(samples)
    if not len(samples) == len(answers) == len(own):
        raise ValueError(f"{folder}: {len(samples)} samples, but {len(answers)} answers")
    return Evidence(samples, answers, own, expectation)


def collect(
    samples: Samples, source: Runner, model: Runner, settings: Settings, candidate: Candidate, names: Names
) -> Evidence:
    """Return the first samples with the source's answers to them. Raises RunnerError, ValueError without samples.

    The model answers the samples too: few rows say little about the share with the same first class, so the least
    share that is stored is one row under the one that the model has here.
    """
    pairs = list(_within_limits(samples, source, has_batch=settings.has_batch))
    if not pairs:
        raise ValueError("there are no samples to package; pass samples")
    kept, answers = [sample for sample, _ in pairs], [answer for _, answer in pairs]
    found = [model.infer(request_of(sample, has_batch=settings.has_batch)) for sample in kept]
    own = [settings.budget.labels.output] if settings.budget else []
    kinds = {name: settings.kind_of(name, array) for name, array in answers[0].items()}
    precision, is_float32 = candidate.precision, candidate.computes_in_float32
    tolerances = {}
    for name, kind in kinds.items():
        is_double = answers[0][name].dtype == np.float64 and not is_float32
        step = step_of(answers[0][name].dtype)
        tolerances[name] = _with_room(settings.tolerance_of(name, kind, precision, is_double=is_double, step=step))
        if kind.is_classifier and name not in own:
            both = [(one[name], two.get(name)) for one, two in zip(answers, found, strict=True)]
            tolerances[name] = _for_few(tolerances[name], both)
    expectation = Expectation(precision, settings.has_batch, *names, kinds, tolerances, own, is_float32)
    return Evidence(kept, answers, [{name: each[name] for name in own} for each in found], expectation)


def request_of(sample: Arrays, *, has_batch: bool) -> Arrays:
    """Return the request with one sample."""
    return {name: array[None] if has_batch else array for name, array in sample.items()}


def _with_room(tolerance: Tolerance) -> Tolerance:
    """Widen what is compared over all samples: a package has some of them only, with other scales."""
    return replace(
        tolerance,
        relative=_ROOM * tolerance.relative,
        residual=_ROOM * tolerance.residual,
        gain=_ROOM * tolerance.gain,
        bias=_ROOM * tolerance.bias,
    )


def _for_few(tolerance: Tolerance, pairs: Sequence[tuple[Array, Array | None]]) -> Tolerance:
    if tolerance.top1_agreement >= 1:
        return tolerance
    counts = [agrees_on_first(one, two) for one, two in pairs if two is not None and one.shape == two.shape]
    agreeing, rows = sum(each for each, _ in counts), sum(each for _, each in counts)
    least = max(agreeing - 1, 0) / rows if rows else 0.0
    return replace(tolerance, top1_agreement=min(tolerance.top1_agreement, least))


def _within_limits(samples: Samples, source: Runner, *, has_batch: bool) -> Iterator[tuple[Arrays, Arrays]]:
    size_bytes = 0
    for index, sample in enumerate(itertools.islice(samples, MAX_SAMPLES)):
        answer = source.infer(request_of(sample, has_batch=has_batch))
        size_bytes += sum(_stored_bytes(array) for array in (*sample.values(), *answer.values()))
        if index and size_bytes > MAX_BYTES:
            return
        yield sample, answer


def _stored_bytes(array: Array) -> int:
    return int(array.astype(np.bytes_).nbytes if array.dtype == object else array.nbytes)
