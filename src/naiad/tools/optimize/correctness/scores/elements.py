"""The worst element of one output of one sample."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from naiad.core.datatype import STRING_KINDS
from naiad.core.tensor import Array
from naiad.tools.optimize.correctness.scores.scales import Scales
from naiad.tools.optimize.correctness.scores.tolerances import TIE, Kind
from naiad.tools.optimize.results.verdict import Tolerance


@dataclass(frozen=True, slots=True)
class Worst:
    """An element that differs more than the tolerance allows, or the largest difference where all are within."""

    check: str
    """`shape`, `datatype`, `inf/nan`, `values` or `cosine`."""
    index: tuple[int, ...]
    expected: float | str
    found: float | str
    limit: float
    excess: float
    """Difference divided by `limit`; more than 1 fails."""


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """The comparison of one output of one sample."""

    worst: Worst | None = None
    """None if the output has no elements."""
    absolute: float = 0.0
    relative: float = 0.0

    @property
    def is_within(self) -> bool:
        """Whether all elements are within the tolerance."""
        return self.worst is None or self.worst.excess <= 1


def compare_output(
    expected: Array,
    found: Array,
    kind: Kind,
    tolerance: Tolerance,
    scales: Scales | None = None,
    *,
    may_narrow: bool = False,
) -> OutputDifference:
    """Compare an output of the candidate with that of the source.

    An element may differ by `absolute + relative * max(|expected|, scale)`. The scale is that of `scales`; without
    them the root mean square of the output's finite elements (of a column for detections), so that elements near zero
    have no endless relative error. With `may_narrow`, FP32 is right where the source has FP64.
    """
    if problem := compare_type(expected, found, may_narrow=may_narrow):
        return problem
    if not expected.size:
        return OutputDifference()
    if expected.dtype.kind in STRING_KINDS:
        return _compare_exactly(_as_bytes(expected), _as_bytes(found))
    if expected.dtype.kind in "biu" and tolerance.absolute == tolerance.relative == 0:
        return _compare_exactly(expected, found)
    return _compare_numbers(expected.astype(np.float64), found.astype(np.float64), kind, tolerance, scales)


def compare_type(expected: Array, found: Array, *, may_narrow: bool = False) -> OutputDifference | None:
    """Return the difference if shape or datatype are others."""
    if expected.shape != found.shape:
        return _failed("shape", str(list(expected.shape)), str(list(found.shape)))
    wanted, given = _text_kind(expected), _text_kind(found)
    if wanted != given and not (may_narrow and (wanted, given) == ("float64", "float32")):
        return _failed("datatype", wanted, given)
    return None


def compare_labels(
    expected: Array, found: Array, lacks: Array, limit: float, *, may_narrow: bool = False
) -> OutputDifference:
    """Compare classes; another one is right where its score misses the best one by `limit` at most."""
    if problem := compare_type(expected, found, may_narrow=may_narrow):
        return problem
    pair = [_as_bytes(each) if each.dtype.kind in STRING_KINDS else each for each in (expected, found)]
    is_other = (pair[0] != pair[1]) & (lacks.reshape(expected.shape) > limit)
    if not is_other.any():
        return OutputDifference()
    index = _first(is_other)
    return OutputDifference(Worst("values", index, _element(pair[0], index), _element(pair[1], index), limit, np.inf))


def same_labels(expected: Array, found: Array) -> int:
    """Return the number of equal elements of two arrays of one shape."""
    pair = [_as_bytes(each) if each.dtype.kind in STRING_KINDS else each for each in (expected, found)]
    return int((pair[0] == pair[1]).sum())


def agrees_on_first(expected: Array, found: Array) -> tuple[int, int]:
    """Return how many rows have the same first class, and how many rows there are; classes that tie are equal."""
    scores = expected.astype(np.float64).reshape(-1, expected.shape[-1])
    chosen = np.argmax(found.astype(np.float64).reshape(scores.shape), axis=-1)
    scale = np.abs(scores).max(-1)
    of_chosen = np.take_along_axis(scores, chosen[:, None], axis=-1)[:, 0]
    return int((scores.max(-1) - of_chosen <= TIE * scale).sum()), len(scores)


def cosine_distance(expected: Array, found: Array) -> float:
    """Return the cosine distance of two arrays of finite numbers: 0 if both are zero, 1 if one of them is."""
    largest = float(np.abs(expected).max()), float(np.abs(found).max())
    if 0.0 in largest:
        return 0.0 if largest[0] == largest[1] else 1.0
    first, second = expected.ravel() / largest[0], found.ravel() / largest[1]
    norms = np.linalg.norm(first), np.linalg.norm(second)
    # The distance of unit vectors is exact for small angles; 1 - cos is not.
    return float(np.square(first / norms[0] - second / norms[1]).sum() / 2)


def _compare_numbers(
    expected: Array, found: Array, kind: Kind, tolerance: Tolerance, scales: Scales | None
) -> OutputDifference:
    is_finite = np.isfinite(expected) & np.isfinite(found)
    is_same = (expected == found) | (np.isnan(expected) & np.isnan(found))
    is_misplaced = ~is_finite & ~is_same
    if is_misplaced.any():
        index = _first(is_misplaced)
        return OutputDifference(Worst("inf/nan", index, float(expected[index]), float(found[index]), 0.0, np.inf))
    wanted, given = np.where(is_finite, expected, 0.0), np.where(is_finite, found, 0.0)
    with np.errstate(over="ignore"):  # An infinite difference is one that exceeds all limits.
        differences = np.abs(wanted - given)
    own = _scale(wanted, is_finite, kind) if scales is None or kind is not Kind.NUMBERS else scales.of(wanted)
    sizes = np.maximum(np.abs(wanted), own)
    limits = tolerance.absolute + tolerance.relative * sizes
    with np.errstate(over="ignore"):
        excess = np.divide(differences, limits, out=np.where(differences > 0, np.inf, 0.0), where=limits > 0)
        relative = np.divide(differences, sizes, out=np.zeros_like(differences), where=sizes > 0)
    index = _index(int(excess.argmax()), excess.shape)
    worst = Worst(
        "values", index, float(wanted[index]), float(given[index]), float(limits[index]), float(excess[index])
    )
    # A row of a table has columns of their own, which are judged over all samples.
    has_direction = expected.size > 1 and not (scales and scales.is_of_all_samples and kind is Kind.NUMBERS)
    if tolerance.cosine and worst.excess <= 1 and has_direction:
        distance = cosine_distance(wanted, given)
        if distance > tolerance.cosine:
            worst = Worst("cosine", index, worst.expected, worst.found, tolerance.cosine, distance / tolerance.cosine)
    return OutputDifference(worst, float(differences.max()), float(relative.max()))


def _scale(values: Array, is_finite: Array, kind: Kind) -> Any:
    axes = tuple(range(values.ndim - 1)) if kind is Kind.DETECTIONS else None
    counts = np.maximum(is_finite.sum(axis=axes), 1)
    largest = np.maximum(np.abs(values).max(axis=axes), np.finfo(np.float64).tiny)
    # Squares of the largest numbers have no finite value.
    return largest * np.sqrt(np.square(values / largest).sum(axis=axes) / counts)


def _compare_exactly(expected: Array, found: Array) -> OutputDifference:
    is_other = expected != found
    if not is_other.any():
        return OutputDifference(Worst("values", (0,) * expected.ndim, "", "", 0.0, 0.0))
    index = _first(is_other)
    worst = Worst("values", index, _element(expected, index), _element(found, index), 0.0, np.inf)
    return OutputDifference(worst, *_farthest(expected[is_other], found[is_other]))


def _farthest(expected: Array, found: Array) -> tuple[float, float]:
    """Return by how much integers differ at most, absolute and as a share; texts and flags have no distance."""
    if expected.dtype.kind not in "iu":
        return 0.0, 0.0
    # As integers of Python: 2**53 + 1 is no number of FP64, and the difference of two INT64 may be none of INT64.
    distances = np.array([abs(one - other) for one, other in zip(expected.tolist(), found.tolist(), strict=True)])
    sizes = np.maximum(np.abs(expected.astype(np.float64)), 1.0)
    return float(distances.max()), float((distances.astype(np.float64) / sizes).max())


def _element(array: Array, index: tuple[int, ...]) -> float | str:
    value: object = array[index]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value.item() if isinstance(value, np.generic) else str(value)


def _as_bytes(array: Array) -> Array:
    elements = np.empty(array.shape, dtype=object)
    elements.ravel()[:] = [
        each if isinstance(each, bytes) else str(each).encode("utf-8", "surrogateescape") for each in array.ravel()
    ]
    return elements


def _text_kind(array: Array) -> str:
    return "string" if array.dtype.kind in STRING_KINDS else str(array.dtype)


def _failed(check: str, expected: str, found: str) -> OutputDifference:
    return OutputDifference(Worst(check, (), expected, found, 0.0, np.inf))


def _first(is_marked: Array) -> tuple[int, ...]:
    return _index(int(is_marked.argmax()), is_marked.shape)


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(each) for each in np.unravel_index(flat, shape))
