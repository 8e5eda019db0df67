"""The comparison of a candidate with the source, a sample at a time; memory does not grow with the samples."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from naiad.core.datatype import is_floating
from naiad.core.tensor import Array
from naiad.tools.optimize.candidate import Candidate, Precision
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.model_runner import Arrays
from naiad.tools.optimize.correctness.scores.column_scores import FEWEST_ROWS, LIKELY, ColumnFinding, ColumnSums
from naiad.tools.optimize.correctness.scores.elements import (
    OutputDifference,
    Worst,
    agrees_on_first,
    compare_labels,
    compare_output,
    same_labels,
)
from naiad.tools.optimize.correctness.scores.tolerances import OF_BATCHES, Kind, default_tolerance, label_agreement
from naiad.tools.optimize.correctness.source_reference import OutputReference
from naiad.tools.optimize.results.verdict import Difference, Tolerance

_EXACT_CHECKS = ("shape", "datatype", "inf/nan")
MISSING = Worst("missing", (), "an output", "nothing", 0.0, np.inf)
"""The difference of an answer without an output."""


class OutputComparison:
    """The differences of one output over all samples."""

    def __init__(self, name: str, reference: OutputReference, tolerance: Tolerance, candidate: Candidate) -> None:
        self.name = name
        self.kind = reference.kind
        self.reference = reference
        self.tolerance = tolerance
        self.worst_absolute = 0.0
        self.worst_relative = 0.0
        self.worst_excess = 0.0
        self.is_narrowed = False
        """The candidate answers in FP32 where the source does in FP64."""
        self._precision = candidate.precision
        self._may_narrow = candidate.computes_in_float32
        self._columns = ColumnSums(reference.scales, reference.kind, reference.step)
        self._agreeing = 0
        self._rows = 0
        self._first_other = 0
        self._failures: dict[str, tuple[float, Difference]] = {}
        """The worst failure of each check, with its excess."""

    @property
    def top1_agreement(self) -> float:
        """Share of rows with the same first class; 1 before the first row."""
        return self._agreeing / self._rows if self._rows else 1.0

    @property
    def has_classes(self) -> bool:
        """Whether a share of rows may have another first class."""
        return self.kind.is_classifier or self.reference.labels is not None

    def add(
        self, sample: int, expected: Array, found: Array | None, scores: Array | None = None, score_limit: float = 0.0
    ) -> None:
        """Compare the output of a sample; None if the candidate has no such output.

        `scores` are the source's scores that the output is the first class of; another class may miss the best score
        by `score_limit`.
        """
        if found is None:
            text = f"output '{self.name}' of sample {sample} is missing from the candidate's answer"
            self._fail(sample, MISSING, text)
            return
        result = self.compare(expected, found, scores, score_limit)
        self.worst_absolute = max(self.worst_absolute, result.absolute)
        self.worst_relative = max(self.worst_relative, result.relative)
        if result.worst is not None:
            self.worst_excess = max(self.worst_excess, result.worst.excess)
        if not result.is_within:
            assert result.worst is not None
            self._fail(sample, result.worst, describe(self.name, sample, result.worst, "the source", "the candidate"))
        if expected.shape == found.shape and expected.size:
            self._add_rows(sample, expected, found)

    def add_surplus(self, sample: int) -> None:
        """Add an answer with the output where the source's answer is without it: other samples have it."""
        worst = Worst("missing", (), "nothing", "an output", 0.0, np.inf)
        self._fail(sample, worst, f"output '{self.name}' of sample {sample} is in the candidate's answer only")

    def compare(
        self, expected: Array, found: Array, scores: Array | None = None, score_limit: float = 0.0
    ) -> OutputDifference:
        """Compare one answer, without adding it."""
        labels = self.reference.labels
        if labels is not None and scores is not None and expected.shape == found.shape:
            # Integers of the candidate that are no class are other ones.
            lacks = labels.lacks(found, scores)
            return compare_labels(expected, found, lacks, score_limit)
        return compare_output(
            expected, found, self.kind, self.tolerance, self.reference.scales, may_narrow=self._may_narrow
        )

    def failures(self, *, are_values_free: bool) -> list[Difference]:
        """Return the worst difference of each check; without differences of values if a metric of the user counts."""
        found = [difference for _, difference in self._failures.values()]
        if are_values_free:
            return [each for each in found if each.check in (*_EXACT_CHECKS, "missing")]
        found += self._other_classes()
        if not self._failures:  # An element that differs is named with its sample.
            found += [self._of_column(each) for each in self._findings() if each.excess > 1]
        return found

    def worst(self) -> tuple[float, str]:
        """Return the greatest share of a limit that was used, and where."""
        if not self.worst_excess and not self.worst_absolute and self.top1_agreement == 1:
            return 0.0, f"output '{self.name}': no difference"
        if self.has_classes and self.top1_agreement < 1 and self._class_excess() > self.worst_excess:
            return self._class_excess(), f"{self.name}, the same class in {self.top1_agreement:.2%}"
        text, excess = self.name, self.worst_excess
        for each in self._findings():
            if each.check == "column":
                column = f", column {each.column}" if self.classes > 1 else ""
                text += f"{column}, R2 {_share(1 - each.value)}"
                excess = max(excess, each.excess)
        return excess, f"{text}, an element at {self.worst_excess:.0%} of its limit"

    def unlikely_classes(self) -> int:
        """Return how many classes the source calls unlikely in all samples; 0 if it has no probabilities."""
        return self._columns.unlikely() if self.kind is Kind.PROBABILITIES and self._columns.rows else 0

    @property
    def classes(self) -> int:
        """The columns of its scales."""
        return self.reference.scales.columns

    def _class_excess(self) -> float:
        limit = self._agreement_limit
        return (1 - self.top1_agreement) / (1 - limit) if limit < 1 else 0.0

    @property
    def _agreement_limit(self) -> float:
        if self.reference.labels is not None:
            return label_agreement(self._precision)
        return self.tolerance.top1_agreement

    def _add_rows(self, sample: int, expected: Array, found: Array) -> None:
        if is_floating(expected.dtype) and is_floating(found.dtype):
            self.is_narrowed |= found.dtype.itemsize < expected.dtype.itemsize
            self._columns.add(expected, found)
        if self.kind.is_classifier:
            agreeing, rows = agrees_on_first(expected, found)
        elif self.reference.labels is not None:
            agreeing, rows = same_labels(expected, found), expected.size
        else:
            return
        if agreeing < rows and self._agreeing == self._rows:
            self._first_other = sample
        self._agreeing += agreeing
        self._rows += rows

    def _other_classes(self) -> Iterator[Difference]:
        limit, others = self._agreement_limit, self._rows - self._agreeing
        if not self.has_classes or self.top1_agreement >= limit:
            return
        if self.reference.labels is not None and (others == 1 or limit == 1):
            return  # Each other class is a tie within its limit; at FP32 any number of them.
        message = (
            f"output '{self.name}' has another first class in {others} of {self._rows} rows, "
            f"first in sample {self._first_other}: the agreement is {self.top1_agreement:.4g}, "
            f"at least {limit:.4g} is required"
        )
        yield Difference(self.name, "top1", self._first_other, (), 1.0, self.top1_agreement, limit, message)

    def _findings(self) -> Iterator[ColumnFinding]:
        if self.reference.labels is None and self._columns.rows >= FEWEST_ROWS:
            yield from self._columns.findings(self.tolerance, self._precision)

    def _of_column(self, finding: ColumnFinding) -> Difference:
        column = f", column {finding.column}" if finding.column >= 0 and self.classes > 1 else ""
        where = f"output '{self.name}'{column}"
        if finding.check == "column":
            least = 1 - finding.limit
            text = f"{where}: R2 over all samples is {1 - finding.value:.4g}, at least {least:.6g} is required"
        elif finding.check == "levels":
            text = (
                f"{where} has {finding.limit:.0f} different numbers over all samples, the source has at least "
                f"{4 * finding.limit:.0f}: the bits of int8 are lost"
            )
        elif finding.check == "gain":
            text = (
                f"{where}: the answers have a gain that is off by {finding.value:.3g} over all samples, "
                f"allowed is {finding.limit:.3g}"
            )
        else:
            text = (
                f"{where}: the answers are shifted by {finding.value:.3g} standard deviations over all samples, "
                f"allowed are {finding.limit:.3g}"
            )
        index = (finding.column,) if finding.column >= 0 else ()
        return Difference(self.name, finding.check, -1, index, 0.0, finding.value, finding.limit, text)

    def _fail(self, sample: int, worst: Worst, message: str) -> None:
        before = self._failures.get(worst.check)
        if before is None or worst.excess > before[0]:
            self._failures[worst.check] = (
                worst.excess,
                difference_of(self.name, worst.check, sample, worst, message),
            )


