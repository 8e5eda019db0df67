"""An optimization from the source to the winner.

Steps: convert every candidate, judge every conversion, search for sensitive layers where a low precision was
rejected, profile all that passed, tune the best one, serve the finalists, choose. Each step's result is in the
workspace when the step ends (converters keep theirs beside the files, all other steps in the journal), under a hash
of what it depends on; a run that was killed repeats only the step that it was in.
"""

import contextlib
import datetime
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from naiad.files.json_records import read_record, to_json
from naiad.tools.optimize import choice, preprocessing, profile, sensitivity
from naiad.tools.optimize.candidate import Candidate, Conversion, Precision, Status
from naiad.tools.optimize.choices import Options
from naiad.tools.optimize.converters import source_files
from naiad.tools.optimize.converters.conversion_plan import candidates, effort, installed_packages
from naiad.tools.optimize.converters.conversions import Converter
from naiad.tools.optimize.optimize_progress import Progress
from naiad.tools.optimize.optimize_result import OptimizationResult, Outcome
from naiad.tools.optimize.optimize_source import BACKENDS, Format, Samples, Source
from naiad.tools.optimize.profile.load_check import LoadCheck
from naiad.tools.optimize.profile.measuring import profile_samples
from naiad.tools.optimize.results.candidate_measurement import Profile, Runtime, ServedMeasurement
from naiad.tools.optimize.results.rounds import MOST_OTHER_CORES, other_cores
from naiad.tools.optimize.results.verdict import Verdict
from naiad.tools.optimize.samples.sample_reader import digest, shape_ranges
from naiad.tools.optimize.sources import reference_runner, source_digest
from naiad.tools.optimize.sources.source_formats import detect
from naiad.tools.optimize.steps.environment import describe
from naiad.tools.optimize.steps.judging import Judge
from naiad.tools.optimize.steps.step_journal import StepJournal, key_of

RESULT_FILE = "result.json"
_QUIET = Progress()


def optimize(
    source: Source,
    samples: Samples,
    workspace: Path,
    options: Options | None = None,
    progress: Progress = _QUIET,
    command: Sequence[str] = (),
) -> OptimizationResult:
    """Return every candidate with its verdict and figures, and the winner; also as result.json in the workspace.

    With `options.preprocessing`, all candidates have the steps before the source's graph, and the source of the
    result is the graph with its steps. Raises RunnerError if the source does not answer the samples, ValueError if
    there are no samples, or not a label for each.
    """
    started, begin_s = datetime.datetime.now(datetime.UTC), time.monotonic()
    chosen = options or Options()
    check_labels(chosen, samples)
    graph, tensors = source, samples
    if chosen.preprocessing:
        source, tensors = preprocessing.prepare(graph, samples, workspace, chosen)
    chosen = replace(chosen, correctness=replace(chosen.correctness, has_batch=source.has_batch))
    packages = installed_packages()
    run = _Run(source, samples, workspace, chosen, progress, packages, digest(samples), graph, tensors)
    run.convert()
    run.judge()
    run.profile()
    run.tune()
    run.serve()
    outcomes = list(run.outcomes.values())
    if chosen.accepted:
        winner, why = choice.accept(outcomes, chosen.accepted)
    else:
        winner, why = choice.choose(outcomes, chosen.objective)
    needed = {name for outcome in outcomes if outcome.can_win for name in outcome.candidate.needs}
    result = OptimizationResult(
        source=source,
        objective=chosen.objective,
        outcomes=outcomes,
        winner=winner,
        why=why,
        samples=len(samples),
        samples_digest=run.samples_digest,
        source_digest=source_digest(source),
        started=started.isoformat(timespec="seconds"),
        duration_s=time.monotonic() - begin_s,
        command=command,
        environment=describe(packages, needed | {"onnxruntime", "numpy"}),
    )
    (workspace / RESULT_FILE).write_text(to_json(result), encoding="utf-8")
    return result


def check_labels(options: Options, samples: Samples) -> None:
    """Raise ValueError unless there is a label for each sample, if there are labels."""
    budget = options.correctness.budget
    if budget and len(budget.labels.values) != len(samples):
        raise ValueError(f"{len(budget.labels.values)} labels for {len(samples)} samples; give one for each")


