"""Outputs with classes: integers or strings that say which score of another output is the first.

Where two scores are as good as equal, a faithful conversion may pick the other class. The label is judged with the
scores: the source's score of the class that the candidate picked is compared with the source's best one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from naiad.core.datatype import is_floating
from naiad.core.tensor import Array


@dataclass
class LabelRelation:
    """How an output follows from the scores of another one, as far as the samples show it."""

    scores: str
    """The output with the scores."""
    places: dict[object, int] = field(default_factory=dict)
    """Place of the score by class; empty for a threshold."""
    threshold: float | None = None

    def first(self, answer: Mapping[str, Array]) -> int:
        """Return the place of the first class of the first row of an answer, or whether it is above the threshold."""
        scores = answer[self.scores].astype(np.float64)
        if self.threshold is not None:
            return int(scores.reshape(-1)[0] > self.threshold)
        return int(scores.reshape(-1, scores.shape[-1])[0].argmax())

    def gap(self, answer: Mapping[str, Array]) -> float:
        """Return by how much the second class of the first row misses the first one."""
        scores = answer[self.scores].astype(np.float64)
        if self.threshold is not None:
            return float(abs(scores.reshape(-1)[0] - self.threshold))
        second, first = np.sort(scores.reshape(-1, scores.shape[-1])[0])[-2:]
        return float(first - second)

    def lacks(self, labels: Array, expected_scores: Array) -> Array:
        """Return by how much the score of each label misses the best one; infinite for a class that is unknown."""
        flat = labels.reshape(-1)
        if self.threshold is not None:
            return np.abs(expected_scores.astype(np.float64).reshape(-1) - self.threshold)
        scores = expected_scores.astype(np.float64).reshape(len(flat), -1)
        places = np.array([self.places.get(_plain(each), -1) for each in flat])
        own = np.take_along_axis(scores, np.maximum(places, 0)[:, None], axis=1)[:, 0]
        return np.where(places >= 0, scores.max(1) - own, np.inf)


class LabelObserver:
    """Finds the scores that an output with integers or strings follows from."""

    def __init__(self) -> None:
        self._maps: dict[str, dict[int, object]] = {}
        self._ranges: dict[str, dict[object, tuple[float, float]]] = {}
        self._refuted: set[str] = set()
        self._classes: dict[str, int] = {}

    def add(self, labels: Array, others: Mapping[str, Array]) -> None:
        """Compare the labels of an answer with the scores in it."""
        for name, scores in others.items():
            if name in self._refuted or not is_floating(scores.dtype) or not scores.size:
                continue
            if not (self._follows_first(name, labels, scores) or self._follows_threshold(name, labels, scores)):
                self._refuted.add(name)

    def relation(self) -> LabelRelation | None:
        """Return the relation that all answers have shown."""
        for name, seen in self._maps.items():
            if name in self._refuted or len(set(seen.values())) != len(seen):
                continue
            is_place = all(_as_int(label) == place for place, label in seen.items())
            if is_place or len(seen) > 1:
                count = self._classes[name]
                places: dict[object, int] = {place: place for place in range(count)} if is_place else {}
                return LabelRelation(name, places | {label: place for place, label in seen.items()})
        for name, ranges in self._ranges.items():
            if name in self._refuted or len(ranges) != 2:
                continue
            (_, below), (above, _) = sorted(ranges.values())
            if below <= above:
                return LabelRelation(name, threshold=_threshold(below, above))
        return None

    def _follows_first(self, name: str, labels: Array, scores: Array) -> bool:
        shapes = (labels.shape, labels.shape[:-1] if labels.shape[-1:] == (1,) else labels.shape)
        if scores.ndim == 0 or scores.shape[-1] < 2 or scores.shape[:-1] not in shapes:
            return False
        table = scores.astype(np.float64).reshape(-1, scores.shape[-1])
        self._classes[name] = table.shape[1]
        seen = self._maps.setdefault(name, {})
        ordered = np.sort(table, axis=1)
        for label, place, (second, first) in zip(labels.reshape(-1), table.argmax(1), ordered[:, -2:], strict=True):
            if first - second <= 1e-6 * abs(first):
                continue  # Which one is the first is a matter of rounding.
            if seen.setdefault(int(place), _plain(label)) != _plain(label):
                return False
        return True

    def _follows_threshold(self, name: str, labels: Array, scores: Array) -> bool:
        if scores.size != labels.size:
            return False
        ranges = self._ranges.setdefault(name, {})
        for label, score in zip(labels.reshape(-1), scores.astype(np.float64).reshape(-1), strict=True):
            low, high = ranges.get(_plain(label), (score, score))
            ranges[_plain(label)] = (min(low, float(score)), max(high, float(score)))
            if len(ranges) > 2:
                return False
        return True


def _threshold(below: float, above: float) -> float:
    """Return the usual threshold that lies between both, or the middle."""
    return next((each for each in (0.5, 0.0) if below <= each <= above), (below + above) / 2)


def _plain(label: object) -> object:
    value = label.item() if isinstance(label, np.generic) else label
    return value.encode() if isinstance(value, str) else value


def _as_int(label: object) -> int | None:
    return int(label) if isinstance(label, (int, bool)) else None
