"""Whether a candidate's answer depends on anything but its request: neighbours in a batch, other calls, order."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from naiad.core.tensor import Array
from naiad.tools.optimize.candidate import Precision
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.model_runner import Arrays, Runner
from naiad.tools.optimize.correctness.sample_comparison import (
    MISSING,
    CandidateComparison,
    describe,
    difference_of,
    worst_of,
)
from naiad.tools.optimize.correctness.scores.elements import OutputDifference, compare_output
from naiad.tools.optimize.results.verdict import Difference

_COPIES = 2
"""Concurrent requests of each sample."""
GREATEST = 32
"""Rows that are tried of a model without a limit: the greatest batch that is measured and served."""
_TILE = 16
"""Kernels and buffers are made for multiples of this: of large batches they are tried first."""


@dataclass(frozen=True, slots=True)
class SingleRequest:
    """A request with one row, and the candidate's answer to it."""

    request: Arrays
    answer: Arrays
    name: str
    """The number of its sample, or what it is."""
    is_beyond: bool = False
    """Its values are beyond the samples: the tolerance is that of probes."""


class BehaviourChecks:
    """Compares answers of a candidate with its own answers to single requests."""

    def __init__(
        self,
        runner: Runner,
        singles: Sequence[SingleRequest],
        settings: Settings,
        comparison: CandidateComparison,
        factor_beyond: float = 1.0,
    ) -> None:
        """Take single requests; tolerances of those beyond the samples are wider by `factor_beyond`.

        The first `settings.behaviour_samples` are repeated and sent at once; all of them are rows of batches.
        """
        self._runner = runner
        self._singles = singles
        self._settings = settings
        self._comparison = comparison
        self._beside_others = comparison.beside_others()
        self._beyond = comparison.beside_others(factor_beyond)
        self._alone = range(min(len(singles), settings.behaviour_samples))
        self.sizes_left: list[int] = []
        """Rows of batches that were not tried, for lack of time."""

    def failures(self) -> list[Difference]:
        """Return the worst difference of each output and check. Raises RunnerError."""
        others = [*self._alone[1:], *self._alone[:1]]
        found = [*self._repeated([*reversed(self._alone), *others], "when it is repeated"), *self._concurrent()]
        found += self._repeated(self._alone, "after concurrent requests")
        if self._settings.has_batch:
            found += self._batched()
            found += self._repeated(others, "after batches")
        return worst_of(found)

    def _repeated(self, samples: Iterable[int], when: str) -> Iterable[tuple[float, Difference]]:
        """Repeat requests, each after another one: an answer to that one would differ."""
        # Equal calls have equal rounding: the tolerance is that of FP32 at every precision.
        for sample in samples:
            answer = self._runner.infer(self._singles[sample].request)
            yield from self._compare("repeated", sample, answer, when, is_same=True)

    def _concurrent(self) -> Iterable[tuple[float, Difference]]:
        alone = [self._singles[sample].request for sample in self._alone]
        answers = self._runner.infer_concurrently(alone * _COPIES)
        for position, answer in enumerate(answers):
            yield from self._compare("concurrent", position % len(alone), answer, "beside concurrent requests")

    def _batched(self) -> Iterable[tuple[float, Difference]]:
        most = self._runner.max_batch
        groups = self._groups() if most != 1 else []
        for group in groups:
            for size in batch_sizes(self._settings.behaviour_batches, most):
                yield from self._in_batch(rows_of(group, size))
            # In the opposite order, and each end of the group among copies of the other one.
            for order in (group[::-1], [group[-1], group[0], group[-1]], [group[0], group[-1], group[0]]):
                yield from self._in_batch(order[: most or len(order)])
        if groups:
            yield from self._in_other_batches(max(groups, key=len), most)

    def _in_other_batches(self, group: Sequence[int], most: int) -> Iterable[tuple[float, Difference]]:
        """Try the sizes between the usual ones: a buffer or a kernel may be wrong for one of them only."""
        usual = batch_sizes(self._settings.behaviour_batches, most)
        others = [size for size in range(1, usual[-1]) if size not in usual]
        self.sizes_left = sorted(others, key=lambda size: (size > GREATEST, size > GREATEST and size % _TILE > 0))
        end_s = time.monotonic() + self._settings.other_batches_s
        while self.sizes_left and time.monotonic() < end_s:
            yield from self._in_batch(rows_of(group, self.sizes_left[0]))
            del self.sizes_left[0]

    def _in_batch(self, order: Sequence[int]) -> Iterable[tuple[float, Difference]]:
        answer = self._runner.infer(_joined([self._singles[sample].request for sample in order]))
        shown = ", ".join(self._singles[each].name for each in order[:8]) + (", ..." if len(order) > 8 else "")
        how = f"in row {{row}} of a batch of {len(order)} with samples [{shown}]"
        for row, sample in enumerate(order):
            yield from self._compare("batched", sample, _row_of(answer, row, len(order)), how.format(row=row))

    def is_spoilt_by(self, request: Arrays) -> bool:
        """Return whether a row changes the answers to the rows around it. Raises RunnerError."""
        first = self._singles[0]
        if not self._settings.has_batch or 0 < self._runner.max_batch < 3 or _form(first.request) != _form(request):
            return False
        answer = self._runner.infer(_joined([first.request, request, first.request]))
        results = [self._compare("batched", 0, _row_of(answer, row, 3), "") for row in (0, 2)]
        return any(True for found in results for _ in found)

    def _groups(self) -> list[list[int]]:
        """Return the samples that fit in one batch: those with the same shapes and datatypes."""
        groups: dict[tuple[tuple[str, tuple[int, ...], str], ...], list[int]] = {}
        for sample, single in enumerate(self._singles):
            groups.setdefault(_form(single.request), []).append(sample)
        return list(groups.values())

    def _compare(
        self, check: str, sample: int, answer: Arrays, how: str, *, is_same: bool = False
    ) -> Iterable[tuple[float, Difference]]:
        single = self._singles[sample]
        for name in single.answer:
            if name not in self._comparison.outputs:
                continue  # The source has no such output.
            if name not in answer:
                text = f"output '{name}' of sample {single.name} is missing from the candidate's answer {how}"
                yield MISSING.excess, difference_of(name, check, _number(single.name), MISSING, text)
                continue
            result = self._result(name, single, answer[name], is_same=is_same)
            if not result.is_within:
                assert result.worst is not None
                which = single.name
                text = describe(name, which, result.worst, "the single request", "the candidate") + f" {how}"
                yield result.worst.excess, difference_of(name, check, _number(which), result.worst, text)

    def _result(self, name: str, single: SingleRequest, found: Array, *, is_same: bool) -> OutputDifference:
        expected = single.answer
        if not is_same:
            comparison = self._beyond if single.is_beyond else self._beside_others
            return comparison.compare(name, expected, found)
        output = self._comparison.outputs[name]
        tolerance = self._settings.tolerance_of(name, output.kind, Precision.FP32, step=output.reference.step)
        return compare_output(expected[name], found, output.kind, tolerance, output.reference.scales)


