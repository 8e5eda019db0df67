"""The best places to cut a sequence of nodes into stages: dynamic programming over the positions.

A cut at position k separates the nodes before k from node k and its successors. The slowest stage limits the
throughput of a pipeline, so the plan first finds the least possible weight of the heaviest stage. Among all plans
within `TOLERANCE` of it, the one with the lowest crossing costs is chosen.
"""

from collections.abc import Sequence

import numpy as np

from naiad.core.errors import invalid_argument

TOLERANCE = 0.05
"""The heaviest stage may exceed the best possible one by this ratio if fewer bytes cross the cuts then."""


def plan_cuts(weights: Sequence[float], crossing_costs: Sequence[float], stage_count: int) -> list[int]:
    """Return the `stage_count - 1` ascending positions of the cuts.

    `weights` has one entry per node. `crossing_costs[k]` is the cost of a cut before node k, infinite where the model
    cannot be cut; entry 0 is not used. Every stage has at least one node. Raises InferError(INVALID_ARG) if there are
    not enough positions.
    """
    count = len(weights)
    costs = np.array([np.inf, *crossing_costs[1:count]], np.float64)
    possible = int(np.isfinite(costs).sum())
    if stage_count - 1 > possible:
        fix = f"use --stages {possible + 1} or fewer" if possible else "serve it as it is"
        raise invalid_argument(
            f"{stage_count} stages need {stage_count - 1} cuts, the model can be cut at {possible} places between "
            f"its {count} nodes; {fix}"
        )
    ends = np.concatenate(([0.0], np.cumsum(np.asarray(weights, np.float64))))
    limit = _least_bottleneck(ends, costs, stage_count) * (1 + TOLERANCE)
    return _cheapest(ends, costs, stage_count, limit)


def _least_bottleneck(ends: np.ndarray, costs: np.ndarray, stage_count: int) -> float:
    """Return the weight of the heaviest stage in the best balanced plan."""
    best = ends.copy()
    best[0] = np.inf
    for _ in range(1, stage_count):
        start = np.where(np.isfinite(costs), best[:-1], np.inf)
        following = np.full_like(best, np.inf)
        for end in range(1, len(ends)):
            following[end] = np.maximum(start[:end], ends[end] - ends[:end]).min()
        best = following
    return float(best[-1])


def _cheapest(ends: np.ndarray, costs: np.ndarray, stage_count: int, limit: float) -> list[int]:
    """Return the cuts with the lowest sum of costs whose stages are not heavier than `limit`."""
    best = np.where(ends <= limit, 0.0, np.inf)
    best[0] = np.inf
    froms = []
    for _ in range(1, stage_count):
        start = best[:-1] + costs
        following = np.full_like(best, np.inf)
        source = np.zeros(len(ends), np.int64)
        for end in range(1, len(ends)):
            candidates = np.where(ends[end] - ends[:end] <= limit, start[:end], np.inf)
            source[end] = candidates.argmin()
            following[end] = candidates[source[end]]
        best = following
        froms.append(source)
    cuts = [len(ends) - 1]
    for source in reversed(froms):
        cuts.append(int(source[cuts[-1]]))
    return cuts[:0:-1]
