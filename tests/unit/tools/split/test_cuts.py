"""Cut positions: balanced stages, and few bytes between them."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.errors import InferError
from naiad.tools.split.cuts import TOLERANCE, plan_cuts

INF = float("inf")


def heaviest(weights: list[float], cuts: list[int]) -> float:
    bounds = [0, *cuts, len(weights)]
    return max(sum(weights[a:b]) for a, b in pairwise(bounds))


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.one_of(st.integers(0, 1000), st.just(INF))),
        min_size=2,
        max_size=9,
    ),
    st.integers(2, 4),
)
def test_plan_is_the_best_of_all(nodes: list[tuple[int, float]], stages: int) -> None:
    weights, costs = [float(w) for w, _ in nodes], [float(c) for _, c in nodes]
    plans = [
        list(each) for each in combinations(range(1, len(nodes)), stages - 1) if all(costs[cut] < INF for cut in each)
    ]
    if not plans:
        fix = "use --stages" if any(cost < INF for _, cost in nodes[1:]) else "serve it as it is"
        with pytest.raises(InferError, match=fix):
            plan_cuts(weights, costs, stages)
        return
    limit = min(heaviest(weights, plan) for plan in plans) * (1 + TOLERANCE) + 1e-9
    cheapest = min(sum(costs[c] for c in plan) for plan in plans if heaviest(weights, plan) <= limit)
    found = plan_cuts(weights, costs, stages)
    assert found in plans
    assert heaviest(weights, found) <= limit
    assert sum(costs[cut] for cut in found) == cheapest


def test_cut_avoids_expensive_positions() -> None:
    assert plan_cuts([1.0] * 100, [0.0, *[9.0] * 50, 1.0, *[9.0] * 48], 2) == [51]
