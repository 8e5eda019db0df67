"""The verdict on a candidate."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from naiad.core.datatype import is_floating
from naiad.core.tensor import Array
from naiad.tools.optimize.candidate import Candidate, Precision
from naiad.tools.optimize.correctness import probes
from naiad.tools.optimize.correctness.behaviour import BehaviourChecks, SingleRequest, in_ranges
from naiad.tools.optimize.correctness.boundaries.near_ties import near_tie_probes
from naiad.tools.optimize.correctness.boundaries.row_answers import RowAnswers
from naiad.tools.optimize.correctness.boundaries.thresholds import threshold_probes
from naiad.tools.optimize.correctness.coverage import KEPT, Coverage
from naiad.tools.optimize.correctness.judgement_settings import Budget, Settings
from naiad.tools.optimize.correctness.label_scores import Score, drop
from naiad.tools.optimize.correctness.labels import LabelRelation
from naiad.tools.optimize.correctness.probes import Probe
from naiad.tools.optimize.correctness.runners.model_runner import Arrays, CountedRunner, Runner, RunnerError
from naiad.tools.optimize.correctness.sample_comparison import (
    MISSING,
    CandidateComparison,
    describe,
    difference_of,
    worst_of,
)
from naiad.tools.optimize.correctness.scores.tolerances import Kind
from naiad.tools.optimize.correctness.source_reference import SourceAnswers
from naiad.tools.optimize.optimize_source import Samples
from naiad.tools.optimize.results.verdict import Difference, Verdict

_MOST_GAPS = 8


def judge(
    source: Runner, candidate_runner: Runner, samples: Samples, candidate: Candidate, settings: Settings
) -> Verdict:
    """Compare a candidate with the source over all samples and over probes, then check how it behaves.

    Raises RunnerError if the source fails, ValueError if there are no samples or the source answers nothing. A
    candidate that fails is rejected.
    """
    return _Judgement(source, candidate_runner, candidate, settings).judge(samples)


class _Judgement:
    def __init__(self, source: Runner, runner: Runner, candidate: Candidate, settings: Settings) -> None:
        self._source = source
        self._runner = CountedRunner(runner)
        self._candidate = candidate
        self._settings = settings
        self._answers_of_source = SourceAnswers(source, settings)
        self._coverage = Coverage(max(KEPT, settings.behaviour_samples))
        self._rows: set[int] = set()
        """Samples that are rows of batches."""
        self._scores = _Scores(settings.budget) if settings.budget else None
        self._singles: list[SingleRequest] = []
        self._factor = probes.FACTORS.get(candidate.precision, probes.FACTOR)
        self._failures: list[Difference] = []
        self._not_shown: list[str] = []
        self._sample = 0
        self._comparison: CandidateComparison

    def judge(self, samples: Samples) -> Verdict:
        shows_values = False
        for sample in samples:
            self._coverage.add(sample)
            answer = self._source.infer(self._answers_of_source.request(sample))
            shows_values = shows_values or any(map(_has_values, answer.values()))
            self._answers_of_source.observe(answer)
        self._answers_of_source.finish()
        references = self._answers_of_source.outputs
        if not references:
            raise ValueError("there is nothing to compare: no samples, or a source without outputs; pass samples")
        if not shows_values:
            raise ValueError(
                "there is nothing to compare: the source answers all samples with NaN, infinity or no elements; pass "
                "other samples"
            )
        self._rows = set(self._coverage.places[: self._settings.behaviour_samples])
        self._comparison = CandidateComparison(self._settings, self._candidate, references)
        for self._sample, sample in enumerate(samples):
            if not self._compare(self._sample, sample):
                break
        failures = [*self._comparison.failures(), *self._failures]
        if not self._failures:
            failures += self._beyond_samples(is_probed=self._settings.are_probed and not failures)
        if self._scores and not self._failures:
            failures += self._scores.failures()
        outputs = self._comparison.outputs
        return Verdict(
            is_accepted=not failures,
            failures=failures,
            worst_absolute={name: output.worst_absolute for name, output in outputs.items()},
            worst_relative={name: output.worst_relative for name, output in outputs.items()},
            top1_agreement={name: each.top1_agreement for name, each in outputs.items() if each.has_classes},
            metric=self._scores.candidate.value if self._scores else None,
            source_metric=self._scores.source.value if self._scores else None,
            samples=self._sample + 1,
            summary=self._summary() if not failures else "",
            notes=self._comparison.notes(),
            not_shown=[*self._not_shown[:_MOST_GAPS], *self._not_shown[_MOST_GAPS:][-1:]],
        )

    def _summary(self) -> str:
        if self._scores and isinstance(self._scores.budget.metric, str):
            values = f"{self._scores.candidate.value:.6g}, the source's is {self._scores.source.value:.6g}"
            return f"{self._scores.budget.metric} is {values}"
        return self._comparison.summary()

    def _compare(self, index: int, sample: Mapping[str, Array]) -> bool:
        """Compare the answers to a sample; return whether the candidate has answered."""
        request = self._answers_of_source.request(sample)
        expected = self._answers_of_source.answer(index, sample)
        try:
            found = self._runner.infer(request)
        except RunnerError as error:
            self._failures.append(self._crash(str(error), expected))
            return False
        self._comparison.add(index, expected, found)
        if self._scores:
            self._scores.add(index, expected, found, has_batch=self._settings.has_batch)
        if index in self._rows:
            self._singles.append(SingleRequest(request, found, str(index)))
        return True

    def _beyond_samples(self, *, is_probed: bool) -> list[Difference]:
        """Try probes, batches, concurrent and repeated requests; probes of other lengths last, which may crash it."""
        found: list[Difference] = []
        if is_probed:
            found += self._probe([*probes.perturbed(self._coverage), *self._special()])
            found += self._probe(self._boundaries())
        found += self._behaviour()
        if is_probed and not any(each.check == "run" for each in found):
            found += self._probe(
                [
                    *probes.lengths(self._coverage, self._settings.variable_axes),
                    *probes.unusual(self._coverage, self._candidate.precision),
                ]
            )
        self._not_shown += [*self._coverage.gaps(), *self._comparison.gaps()]
        requests = self._runner.requests
        self._not_shown.append(f"a wrong answer now and then, less often than in one of {requests} requests")
        return found

    def _special(self) -> Iterable[Probe]:
        outputs = self._comparison.outputs.values()
        has_exact = any(
            each.kind in (Kind.INTEGERS, Kind.STRINGS) and each.reference.labels is None for each in outputs
        )
        return probes.special(self._coverage, self._candidate.precision, has_exact=has_exact)

    def _boundaries(self) -> list[Probe]:
        """Return rows at which the source's answers jump; limits of other precisions are wider than such jumps."""
        if self._candidate.precision is not Precision.FP32:
            return []
        rows, found = RowAnswers(self._source, self._settings), list[Probe]()
        try:
            # Rounding to a short datatype makes steps of its own.
            if not any(output.reference.step for output in self._comparison.outputs.values()):
                found += threshold_probes(rows, self._coverage, are_compared=self._settings.compares_inputs)
        except RunnerError as error:
            self._miss(f"values at thresholds: {error}")
        for name, output in self._comparison.outputs.items():
            if output.reference.labels is not None:
                found += self._near_ties(rows, name, output.reference.labels)
        return found

    def _near_ties(self, rows: RowAnswers, name: str, relation: LabelRelation) -> Sequence[Probe]:
        comparison, why = self._comparison.widened(self._factor), "no mixture of the samples shows one"
        try:
            limit = lambda answer: comparison.scores_of(name, answer)[1]  # noqa: E731
            if made := list(near_tie_probes(rows, self._coverage.kept, name, relation, limit)):
                return made
        except RunnerError as error:
            why = str(error)
        self._miss(f"classes of '{name}' that nearly tie: {why}")
        return []

    def _probe(self, tried: Iterable[Probe]) -> list[Difference]:
        comparison = self._comparison.widened(self._factor)
        found: list[tuple[float, Difference]] = []
        for probe in tried:
            request = self._answers_of_source.request(probe.sample)
            expected = self._truth(request, probe)
            if expected is None:
                continue
            try:
                answer = self._runner.infer(request)
            except RunnerError as error:
                if probe.is_optional:
                    self._miss(f"{probe.what}: {self._candidate.name} does not take them")
                    continue
                return [self._crash(f"{error} (a probe: {probe.what})", expected)]
            if probe.row_name:
                self._singles.append(SingleRequest(request, answer, probe.row_name, probe.is_beyond))
            differences = list(self._differences(comparison, probe, expected, answer))
            if differences and probe.is_only_named:
                self._miss(f"{probe.what}: {self._candidate.name} answers them otherwise than the source")
            else:
                found += differences
            if probe.is_only_named and self._is_spoilt_by(request):
                self._miss(
                    f"{probe.what}: they change the answers of {self._candidate.name} to other rows of a batch"
                )
        return worst_of(found)

    def _is_spoilt_by(self, request: Arrays) -> bool:
        try:
            return self._behaviour_checks().is_spoilt_by(request)
        except RunnerError:
            return True

    def _truth(self, request: Arrays, probe: Probe) -> Arrays | None:
        """Return the source's answer to a probe; None if it has none that a candidate could be judged by."""
        try:
            expected = self._source.infer(request)
        except RunnerError:
            self._miss_of(probe, "the source does not take them")
            return None
        numbers = [array for array in expected.values() if is_floating(array.dtype)]
        if not all(np.isfinite(array).all() for array in numbers):
            self._miss_of(probe, "the source answers with numbers that are not finite")
            return None
        return expected

    def _differences(
        self, comparison: CandidateComparison, probe: Probe, expected: Arrays, answer: Arrays
    ) -> Iterable[tuple[float, Difference]]:
        budget = self._settings.budget
        for name, array in expected.items():
            is_free = budget is not None and budget.labels.output == name
            if name not in comparison.outputs or is_free:
                continue
            if name not in answer:
                text = f"output '{name}' is missing from the candidate's answer to a probe with {probe.what}"
                yield MISSING.excess, difference_of(name, "probe", -1, MISSING, text)
                continue
            if probe.only_exact and is_floating(array.dtype):
                continue
            result = comparison.compare(name, expected, answer[name])
            if not result.is_within:
                assert result.worst is not None
                text = describe(name, probe.what, result.worst, "the source", "the candidate", "a probe with")
                yield result.worst.excess, difference_of(name, "probe", -1, result.worst, text)

    def _miss_of(self, probe: Probe, why: str) -> None:
        if not probe.is_only_named:  # A source that refuses them says that they are wrong.
            self._miss(f"{probe.what}: {why}")

    def _miss(self, what: str) -> None:
        if what not in self._not_shown:
            self._not_shown.append(what)

    def _behaviour_checks(self) -> BehaviourChecks:
        return BehaviourChecks(self._runner, self._singles, self._settings, self._comparison, self._factor)

    def _behaviour(self) -> list[Difference]:
        checks = self._behaviour_checks()
        try:
            found = checks.failures()
            if checks.sizes_left:
                self._miss(f"batches of {in_ranges(checks.sizes_left)}: there was no time to try them")
            return found
        except RunnerError as error:
            outputs = self._comparison.outputs
            return [self._crash(f"{error} (in batches, concurrent or repeated requests)", outputs)]

    def _crash(self, reason: str, outputs: Mapping[str, object]) -> Difference:
        name = next(iter(outputs), "")
        message = f"{self._candidate.name} does not answer sample {self._sample}: {reason}"
        return Difference(name, "run", self._sample, (), "an answer", "none", 0.0, message)