def _number(name: str) -> int:
    return int(name) if name.isdigit() else -1


def in_ranges(numbers: Sequence[int]) -> str:
    """Return `6, 7, 9 to 15` for numbers in any order."""
    ends: list[list[int]] = []
    for number in sorted(numbers):
        if ends and number == ends[-1][1] + 1:
            ends[-1][1] = number
        else:
            ends.append([number, number])
    parts = [
        str(low) if low == high else f"{low}, {high}" if high == low + 1 else f"{low} to {high}" for low, high in ends
    ]
    return ", ".join(parts)


def _joined(requests: Sequence[Arrays]) -> Arrays:
    return {name: np.concatenate([each[name] for each in requests]) for name in requests[0]}


def _row_of(answer: Arrays, row: int, rows: int) -> Arrays:
    return {
        name: array[row : row + 1] if array.ndim and len(array) == rows else array for name, array in answer.items()
    }


def _form(request: Arrays) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """Return what requests have in common that fit in one batch."""
    return tuple((name, array.shape, str(array.dtype)) for name, array in request.items())


def batch_sizes(wanted: Sequence[int], most: int) -> list[int]:
    """Return the batches to try, with the greatest one; `most` of 0 is no limit."""
    limit = most or GREATEST
    return sorted({each for each in wanted if 1 <= each <= limit} | {limit})


def rows_of(group: Sequence[int], size: int) -> list[int]:
    """Return `size` of the group's samples; where rows occur again, they have other places and neighbours."""
    count = len(group)
    order: list[int] = []
    for turn in range(-(-size // count)):
        rotated = [group[(place + size + turn) % count] for place in range(count)]
        order += rotated if turn % 2 == 0 else rotated[::-1]
    return order[:size]
