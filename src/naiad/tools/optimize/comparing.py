"""Two models beside each other: files of any format, or models on running servers, judged by the gate."""

import contextlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from naiad.core.tensor import TensorSpec
from naiad.tools.optimize.candidate import Candidate, Conversion, Precision, Status
from naiad.tools.optimize.correctness.gate import judge
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.isolated import CandidateLimits
from naiad.tools.optimize.correctness.runners.model_runner import Runner
from naiad.tools.optimize.correctness.runners.remote import RemoteRunner
from naiad.tools.optimize.correctness.tensor_names import match_names, with_names_of
from naiad.tools.optimize.optimize_source import BACKENDS, Format, Samples, Source
from naiad.tools.optimize.results.verdict import Verdict
from naiad.tools.optimize.samples.sample_reader import check_sample, from_path
from naiad.tools.optimize.sources import open_source, reference_runner
from naiad.tools.optimize.sources.reference import write_files
from naiad.tools.optimize.steps.judging import open_conversion, with_traits_of

_ADDRESS = re.compile(r"[\w.-]+:\d+(/.*)?")
_SCHEMES = ("http", "https", "grpc", "grpcs")


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """One of the two models, as the user names it."""

    place: str
    """A model file or folder, or the URL of a server with the model: grpc://HOST:PORT/MODEL[/VERSION]."""
    inputs: Sequence[str] = ()
    """Of a file that does not say them: NAME:TYPE:SHAPE."""
    outputs: Sequence[str] = ()
    has_batch: bool | None = None
    allow_pickle: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    """Header fields of requests to a server."""

    @property
    def url(self) -> str:
        """Return the URL of a model on a server, "" for a file; without a scheme it is HTTP."""
        if urlsplit(self.place).scheme in _SCHEMES:
            return self.place
        is_address = _ADDRESS.fullmatch(self.place) and not Path(self.place).exists()
        return f"http://{self.place}" if is_address else ""


def compare(
    source: ComparedModel, candidate: ComparedModel, data: Path, precision: Precision, settings: Settings
) -> Verdict:
    """Return the gate's verdict on the candidate.

    Raises ValueError for a place or data that cannot be read, RunnerError if one of the models does not load or the
    source does not answer, RemoteModelLostError if a server does not answer any more.
    """
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="naiad-compare-")))
        opened = stack.enter_context(_opened(source, home / "source", data, None))
        samples = _samples(opened, data)
        chosen = with_traits_of(opened.model, replace(settings, has_batch=opened.model.has_batch))
        _check_outputs(chosen, opened.model.outputs)
        other = stack.enter_context(_opened(candidate, home / "candidate", data, opened.model))
        if other.model.has_batch != opened.model.has_batch:
            with_batch, without = (source, candidate) if opened.model.has_batch else (candidate, source)
            raise ValueError(
                f"the first dimension of {with_batch.place} is a batch, {without.place} has none; serve both alike"
            )
        named = with_names_of(
            opened.model.inputs, opened.model.outputs, other.runner, other.model.inputs, other.model.outputs
        )
        judged = Candidate("the candidate", other.model.format, precision, "")
        verdict = judge(opened.runner, named, samples, judged, chosen)
        notes = [*verdict.notes, *_other_names(opened.model, other.model)]
        if _is_same(source, candidate):
            notes.append("both are the same model: this shows only that its answers repeat")
        return replace(verdict, notes=notes)


def _is_same(one: ComparedModel, other: ComparedModel) -> bool:
    if one.url or other.url:
        return one.url == other.url
    return Path(one.place).samefile(other.place)


def _other_names(source: Source, candidate: Source) -> Iterator[str]:
    for what, own, others in (
        ("input", source.inputs, candidate.inputs),
        ("output", source.outputs, candidate.outputs),
    ):
        for name, other in match_names(own, others, f"{what}s").items():
            if name != other:
                yield f"{what} '{name}' is '{other}' of the candidate"


@dataclass(frozen=True, slots=True)
class _Opened:
    runner: Runner
    model: Source
    optional_inputs: frozenset[str] = frozenset()


@contextlib.contextmanager
def _opened(side: ComparedModel, home: Path, data: Path, source: Source | None) -> Iterator[_Opened]:
    """Open one side; a candidate has the batches that naiad may serve it with, and the tensors of `source`."""
    made = _remote(side, data) if side.url else _local(side, home, data, source)
    try:
        yield made
    finally:
        made.runner.close()


def _remote(side: ComparedModel, data: Path) -> _Opened:
    parts = urlsplit(side.url)
    names = [each for each in parts.path.split("/") if each]
    if not 1 <= len(names) <= 2:
        raise ValueError(
            f"{side.place} names no model; write {parts.scheme}://{parts.netloc}/MODEL or /MODEL/VERSION"
        )
    runner = RemoteRunner(f"{parts.scheme}://{parts.netloc}", *names, headers=side.headers)
    first = next(iter(from_path(data, ())), {})
    ranks = {len(array.shape) for array in first.values()}
    has_batch = side.has_batch
    if has_batch is None:  # The shapes of a model with a batch dimension have it in front.
        has_batch = any(len(spec.shape) - 1 in ranks and len(spec.shape) not in ranks for spec in runner.inputs)
    # A server's format is unknown: it computes as its answers' datatypes say.
    return _Opened(
        runner,
        Source(names[0], Format.PYTHON, Path(), tuple(runner.inputs), tuple(runner.outputs), has_batch),
        runner.optional_inputs,
    )


def _local(side: ComparedModel, home: Path, data: Path, source: Source | None) -> _Opened:
    model = open_source(
        Path(side.place),
        samples=data,
        inputs=side.inputs,
        outputs=side.outputs,
        has_batch=side.has_batch if source is None else source.has_batch,
        allow_pickle=side.allow_pickle,
    )
    if source is None:
        return _Opened(reference_runner(model, home), model)
    candidate = Candidate("candidate", model.format, Precision.FP32, BACKENDS[model.format])
    write_files(model, home / "files")
    conversion = Conversion(candidate, Status.CONVERTED, home / "files")
    runner = open_conversion(conversion, model, {}, home / "repositories", CandidateLimits())
    return _Opened(runner, replace(model, inputs=tuple(runner.inputs), outputs=tuple(runner.outputs)))


def _samples(opened: _Opened, data: Path) -> Samples:
    inputs = _given_inputs(opened, data)
    samples = from_path(data, inputs, opened.model.has_batch)
    check_sample(next(iter(samples)), inputs, opened.model.has_batch, str(data))
    return samples


def _given_inputs(opened: _Opened, data: Path) -> Sequence[TensorSpec]:
    """Return the inputs that the samples have: those that are optional need not be there."""
    given = next(iter(from_path(data, ())), {}) if opened.optional_inputs else {}
    return [each for each in opened.model.inputs if each.name not in opened.optional_inputs or each.name in given]


def _check_outputs(settings: Settings, outputs: Sequence[TensorSpec]) -> None:
    names = [spec.name for spec in outputs]
    for name in settings.tolerances:
        if name not in names:
            raise ValueError(f"--tolerance names the output '{name}'; the model has {', '.join(names)}")
