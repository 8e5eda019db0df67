"""Scores of predictions against labels, sample by sample."""

from collections.abc import Callable

import numpy as np

from naiad.core.tensor import Array
from naiad.tools.optimize.correctness.judgement_settings import Metric


class Score:
    """Adds up a metric over samples; a function of the user gets all predictions at once, which are kept for it."""

    def __init__(self, metric: Metric) -> None:
        """Raises ValueError for the name of an unknown metric."""
        if isinstance(metric, str) and metric not in _PARTS:
            raise ValueError(f"metric is '{metric}'; write one of {', '.join(_PARTS)}, or pass a function")
        self._metric = metric
        self._parts: list[float] = []
        self._pairs: list[tuple[Array, Array]] = []
        self._is_kept = not isinstance(metric, str) or metric == "f1"

    def add(self, prediction: Array, label: object) -> None:
        """Add the output of a sample, without the batch dimension."""
        target = np.asarray(label)
        if self._is_kept:
            self._pairs.append((_class(prediction) if self._metric == "f1" else prediction, target))
        else:
            assert isinstance(self._metric, str)
            self._parts.append(_PARTS[self._metric](prediction, target))

    @property
    def value(self) -> float:
        """The metric over all samples."""
        if not self._is_kept:
            return float(np.mean(self._parts)) if self._parts else 0.0
        predictions, labels = (np.stack([pair[which] for pair in self._pairs]) for which in (0, 1))
        return (
            _macro_f1(predictions, labels)
            if isinstance(self._metric, str)
            else float(self._metric(predictions, labels))
        )


def drop(metric: Metric, source: float, candidate: float) -> float:
    """Return what the candidate loses: points, or for `mse` the rise as a share of the source's."""
    if metric != "mse":
        return source - candidate
    return (candidate - source) / source if source else float(candidate > 0)


def _class(prediction: Array) -> Array:
    """Return the class of a sample: that of the highest score, the sign of one score, or the integer itself."""
    if prediction.dtype.kind in "biuOSU":
        return prediction.reshape(-1)[0]  # type: ignore[no-any-return]  # of an object array
    return np.asarray(np.argmax(prediction) if prediction.size > 1 else int(prediction.reshape(-1)[0] > 0.5))


def _accuracy(prediction: Array, label: Array) -> float:
    return float(_class(prediction) == label)


def _top5(prediction: Array, label: Array) -> float:
    return float(int(label) in np.argsort(-prediction.reshape(-1), kind="stable")[:5])


def _mse(prediction: Array, label: Array) -> float:
    return float(np.square(prediction.astype(np.float64) - label).mean())


def _macro_f1(predictions: Array, labels: Array) -> float:
    scores = []
    for each in np.unique(np.concatenate([labels, predictions])):
        hits = ((predictions == each) & (labels == each)).sum()
        scores.append(2 * hits / ((predictions == each).sum() + (labels == each).sum()))
    return float(np.mean(scores))


_PARTS: dict[str, Callable[[Array, Array], float]] = {
    "accuracy": _accuracy,
    "top5": _top5,
    "f1": _accuracy,
    "mse": _mse,
}