def _has_values(array: Array) -> bool:
    """Return whether an answer has an element that a wrong one would differ from: not NaN, not infinity."""
    return bool(np.isfinite(array).any()) if is_floating(array.dtype) else array.size > 0


class _Scores:
    """The metric of the user, of both models."""

    def __init__(self, budget: Budget) -> None:
        self.source = Score(budget.metric)
        self.candidate = Score(budget.metric)
        self.output = budget.labels.output
        self.budget = budget

    def add(self, sample: int, expected: Arrays, found: Arrays, *, has_batch: bool) -> None:
        wanted, given = expected[self.output], found.get(self.output)
        if given is None or given.shape != wanted.shape:
            return  # The comparison rejects it.
        label = self.budget.labels.values[sample]
        for score, answer in ((self.source, wanted), (self.candidate, given)):
            score.add(answer[0] if has_batch else answer, label)

    def failures(self) -> Sequence[Difference]:
        source, candidate = self.source.value, self.candidate.value
        lost = drop(self.budget.metric, source, candidate)
        limit = self.budget.max_drop
        if lost <= limit:
            return []
        metric = self.budget.metric if isinstance(self.budget.metric, str) else "the metric"
        message = (
            f"output '{self.output}': {metric} is {candidate:.6g}, the source's is {source:.6g}; "
            f"the drop is {lost:.4g}, allowed is {limit:.4g}"
        )
        return [Difference(self.output, "metric", -1, (), source, candidate, limit, message)]
