"""What an output may differ by, from the precision of a candidate and the kind of its output."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from naiad.core.datatype import STRING_KINDS
from naiad.core.tensor import Array
from naiad.tools.optimize.candidate import Precision
from naiad.tools.optimize.results.verdict import Tolerance

_SUM_ERROR = 1e-3
_EMBEDDING_LENGTH = 16
_EXACT = Tolerance(0.0, 0.0)


class Kind(Enum):
    """What the elements of an output mean."""

    PROBABILITIES = "probabilities"
    """The last axis sums to 1."""
    LOGITS = "logits"
    """Scores of classes along the last axis."""
    EMBEDDING = "embedding"
    DETECTIONS = "detections"
    """Columns of different scales along the last axis: boxes, scores."""
    STRINGS = "strings"
    INTEGERS = "integers"
    NUMBERS = "numbers"

    @property
    def is_classifier(self) -> bool:
        """Whether the last axis has a first class."""
        return self in (Kind.PROBABILITIES, Kind.LOGITS)


@dataclass(frozen=True, slots=True)
class _Rounding:
    relative: float
    probability: float
    """Greatest absolute difference of a probability."""
    cosine: float
    top1_agreement: float
    residual: float
    """Greatest 1 - R2 of a column."""
    gain: float
    bias: float


# FP32, measured on convolutions with batch normalisation, 1 to 40 layers deep: fused conversions differ by 2.3e-6,
# at most, those with an epsilon of 1e-4 in place of 1e-5 by 9e-5 or more. A softmax over thousands of classes turned
# the rounding of large scores into 2.6e-5 of a probability; an epsilon of 1e-3 changes one by 3.8e-4. FP16, mixed and
# int8, measured on the models in docs/optimize-correctness.md, residual, gain and bias in its calibration.
# TF32 and BF16 are estimates from the lengths of their mantissas.
_ROUNDING = {
    Precision.FP32: _Rounding(3e-5, 5e-5, 1e-9, 1.0, 1e-4, 0.0, 0.0),
    Precision.TF32: _Rounding(5e-3, 2e-3, 1e-5, 0.99, 2e-3, 0.02, 0.02),
    Precision.FP16: _Rounding(1e-2, 6e-2, 2e-4, 0.99, 2e-3, 0.02, 0.02),
    Precision.BF16: _Rounding(6e-2, 1e-1, 2e-3, 0.98, 1e-2, 0.05, 0.05),
    Precision.MIXED: _Rounding(1e-2, 6e-2, 2e-4, 0.99, 2e-3, 0.02, 0.02),
    Precision.INT8_DYNAMIC: _Rounding(0.4, 0.25, 4e-2, 0.95, 0.08, 0.08, 0.1),
    Precision.INT8: _Rounding(0.4, 0.25, 4e-2, 0.95, 0.08, 0.08, 0.1),
}
_DOUBLE = _Rounding(1e-11, 1e-11, 1e-12, 1.0, 1e-10, 0.0, 0.0)
"""Of outputs in FP64 by candidates that compute in FP64: sums of 10,000 elements differ by 1e-13."""
OF_BATCHES = {Precision.INT8: 0.1}
"""Relative tolerance of a row in a batch against the same row alone: the order of sums may change a step of int8."""
FLOAT_ROUNDING = {
    Precision.FP32: 5e-6,
    Precision.TF32: 2e-3,
    Precision.FP16: 2e-3,
    Precision.MIXED: 2e-3,
    Precision.BF16: 1e-2,
}
"""Share of a column's size that its numbers are rounded by: a column that varies less has no R2. In int8 the answers
are numbers of FP32, so that a column which does not vary any more has lost what it says."""
_STEPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
TIE = _ROUNDING[Precision.FP32].relative
"""Classes whose scores differ by less than this share of the scores' scale are equally good as the first class."""


def detect_kind(output: Array) -> Kind:
    """Return the kind of an output of the source, from its values; logits and detections are never found."""
    if output.dtype.kind in STRING_KINDS:
        return Kind.STRINGS
    if output.dtype.kind in "biu":
        return Kind.INTEGERS
    if not output.ndim or output.shape[-1] < 2 or not output.size:
        return Kind.NUMBERS
    values = output.astype(np.float64)
    if not np.isfinite(values).all():
        return Kind.NUMBERS
    if (values >= 0).all() and np.allclose(values.sum(-1), 1.0, atol=_SUM_ERROR):
        return Kind.PROBABILITIES
    is_unit = np.allclose(np.linalg.norm(values, axis=-1), 1.0, atol=_SUM_ERROR)
    return Kind.EMBEDDING if is_unit and output.shape[-1] >= _EMBEDDING_LENGTH else Kind.NUMBERS


def step_of(datatype: "np.dtype[Any]") -> float:
    """Return the relative distance of neighbouring numbers of a short datatype, 0 for others.

    Of two faithful models, one may round an answer to the neighbour.
    """
    return _STEPS.get(str(datatype), 0.0)


def default_tolerance(precision: Precision, kind: Kind, *, is_double: bool = False, step: float = 0.0) -> Tolerance:
    """Return the tolerance of a kind of output; strings and integers are equal at every precision.

    `is_double`: the source answers in FP64, and the candidate computes in it. `step` is that of the datatype of the
    source's answers.
    """
    if kind in (Kind.STRINGS, Kind.INTEGERS):
        return _EXACT
    rounding = _DOUBLE if is_double and precision is Precision.FP32 else _ROUNDING[precision]
    return Tolerance(
        absolute=rounding.probability if kind is Kind.PROBABILITIES else 0.0,
        relative=rounding.relative + step,
        # Columns of different scales have no common direction.
        cosine=0.0 if kind is Kind.DETECTIONS else rounding.cosine + step**2,
        top1_agreement=rounding.top1_agreement if kind.is_classifier else 0.0,
        residual=rounding.residual,
        gain=rounding.gain,
        bias=rounding.bias,
    )


def label_agreement(precision: Precision) -> float:
    """Return the least share of integers or strings that are the first class of another output."""
    return _ROUNDING[precision].top1_agreement
