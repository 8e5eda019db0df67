"""Least squares for the time of a batch, with outliers clipped."""

from collections.abc import Sequence

import numpy as np

_ROUNDS = 5
_CLIP = 2.0
"""Residuals beyond this many median residuals lose weight."""
_PRIOR_WEIGHT = 0.02
"""Weight, in squared rows, of the guess of the share that grows with the rows: for batches of equal size."""


def fit_line(rows: Sequence[float], times: Sequence[float], row_share: float = 0.5) -> tuple[float, float]:
    """Return `fixed` and `per_row` of `time = fixed + per_row * rows`, neither negative.

    Relative residuals count; those far beyond the median lose weight. At least one observation; with rows that are
    all equal, `row_share` of the time grows with the rows.
    """
    x, y = np.asarray(rows, float), np.maximum(np.asarray(times, float), 1e-9)
    weights = 1.0 / y**2
    fixed, per_row = _solve(x, y, weights, row_share)
    for _ in range(_ROUNDS):
        residuals = np.abs(y / np.maximum(fixed + per_row * x, 1e-9) - 1.0)
        limit = _CLIP * max(float(np.median(residuals)), 0.01)
        fixed, per_row = _solve(x, y, weights * np.minimum(1.0, limit / np.maximum(residuals, 1e-9)), row_share)
    return fixed, per_row


def _solve(x: np.ndarray, y: np.ndarray, weights: np.ndarray, row_share: float) -> tuple[float, float]:
    share = weights / weights.sum()
    mean_x, mean_y = float(share @ x), float(share @ y)
    variance = float(share @ (x - mean_x) ** 2)
    covariance = float(share @ ((x - mean_x) * (y - mean_y)))
    largest = mean_y / max(mean_x, 1e-9)
    prior = _PRIOR_WEIGHT * min(1.0, 1.0 / max(len(x) * variance, 1e-9))
    slope = (covariance + prior * largest * row_share) / (variance + prior)
    if slope >= largest:
        return 0.0, float((weights * x) @ y / ((weights * x) @ x))
    slope = max(0.0, slope)
    return mean_y - slope * mean_x, slope
