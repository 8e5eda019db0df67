"""Whether a candidate answers as the source does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_FEWEST_NUMBERS, _MOST_NUMBERS = 2, 4


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What an output may differ by. All of them hold.

    An element may differ by `absolute + relative * max(|expected|, scale)`; the scale is that of its column over the
    samples, or the root mean square of the output in that sample (`correctness.scores.scales`).
    """

    absolute: float
    relative: float
    cosine: float = 0.0
    """Greatest cosine distance between the outputs of a sample; 0 for no check."""
    top1_agreement: float = 0.0
    """Classifiers, and integers or strings that are the first class of another output: least share of samples with
    the same class; 0 for no check."""
    residual: float = 0.0
    """Greatest 1 - R2 of a column over all samples; 0 for no check."""
    gain: float = 0.0
    """Greatest deviation from 1 of the slope of a column's answers over the source's; 0 for no check."""
    bias: float = 0.0
    """Greatest shift of all columns, in standard deviations of each; of one column twice that, and half of it in one
    direction for all columns. 0 for no check."""


def parse_tolerance(text: str) -> tuple[str, Tolerance]:
    """Return output and tolerance of `OUTPUT=ABSOLUTE,RELATIVE[,COSINE[,TOP1]]`. Raises ValueError."""
    name, _, values = text.rpartition("=")
    try:
        numbers = [float(value) for value in values.split(",")]
    except ValueError:
        numbers = []
    if not name or not _FEWEST_NUMBERS <= len(numbers) <= _MOST_NUMBERS or not min(numbers) >= 0:
        raise ValueError(f"--tolerance is '{text}'; write {name or 'OUTPUT'}=1e-4,1e-3, not below 0")
    return name, Tolerance(*numbers)


@dataclass(frozen=True, slots=True)
class Difference:
    """The worst difference of an output."""

    output: str
    check: str
    """`shape`, `datatype`, `values`, `cosine`, `top1`, `inf/nan`, `missing`, `column`, `levels`, `gain`, `bias`,
    `probe`, `batched`, `concurrent`, `repeated`, `run`, `metric`."""
    sample: int
    index: tuple[int, ...]
    """Of the worst element."""
    expected: float | str
    found: float | str
    limit: float
    message: str
    """In a sentence, with output, sample, element and both values."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of all checks of a candidate."""

    is_accepted: bool
    failures: Sequence[Difference]
    worst_absolute: Mapping[str, float] = field(default_factory=dict)
    """By output, over all samples."""
    worst_relative: Mapping[str, float] = field(default_factory=dict)
    top1_agreement: Mapping[str, float] = field(default_factory=dict)
    metric: float | None = None
    source_metric: float | None = None
    samples: int = 0
    summary: str = ""
    """Of an accepted candidate: within which tolerances, and its worst column."""
    notes: Sequence[str] = ()
    """What was judged otherwise than by the datatypes, in a sentence each."""
    not_shown: Sequence[str] = ()
    """Faults that neither the samples nor a probe can show, in a sentence each."""
