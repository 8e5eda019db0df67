"""The comparison of a candidate with the source, a sample at a time; memory does not grow with the samples."""

import math
from collections.abc import Sequence

import numpy as np

from naiad.core.tensor import Array
from naiad.optimizer.candidate import Precision
from naiad.optimizer.correctness.elements import Worst, agrees_on_first, compare_output
from naiad.optimizer.correctness.runner import Arrays
from naiad.optimizer.correctness.settings import Settings
from naiad.optimizer.correctness.tolerances import Kind
from naiad.optimizer.verdict import Difference, Tolerance

_EXACT_CHECKS = ("shape", "datatype", "inf/nan")


class OutputComparison:
    """The differences of one output over all samples."""

    def __init__(self, name: str, kind: Kind, tolerance: Tolerance) -> None:
        self.name = name
        self.kind = kind
        self.tolerance = tolerance
        self.worst_absolute = 0.0
        self.worst_relative = 0.0
        self._agreeing = 0
        self._rows = 0
        self._first_other = 0
        self._squares = 0.0
        """Sum of the squares of the source's answers, of outputs with one element."""
        self._single = 0
        """Answers with one element."""
        self._failures: dict[str, tuple[float, Difference]] = {}
        """The worst failure of each check, with its excess."""

    @property
    def top1_agreement(self) -> float:
        """Share of rows with the same first class; 1 before the first row."""
        return self._agreeing / self._rows if self._rows else 1.0

    def add(self, sample: int, expected: Array, found: Array | None) -> None:
        """Compare the output of a sample; None if the candidate has no such output."""
        if found is None:
            worst = Worst("missing", (), "an output", "nothing", 0.0, float("inf"))
            self._fail(
                sample, worst, f"output '{self.name}' of sample {sample} is missing from the candidate's answer"
            )
            return
        result = compare_output(expected, found, self.kind, self.tolerance)
        if expected.size == 1 and expected.dtype.kind == "f" and np.isfinite(expected).all():
            self._squares += float(np.square(expected.astype(np.float64)).sum())
            self._single += 1
        self.worst_absolute = max(self.worst_absolute, result.absolute)
        self.worst_relative = max(self.worst_relative, result.relative)
        if not result.is_within:
            assert result.worst is not None
            self._fail(sample, result.worst, describe(self.name, sample, result.worst, "the source", "the candidate"))
        if self.kind.is_classifier and expected.shape == found.shape and expected.size:
            agreeing, rows = agrees_on_first(expected, found)
            if agreeing < rows and self._agreeing == self._rows:
                self._first_other = sample
            self._agreeing += agreeing
            self._rows += rows

    def failures(self, *, are_values_free: bool) -> list[Difference]:
        """Return the worst difference of each check; without differences of values if a metric of the user counts."""
        found = [difference for _, difference in self._failures.values()]
        if self._is_small_for_all_samples():
            found = [each for each in found if each.check != "values"]
        if are_values_free:
            return [each for each in found if each.check in (*_EXACT_CHECKS, "missing")]
        limit = self.tolerance.top1_agreement
        if self.kind.is_classifier and self.top1_agreement < limit:
            others = self._rows - self._agreeing
            message = (
                f"output '{self.name}' has another first class in {others} of {self._rows} rows, "
                f"first in sample {self._first_other}: the agreement is {self.top1_agreement:.4g}, "
                f"at least {limit:.4g} is required"
            )
            found.append(
                Difference(self.name, "top1", self._first_other, (), 1.0, self.top1_agreement, limit, message)
            )
        return found

    def _is_small_for_all_samples(self) -> bool:
        """Return whether the differences of single numbers are within the tolerance for the scale of all samples.

        A sample with one element has no scale but its own value: a probability of 1e-4 would need 1e-9.
        """
        if not self._single:
            return False
        scale = math.sqrt(self._squares / self._single)
        return self.worst_absolute <= self.tolerance.absolute + self.tolerance.relative * scale

    def _fail(self, sample: int, worst: Worst, message: str) -> None:
        before = self._failures.get(worst.check)
        if before is None or worst.excess > before[0]:
            self._failures[worst.check] = (
                worst.excess,
                difference_of(self.name, worst.check, sample, worst, message),
            )


class Comparison:
    """The differences of all outputs of the source."""

    def __init__(self, settings: Settings, precision: Precision) -> None:
        self._settings = settings
        self._precision = precision
        self.outputs: dict[str, OutputComparison] = {}

    def add(self, sample: int, expected: Arrays, found: Arrays) -> None:
        """Compare the outputs of a sample. Kinds of outputs come from the first sample."""
        for name, array in expected.items():
            self._output(name, array).add(sample, array, found.get(name))

    def failures(self) -> list[Difference]:
        """Return the worst difference of each output and check."""
        budget = self._settings.budget
        return [
            difference
            for name, output in self.outputs.items()
            for difference in output.failures(are_values_free=budget is not None and budget.labels.output == name)
        ]

    def _output(self, name: str, array: Array) -> OutputComparison:
        output = self.outputs.get(name)
        if output is None:
            kind = self._settings.kind_of(name, array)
            tolerance = self._settings.tolerance_of(name, kind, self._precision)
            output = self.outputs[name] = OutputComparison(name, kind, tolerance)
        return output


def describe(output: str, sample: int, worst: Worst, expecting: str, finding: str) -> str:
    """Return a difference in a sentence; `expecting` and `finding` name what gave the two values."""
    where = f"output '{output}' of sample {sample}"
    values = f"{finding} has {_text(worst.found)}, {expecting} {_text(worst.expected)}"
    if worst.check in ("shape", "datatype"):
        return f"{where} has another {worst.check}: {values}"
    element = f"element {list(worst.index)}"
    if worst.check == "cosine":
        distance = worst.excess * worst.limit
        return (
            f"{where} points elsewhere: the cosine distance is {distance:.3g}, allowed is {worst.limit:.3g}; "
            f"at {element} {values}"
        )
    allowed = f"; allowed is a difference of {worst.limit:.3g}" if worst.limit else ""
    return f"{where}, {element}: {values}{allowed}"


def difference_of(output: str, check: str, sample: int, worst: Worst, message: str) -> Difference:
    """Return the difference that a failed check reports."""
    return Difference(output, check, sample, worst.index, worst.expected, worst.found, worst.limit, message)


def worst_of(failures: Sequence[tuple[float, Difference]]) -> list[Difference]:
    """Return the failure with the greatest excess of each output and check."""
    found: dict[tuple[str, str], tuple[float, Difference]] = {}
    for excess, difference in failures:
        before = found.get((difference.output, difference.check))
        if before is None or excess > before[0]:
            found[difference.output, difference.check] = (excess, difference)
    return [difference for _, difference in found.values()]


def _text(value: float | str) -> str:
    return f"{value:.9g}" if isinstance(value, float) else repr(value)
