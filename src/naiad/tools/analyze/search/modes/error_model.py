"""How far predictions are off at configurations that were not measured.

The logarithm of measured / predicted is a Gaussian process over configurations (Rasmussen and Williams, Gaussian
Processes for Machine Learning, 2006, algorithm 2.1): the sum of an error of all predictions, an effect of each field,
and an effect of the configuration, each with a standard deviation that is assumed. Effects of near values are alike.
"""

import math
from collections.abc import Sequence

import numpy as np

from naiad.tools.analyze.search.distance import Place

_ALL = 0.15
_FIELD = 0.1
_CONFIGURATION = 0.1
"""Standard deviations of the errors."""
_NOISE = 0.05
"""Standard deviation between two measurements of a configuration."""
_REACH = 0.5
"""Distance between the values of a field over which an effect fades to a third."""


class ErrorModel:
    """The errors of predictions, given those at some configurations."""

    def __init__(self, places: Sequence[Place], repeats: Sequence[int]) -> None:
        """`repeats`: how often each place was measured."""
        self._places = places
        known = np.array([[_covariance(each, other) for other in places] for each in places])
        self._inverse = np.linalg.inv(known + np.diag(_NOISE**2 / np.array(repeats, float)))

    def weights(self, place: Place) -> np.ndarray:
        """Return what each known error counts for in the expected error at a place."""
        return np.asarray(self._covariances(place) @ self._inverse)

    def deviation(self, place: Place) -> float:
        """Return the standard deviation of the error at a place."""
        covariances = self._covariances(place)
        return math.sqrt(max(0.0, _covariance(place, place) - float(covariances @ self._inverse @ covariances)))

    def _covariances(self, place: Place) -> np.ndarray:
        return np.array([_covariance(place, each) for each in self._places])


def _covariance(place: Place, other: Place) -> float:
    alike = [
        math.exp(-abs(mine - theirs) / _REACH)
        if isinstance(mine, float) and isinstance(theirs, float)
        else float(mine == theirs)
        for mine, theirs in zip(place, other, strict=True)
    ]
    return _ALL**2 + _FIELD**2 * sum(alike) + _CONFIGURATION**2 * math.prod(alike)
