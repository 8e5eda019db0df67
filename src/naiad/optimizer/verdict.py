"""Whether a candidate answers as the source does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What an output may differ by. All of them hold.

    An element may differ by `absolute + relative * max(|expected|, scale)`, where the scale is the root mean square
    of the output in that sample.
    """

    absolute: float
    relative: float
    cosine: float = 0.0
    """Greatest cosine distance between the outputs of a sample; 0 for no check."""
    top1_agreement: float = 0.0
    """Classifiers: least share of samples with the same first class; 0 for no check."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The worst difference of an output."""

    output: str
    check: str
    """`shape`, `datatype`, `values`, `cosine`, `top1`, `inf/nan`, `missing`, `batched`, `concurrent`, `repeated`,
    `run`, `metric`."""
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
