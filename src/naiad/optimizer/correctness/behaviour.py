"""Whether a candidate's answer depends on anything but its request: neighbours in a batch, other calls, order."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from naiad.optimizer.candidate import Precision
from naiad.optimizer.correctness.comparison import describe, difference_of, worst_of
from naiad.optimizer.correctness.elements import compare_output
from naiad.optimizer.correctness.runner import Arrays, Runner
from naiad.optimizer.correctness.settings import Settings
from naiad.optimizer.correctness.tolerances import Kind
from naiad.optimizer.verdict import Difference

_COPIES = 2
"""Concurrent requests of each sample."""
_NOTHING = np.empty((0, 0))
"""An output that is missing."""


class BehaviourChecks:
    """Compares answers of a candidate with its own answers to single requests."""

    def __init__(
        self,
        runner: Runner,
        requests: Sequence[Arrays],
        answers: Sequence[Arrays],
        settings: Settings,
        precision: Precision,
        kinds: Mapping[str, Kind],
    ) -> None:
        """Take requests with one row each, and the answers to them as the first calls in this order."""
        self._runner = runner
        self._requests = requests
        self._answers = answers
        self._settings = settings
        self._precision = precision
        self._kinds = kinds

    def failures(self) -> list[Difference]:
        """Return the worst difference of each output and check. Raises RunnerError."""
        found = [*self._repeated(), *self._concurrent()]
        if self._settings.has_batch:
            found += self._batched()
        return worst_of(found)

    def _repeated(self) -> Iterable[tuple[float, Difference]]:
        # Equal calls have equal rounding: the tolerance is that of FP32 at every precision.
        for sample in reversed(range(len(self._requests))):
            for _ in range(2):
                answer = self._runner.infer(self._requests[sample])
                yield from self._compare("repeated", sample, answer, Precision.FP32, "when it is repeated")

    def _concurrent(self) -> Iterable[tuple[float, Difference]]:
        answers = self._runner.infer_concurrently([*self._requests] * _COPIES)
        for position, answer in enumerate(answers):
            sample = position % len(self._requests)
            yield from self._compare("concurrent", sample, answer, self._precision, "beside concurrent requests")

    def _batched(self) -> Iterable[tuple[float, Difference]]:
        for group in self._groups():
            # In order, in the opposite order, and each end of the group among copies of the other one.
            orders = [group, group[::-1], [group[-1], group[0], group[-1]], [group[0], group[-1], group[0]]]
            for order in orders:
                yield from self._in_batch(order[: self._runner.max_batch or len(order)])

    def _in_batch(self, order: Sequence[int]) -> Iterable[tuple[float, Difference]]:
        names = self._requests[order[0]]
        rows = {name: np.concatenate([self._requests[sample][name] for sample in order]) for name in names}
        answer = self._runner.infer(rows)
        how = f"in row {{row}} of a batch with samples {list(order)}"
        for row, sample in enumerate(order):
            own = {
                name: array[row : row + 1] if array.ndim and len(array) == len(order) else array
                for name, array in answer.items()
            }
            yield from self._compare("batched", sample, own, self._precision, how.format(row=row))

    def _groups(self) -> Iterable[list[int]]:
        """Return the samples that fit in one batch: those with the same shapes and datatypes."""
        groups: dict[object, list[int]] = {}
        for sample, request in enumerate(self._requests):
            key = tuple((name, array.shape, str(array.dtype)) for name, array in request.items())
            groups.setdefault(key, []).append(sample)
        return groups.values() if self._runner.max_batch != 1 else ()

    def _compare(
        self, check: str, sample: int, answer: Arrays, precision: Precision, how: str
    ) -> Iterable[tuple[float, Difference]]:
        for name, expected in self._answers[sample].items():
            kind = self._kinds.get(name)
            if kind is None:
                continue  # The source has no such output.
            result = compare_output(
                expected, answer.get(name, _NOTHING), kind, self._settings.tolerance_of(name, kind, precision)
            )
            if not result.is_within:
                assert result.worst is not None
                text = describe(name, sample, result.worst, "the single request", "the candidate") + f" {how}"
                yield result.worst.excess, difference_of(name, check, sample, result.worst, text)