class CandidateComparison:
    """The differences of all outputs of the source."""

    def __init__(
        self, settings: Settings, candidate: Candidate, references: Mapping[str, OutputReference], factor: float = 1.0
    ) -> None:
        """Take what the source answers; `factor` widens the limits of elements."""
        self._settings = settings
        self._candidate = candidate
        self._factor = factor
        self.outputs: dict[str, OutputComparison] = {
            name: OutputComparison(name, reference, self._tolerance(name, reference), candidate)
            for name, reference in references.items()
        }

    def widened(self, factor: float) -> "CandidateComparison":
        """Return a comparison of the same outputs with limits that are wider, or narrower, by a factor."""
        references = {name: output.reference for name, output in self.outputs.items()}
        return CandidateComparison(self._settings, self._candidate, references, factor)

    def beside_others(self, factor: float = 1.0) -> "CandidateComparison":
        """Return a comparison of a row in a batch, or of concurrent requests, with the same row alone."""
        relative = OF_BATCHES.get(self._candidate.precision)
        if relative is None:
            return self if factor == 1 else self.widened(factor)
        usual = default_tolerance(self._candidate.precision, Kind.NUMBERS).relative
        return self.widened(factor * relative / usual)

    def add(self, sample: int, expected: Arrays, found: Arrays) -> None:
        """Compare the outputs of a sample."""
        for name, array in expected.items():
            if name in self.outputs:
                self.outputs[name].add(sample, array, found.get(name), *self.scores_of(name, expected))
        for name in found.keys() - expected.keys():
            if name in self.outputs:
                self.outputs[name].add_surplus(sample)

    def compare(self, name: str, expected: Arrays, found: Array) -> OutputDifference:
        """Compare one output of an answer, without adding it."""
        return self.outputs[name].compare(expected[name], found, *self.scores_of(name, expected))

    def scores_of(self, name: str, expected: Arrays) -> tuple[Array | None, float]:
        """Return the scores that an output is the first class of, and how far a class may miss the best one."""
        labels = self.outputs[name].reference.labels
        if labels is None or labels.scores not in expected:
            return None, 0.0
        scores, output = expected[labels.scores], self.outputs[labels.scores]
        finite = np.abs(scores[np.isfinite(scores)].astype(np.float64))
        size = float(finite.max()) if finite.size else 0.0
        # Both scores may differ by the limit of an element.
        return scores, 2 * (output.tolerance.absolute + output.tolerance.relative * size)

    def failures(self) -> list[Difference]:
        """Return the worst difference of each output and check."""
        budget = self._settings.budget
        return [
            difference
            for name, output in self.outputs.items()
            for difference in output.failures(are_values_free=budget is not None and budget.labels.output == name)
        ]

    def gaps(self) -> list[str]:
        """Return which classes the samples do not show; in FP32 the limit of an element is small enough for them."""
        if self._candidate.precision is Precision.FP32:
            return []
        counts = {name: (output.unlikely_classes(), output) for name, output in self.outputs.items()}
        return [
            f"classes of '{name}' that are less likely than {LIKELY:.0%} in all samples: {count} of {output.classes}"
            for name, (count, output) in counts.items()
            if count
        ]

    def notes(self) -> list[str]:
        """Return what was judged otherwise than by the datatypes of the source."""
        notes = []
        for name, output in self.outputs.items():
            if output.reference.is_double and self._candidate.precision is Precision.FP32:
                if output.is_narrowed:
                    notes.append(f"output '{name}' is FP32 in place of FP64, and judged as FP32")
                elif self._candidate.computes_in_float32:
                    notes.append(f"output '{name}' is FP64, but computed in FP32, and judged as FP32")
            if output.reference.labels is not None:
                notes.append(
                    f"output '{name}' is the first class of '{output.reference.labels.scores}', judged with it"
                )
        return notes

    def summary(self) -> str:
        """Return the tolerances that all outputs are within, and the worst column."""
        worst = max((output.worst() for output in self.outputs.values()), default=(0.0, ""))
        if not worst[0]:
            return "no difference in any answer"
        return f"within the tolerances of {self._candidate.precision.value} (worst: {worst[1]})"

    def _tolerance(self, name: str, reference: OutputReference) -> Tolerance:
        is_double = reference.is_double and not self._candidate.computes_in_float32
        tolerance = self._settings.tolerance_of(
            name, reference.kind, self._candidate.precision, is_double=is_double, step=reference.step
        )
        return replace(
            tolerance,
            absolute=self._factor * tolerance.absolute,
            relative=self._factor * tolerance.relative,
            cosine=self._factor * tolerance.cosine,
        )


def describe(
    output: str, sample: int | str, worst: Worst, expecting: str, finding: str, which: str = "sample"
) -> str:
    """Return a difference in a sentence; `expecting` and `finding` name what gave the two values."""
    where = f"output '{output}' of {which} {sample}"
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


def _share(r2: float) -> str:
    """Return R2 with as many digits as it takes to differ from 1."""
    if r2 >= 1:
        return "1"
    digits = 3 if 1 - r2 > 5e-4 else min(9, math.ceil(-math.log10(1 - r2)) + 1)
    return f"{r2:.{digits}f}"
