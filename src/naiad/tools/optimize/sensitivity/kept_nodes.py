"""Bisection over groups of nodes: few that stay in higher precision, so that a test accepts the rest in lower one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

_GROUPS = 16

Accepts = Callable[[Sequence[str]], bool]
"""Whether a candidate is accepted that keeps these nodes."""


@dataclass(frozen=True, slots=True)
class KeptNode:
    """A node that lower precision would change."""

    name: str
    error: float
    """The estimated relative error of its result; infinite for an overflow."""


def groups(nodes: Sequence[KeptNode]) -> list[Sequence[KeptNode]]:
    """Return groups of consecutive nodes, those with the greatest error of a node first."""
    size = -(-len(nodes) // _GROUPS)
    parts = [nodes[start : start + size] for start in range(0, len(nodes), size)] if nodes else []
    return sorted(parts, key=lambda part: max(node.error for node in part), reverse=True)


def keep_few(nodes: Sequence[KeptNode], accepts: Accepts) -> Sequence[str] | None:
    """Return nodes to keep, none of which can be given back; None if it does not suffice to keep all.

    First the groups with the greatest errors are kept, twice as many in each step, until the test accepts. Then
    halves of them, halves of these, and so on are given back, those with small errors first. `nodes` are in
    topological order.
    """
    ranked = groups(nodes)
    count = 0
    while True:
        kept = [node.name for group in reversed(ranked[:count]) for node in group]
        if accepts(kept):
            return _without(kept, kept, accepts)
        if count >= len(ranked):
            return None
        count = max(1, 2 * count)


def _without(kept: Sequence[str], part: Sequence[str], accepts: Accepts) -> Sequence[str]:
    """Return the kept nodes without the nodes of a part that can be given back."""
    rest = [name for name in kept if name not in part]
    if accepts(rest):
        return rest
    if len(part) > 1:
        middle = len(part) // 2
        kept = _without(kept, part[:middle], accepts)
        kept = _without(kept, part[middle:], accepts)
    return kept