@dataclass
class _Run:
    """The outcomes so far, by candidate, in the order of the plan."""

    source: Source
    samples: Samples
    workspace: Path
    options: Options
    progress: Progress
    packages: Mapping[str, str]
    samples_digest: str
    graph: Source
    """What is converted: `source`, without steps of pre-processing."""
    tensors: Samples
    """What the graph takes."""

    def __post_init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._journal = StepJournal(self.workspace / "steps", is_fresh=self.options.is_fresh)
        self._ranges = shape_ranges(self.tensors, has_batch=self.graph.has_batch)
        self._made: dict[str, Conversion] = {}
        """Conversions of the graph."""
        self._converter = Converter.open(
            self.graph, self.tensors, self.workspace, self._ranges, self.options.converter_limits
        )

    def convert(self) -> None:
        """Convert all candidates that the options include, and those that they are made from."""
        planned = candidates(self.graph, self._ranges, self.packages)
        if self.options.preprocessing:
            planned = [each for each in planned if each.format is Format.ONNX]
        wanted = _with_origins(planned, [each for each in planned if self.options.includes(each)])
        wanted = [*_cheap_first(wanted), *self._own_candidates({each.name for each in planned})]
        for index, candidate in enumerate(wanted):
            if self._has_no_base(candidate):
                continue
            self.progress.step("convert", candidate.name, index, len(wanted))
            self._made[candidate.name] = self._convert(candidate)
            conversion = self._with_steps(self._made[candidate.name])
            self.outcomes[candidate.name] = Outcome(candidate, conversion.status, conversion.reason, conversion)
            state = conversion.status.value
            self.progress.done(
                "convert", candidate.name, f"{state}: {conversion.reason}" if conversion.reason else state
            )

    def _own_candidates(self, taken: Collection[str]) -> list[Candidate]:
        """Return the conversions that the user has made. Raises ValueError for the name of another candidate."""
        found = []
        for name, path in self.options.own.items():
            if name in taken:
                raise ValueError(f"--candidate {name}: naiad has a candidate of this name; give yours another one")
            made_of, precision = detect(path), self.options.own_precisions.get(name, Precision.FP32)
            settings = {"module": source_files.__name__}
            found.append(Candidate(name, made_of, precision, BACKENDS[made_of], settings))
        return found

    def _has_no_base(self, candidate: Candidate) -> bool:
        """Return whether what the candidate is made from has failed: that is one error, which is shown already."""
        base = self._made.get(candidate.after)
        if base is None or base.status is Status.CONVERTED or candidate.not_run:
            return False
        made = self._made[candidate.name] = self._converter.convert(candidate, base)
        self.outcomes[candidate.name] = Outcome(candidate, made.status, made.reason, made)
        return True

    def _convert(self, candidate: Candidate) -> Conversion:
        path = self.options.own.get(candidate.name)
        if path is None:
            return self._converter.convert(candidate, self._made.get(candidate.after))
        own = replace(self.graph, path=path, format=candidate.format)
        return replace(self._converter, source=own).convert(candidate)

    def _with_steps(self, conversion: Conversion) -> Conversion:
        return preprocessing.merge(self._converter, conversion, self.options.preprocessing)

    def judge(self) -> None:
        """Judge what was converted; where a low precision is rejected, keep its sensitive layers in a higher one."""
        converted = [each for each in self.outcomes.values() if each.status is Status.CONVERTED]
        with self._open_judge() as judge:
            for index, outcome in enumerate(converted):
                self._judge(judge, outcome, index, len(converted))
            if self.options.sensitivity_steps:
                self._search(judge)

    @contextlib.contextmanager
    def _open_judge(self) -> Iterator[Judge]:
        chosen = self.options
        runner = reference_runner(self.source, self.workspace, self.samples_digest, chosen.runner_limits)
        try:
            yield Judge(
                self.source,
                runner,
                self.samples,
                self.samples_digest,
                chosen.correctness,
                chosen.runner_limits,
                self._journal,
            )
        finally:
            runner.close()

    def _judge(self, judge: Judge, outcome: Outcome, index: int, count: int) -> None:
        name = outcome.candidate.name
        self.progress.step("judge", name, index, count)
        assert outcome.conversion is not None
        verdict, was_cached = judge.verdict(outcome.conversion)
        self.outcomes[name] = _judged(outcome, verdict)
        reason = self.outcomes[name].reason
        self.progress.done("judge", name, reason or accepted_text(verdict), was_cached=was_cached)

    def _search(self, judge: Judge) -> None:
        """Search one candidate of each precision: all calibrations of int8 have the same sensitive layers."""
        tried = {each.candidate.precision for each in self.outcomes.values() if each.can_win}
        for outcome in [each for each in self.outcomes.values() if each.status is Status.REJECTED]:
            candidate = outcome.candidate
            origin = self._made.get(candidate.after)
            if origin is None or candidate.precision in tried or not sensitivity.is_searchable(candidate, origin):
                continue
            tried.add(candidate.precision)
            self._search_one(judge, outcome, origin)

    def _search_one(self, judge: Judge, outcome: Outcome, origin: Conversion) -> None:
        found, verdict, curve = sensitivity.search(
            self._converter,
            outcome.candidate,
            origin,
            lambda each: judge.verdict(self._with_steps(each))[0],
            max_steps=self.options.sensitivity_steps,
            progress=self.progress,
        )
        name = outcome.candidate.name
        if found is None or verdict is None:
            self.outcomes[name] = replace(outcome, curve=curve)
            self.progress.done("search", name, f"no accepted mix in {len(curve)} conversions")
            return
        self.outcomes[found.candidate.name] = _judged(
            Outcome(found.candidate, found.status, "", self._with_steps(found), curve=curve), verdict
        )
        kept = min(len(point.kept) for point in curve if point.is_accepted)
        self.progress.done("search", found.candidate.name, f"{verdict.summary} with {kept} nodes in higher precision")

    def profile(self) -> None:
        """Measure all that passed, each under the runtimes of its backend."""
        wanted: list[tuple[Conversion, list[Runtime]]] = []
        for outcome in self._passed():
            assert outcome.conversion is not None
            runtimes = profile.runtimes(outcome.candidate, profile.cores())
            missing = [each for each in runtimes if not self._known_profile(outcome, each)]
            if missing:
                wanted.append((outcome.conversion, missing))
        if wanted:
            self._measure(wanted)

    def tune(self) -> None:
        """Tune the options of the backend for the best candidate."""
        best = choice.finalists(self._passed(), self.options.objective, 1)
        if not best or not self.options.tuning_s:
            return
        name, runtime, _ = best[0]
        outcome = self.outcomes[name]
        conversion = outcome.conversion
        if conversion is None:
            return
        self.progress.step("tune", name, 0, 1)
        found, was_cached = self._journal.step(
            "tuned",
            self._key(conversion, runtime, self.options.objective, self.options.tuning_s),
            lambda: self._tune(conversion, runtime),
            lambda values: [read_record(Profile, each) for each in values],
        )
        settings = ", ".join(f"{key} {value}" for each in found for key, value in each.runtime.parameters.items())
        message = f"faster with {settings}" if settings else "no options are faster"
        if found:
            with self._open_judge() as judge:
                verdict, _ = judge.verdict(conversion, found[0].runtime)
            if verdict.is_accepted:
                self.outcomes[name] = replace(outcome, profiles=[*outcome.profiles, *found])
            else:
                message = f"not used, other answers with {settings}: {verdict.failures[0].message}"
        self.progress.done("tune", name, message, was_cached=was_cached)

    def _tune(self, conversion: Conversion, runtime: Runtime) -> list[Profile]:
        """Return the profile with better options, or nothing."""
        found = profile.tune(
            conversion,
            runtime,
            self.samples,
            self.source,
            limit_s=self.options.tuning_s,
            limits=self.options.runner_limits,
            objective=self.options.objective,
        )
        return [] if found is None else [found]

    def serve(self) -> None:
        """Measure the finalists and the source as naiad serves them: one step, since they take turns."""
        finalists: list[tuple[Conversion, Runtime, int]] = []
        for name, runtime, batch in choice.finalists(
            self._passed(), self.options.objective, self.options.finalists, self.options.accepted
        ):
            conversion = self.outcomes[name].conversion
            if conversion is not None:
                finalists.append((conversion, runtime, batch))
        if not finalists:
            return
        key = key_of([self._key(*finalist, self.options.profile_s) for finalist in finalists])
        known = self._journal.read(
            "served", key, lambda values: [(name, read_record(ServedMeasurement, served)) for name, served in values]
        )
        was_cached, measured = known is not None, known or self._serve(finalists)
        if not was_cached and not any(other_cores(served.rounds) > MOST_OTHER_CORES for _, served in measured):
            # Figures of a busy machine do not count for the next run.
            self._journal.write("served", key, measured)
        for name, served in measured:
            self.outcomes[name] = replace(self.outcomes[name], served=served)
            if was_cached:
                self.progress.done("serve", name, "", was_cached=True)

    def _serve(self, finalists: Sequence[tuple[Conversion, Runtime, int]]) -> list[tuple[str, ServedMeasurement]]:
        return list(
            profile.serve(
                finalists,
                self.samples,
                self.source,
                seconds=self.options.profile_s,
                limits=self.options.runner_limits,
                progress=self.progress,
                check=self._load_check(),
            )
        )

    def _load_check(self) -> LoadCheck:
        """Return the source's answers to the samples of the load."""
        has_batch = self.source.has_batch
        runner = reference_runner(self.source, self.workspace, self.samples_digest, self.options.runner_limits)
        try:
            requests = [
                {name: array[None] if has_batch else array for name, array in sample.items()}
                for sample in profile_samples(self.samples)
            ]
            return LoadCheck([runner.infer(request) for request in requests], self.options.correctness)
        finally:
            runner.close()

    def _passed(self) -> list[Outcome]:
        return [each for each in self.outcomes.values() if each.can_win]

    def _known_profile(self, outcome: Outcome, runtime: Runtime) -> bool:
        assert outcome.conversion is not None
        key = self._key(outcome.conversion, runtime, self.options.profile_s)
        known = self._journal.read("profile", key, partial(read_record, Profile))
        if known is not None:
            self._add_profile(outcome.candidate.name, known)
        return known is not None

    def _measure(self, wanted: Sequence[tuple[Conversion, Sequence[Runtime]]]) -> None:
        conversions = {conversion.candidate.name: conversion for conversion, _ in wanted}
        measured = profile.measure(
            wanted,
            self.samples,
            self.source,
            seconds_per_profile=self.options.profile_s,
            limits=self.options.runner_limits,
            progress=self.progress,
        )
        for name, found in measured:
            self._add_profile(name, found)
            if not found.error:
                key = self._key(conversions[name], found.runtime, self.options.profile_s)
                self._journal.write("profile", key, found)

    def _add_profile(self, name: str, found: Profile) -> None:
        outcome = self.outcomes[name]
        self.outcomes[name] = replace(outcome, profiles=[*outcome.profiles, found])

    def _key(self, conversion: Conversion, *parts: object) -> str:
        return key_of(conversion.folder.parent.name, self.samples_digest, describe(self.packages), *parts)


