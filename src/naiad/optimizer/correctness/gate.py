"""The verdict on a candidate."""

from collections.abc import Mapping

from naiad.core.tensor import Array
from naiad.optimizer.candidate import Candidate
from naiad.optimizer.correctness.behaviour import BehaviourChecks
from naiad.optimizer.correctness.comparison import Comparison
from naiad.optimizer.correctness.metrics import Score, drop
from naiad.optimizer.correctness.runner import Arrays, Runner, RunnerError
from naiad.optimizer.correctness.settings import Budget, Settings
from naiad.optimizer.source import Samples
from naiad.optimizer.verdict import Difference, Verdict


def judge(
    source: Runner, candidate_runner: Runner, samples: Samples, candidate: Candidate, settings: Settings
) -> Verdict:
    """Compare a candidate with the source over all samples, then check how it behaves.

    Raises RunnerError if the source fails, ValueError if there are no samples or the source answers nothing. A
    candidate that fails is rejected.
    """
    return _Judgement(source, candidate_runner, candidate, settings).judge(samples)


class _Judgement:
    def __init__(self, source: Runner, runner: Runner, candidate: Candidate, settings: Settings) -> None:
        self._source = source
        self._runner = runner
        self._candidate = candidate
        self._settings = settings
        self._comparison = Comparison(settings, candidate.precision)
        self._scores = _Scores(settings.budget) if settings.budget else None
        self._requests: list[Arrays] = []
        self._answers: list[Arrays] = []
        self._failures: list[Difference] = []
        self._sample = 0

    def judge(self, samples: Samples) -> Verdict:
        count = 0
        for count, sample in enumerate(samples, 1):
            self._sample = count - 1
            if not self._compare(sample):
                break
        if not self._comparison.outputs:
            raise ValueError("there is nothing to compare: no samples, or a source without outputs; pass samples")
        failures = [*self._comparison.failures(), *self._failures]
        if not self._failures:
            failures += self._behaviour()
        if self._scores and not self._failures:
            failures += self._scores.failures()
        outputs = self._comparison.outputs
        return Verdict(
            is_accepted=not failures,
            failures=failures,
            worst_absolute={name: output.worst_absolute for name, output in outputs.items()},
            worst_relative={name: output.worst_relative for name, output in outputs.items()},
            top1_agreement={name: each.top1_agreement for name, each in outputs.items() if each.kind.is_classifier},
            metric=self._scores.candidate.value if self._scores else None,
            source_metric=self._scores.source.value if self._scores else None,
            samples=count,
        )

    def _compare(self, sample: Mapping[str, Array]) -> bool:
        """Compare the answers to a sample; return whether the candidate has answered."""
        request = {name: array[None] if self._settings.has_batch else array for name, array in sample.items()}
        expected = self._source.infer(request)
        found: Arrays = {}
        try:
            found = self._runner.infer(request)
        except RunnerError as error:
            self._failures.append(self._crash(str(error), expected))
            self._comparison.add(self._sample, expected, expected)  # Names the outputs of a source that answers.
            return False
        self._comparison.add(self._sample, expected, found)
        if self._scores:
            self._scores.add(self._sample, expected, found, has_batch=self._settings.has_batch)
        if len(self._requests) < self._settings.behaviour_samples:
            self._requests.append(request)
            self._answers.append(found)
        return True

    def _behaviour(self) -> list[Difference]:
        kinds = {name: output.kind for name, output in self._comparison.outputs.items()}
        precision = self._candidate.precision
        checks = BehaviourChecks(self._runner, self._requests, self._answers, self._settings, precision, kinds)
        try:
            return checks.failures()
        except RunnerError as error:
            return [self._crash(f"{error} (in batches, concurrent or repeated requests)", kinds)]

    def _crash(self, reason: str, outputs: Mapping[str, object]) -> Difference:
        name = next(iter(outputs), "")
        message = f"{self._candidate.name} does not answer sample {self._sample}: {reason}"
        return Difference(name, "run", self._sample, (), "an answer", "none", 0.0, message)


class _Scores:
    """The metric of the user, of both models."""

    def __init__(self, budget: Budget) -> None:
        self.source = Score(budget.metric)
        self.candidate = Score(budget.metric)
        self.output = budget.labels.output
        self._budget = budget

    def add(self, sample: int, expected: Arrays, found: Arrays, *, has_batch: bool) -> None:
        wanted, given = expected[self.output], found.get(self.output)
        if given is None or given.shape != wanted.shape:
            return  # The comparison rejects it.
        label = self._budget.labels.values[sample]
        for score, answer in ((self.source, wanted), (self.candidate, given)):
            score.add(answer[0] if has_batch else answer, label)

    def failures(self) -> list[Difference]:
        source, candidate = self.source.value, self.candidate.value
        lost = drop(self._budget.metric, source, candidate)
        limit = self._budget.max_drop
        if lost <= limit:
            return []
        metric = self._budget.metric if isinstance(self._budget.metric, str) else "the metric"
        message = (
            f"output '{self.output}': {metric} is {candidate:.6g}, the source's is {source:.6g}; "
            f"the drop is {lost:.4g}, allowed is {limit:.4g}"
        )
        return [Difference(self.output, "metric", -1, (), source, candidate, limit, message)]
