"""Rows whose best two classes nearly tie: a fault of a label there shows in few samples, or in none."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from naiad.core.datatype import is_floating
from naiad.core.tensor import Array
from naiad.tools.optimize.correctness.boundaries.row_answers import RowAnswers
from naiad.tools.optimize.correctness.labels import LabelRelation
from naiad.tools.optimize.correctness.probes import Probe
from naiad.tools.optimize.correctness.runners.model_runner import Arrays

_PAIRS = 4
_PARTS = 16
_ROUNDS = 6
_WINDOW = (1.2, 12.0)
"""Gaps of two scores that are tried, in limits: within one limit a faithful conversion may pick the other class."""
_ROWS = 4
"""Of each pair."""


def near_tie_probes(
    rows: RowAnswers,
    kept: Sequence[Mapping[str, Array]],
    output: str,
    relation: LabelRelation,
    limit: Callable[[Arrays], float],
) -> Iterator[Probe]:
    """Yield rows between samples of different classes, where two scores differ by a few limits.

    `limit` is by how much the score of another class may miss the best one, for an answer. Raises RunnerError.
    """
    answers = rows.of(kept)
    classes = [relation.first(each) for each in answers]
    pairs = [(kept[one], kept[two]) for one, two in combinations(range(len(kept)), 2) if classes[one] != classes[two]]
    for one, two in [pair for pair in pairs if _can_mix(*pair)][:_PAIRS]:
        middle = _change(rows, relation, one, two)
        shares = [middle + sign * 2.0**-step for step in range(1, 24) for sign in (-1, 1)]
        shares = [share for share in shares if 0 <= share <= 1]
        made = [_mixed(one, two, share) for share in shares]
        gaps = [
            (relation.gap(answer) / max(limit(answer), 1e-300), sample) for sample, answer in _answered(rows, made)
        ]
        near = sorted((each for each in gaps if _WINDOW[0] <= each[0] <= _WINDOW[1]), key=lambda each: each[0])
        for _, sample in near[:_ROWS]:
            yield Probe(f"classes of '{output}' that nearly tie", sample)


def _answered(rows: RowAnswers, made: Sequence[Mapping[str, Array]]) -> Iterator[tuple[Mapping[str, Array], Arrays]]:
    return zip(made, rows.of(made), strict=True)


def _change(rows: RowAnswers, relation: LabelRelation, one: Mapping[str, Array], two: Mapping[str, Array]) -> float:
    """Return the share of the second sample at which the class changes."""
    low, high = 0.0, 1.0
    for _ in range(_ROUNDS):
        shares = np.linspace(low, high, _PARTS + 1)
        classes = [relation.first(each) for each in rows.of([_mixed(one, two, share) for share in shares])]
        place = next((number for number, each in enumerate(classes) if each != classes[0]), _PARTS)
        low, high = float(shares[max(place - 1, 0)]), float(shares[place])
    return (low + high) / 2


def _can_mix(one: Mapping[str, Array], two: Mapping[str, Array]) -> bool:
    has_numbers = any(is_floating(array.dtype) and array.size for array in one.values())
    return has_numbers and all(array.shape == two[name].shape for name, array in one.items())


def _mixed(one: Mapping[str, Array], two: Mapping[str, Array], share: float) -> Mapping[str, Array]:
    return {
        name: _mixture(array, two[name], share) if is_floating(array.dtype) else array for name, array in one.items()
    }


def _mixture(one: Array, two: Array, share: float) -> Array:
    return ((1 - share) * one.astype(np.float64) + share * two.astype(np.float64)).astype(one.dtype)