def _cheap_first(planned: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates in the order of their effort, each after the one that it is made from."""
    order = sorted(planned, key=effort)
    placed: list[Candidate] = []
    while order:
        names = {each.name for each in order}
        candidate = next(each for each in order if each.after not in names)
        placed.append(candidate)
        order.remove(candidate)
    return placed


def _with_origins(planned: Sequence[Candidate], wanted: Sequence[Candidate]) -> list[Candidate]:
    """Return the wanted candidates and those that they are made from, in the order of the plan."""
    by_name = {each.name: each for each in planned}
    names: set[str] = set()
    for candidate in wanted:
        name = candidate.name
        while name and name not in names:
            names.add(name)
            name = by_name[name].after
    return [each for each in planned if each.name in names]


def accepted_text(verdict: Verdict) -> str:
    """Return what an accepted verdict says, in a line of progress."""
    text = f"{verdict.summary or 'accepted'}, {verdict.samples} samples"
    return f"{text}; not shown by these samples: {'; '.join(verdict.not_shown)}" if verdict.not_shown else text


def _judged(outcome: Outcome, verdict: Verdict) -> Outcome:
    if verdict.is_accepted:
        return replace(outcome, status=Status.PASSED, verdict=verdict)
    reason = verdict.failures[0].message
    return replace(outcome, status=Status.REJECTED, reason=reason, verdict=verdict)
