"""The nearest valid name for a mistyped one."""

from collections.abc import Iterable

MAX_DISTANCE = 2
"""Edits beyond which a name is no longer taken for a slip of the other."""


def edit_distance(a: str, b: str, limit: int = MAX_DISTANCE) -> int:
    """Return the number of insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`.

    Any value above `limit` only says "more than `limit`".
    """
    if abs(len(a) - len(b)) > limit:
        return limit + 1
    before_last: list[int] = []
    last = list(range(len(b) + 1))
    for i, char in enumerate(a, start=1):
        row = [i]
        for j, other in enumerate(b, start=1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (char != other))
            if i > 1 and j > 1 and char == b[j - 2] and a[i - 2] == other:
                cost = min(cost, before_last[j - 2] + 1)
            row.append(cost)
        if min(row) > limit:
            return limit + 1
        before_last, last = last, row
    return last[-1]


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return the candidate that `name` was probably meant to be, or "".

    A difference in case alone counts as no difference. Short names need to be nearer, otherwise every
    two-letter name would be near every other.
    """
    limit = min(MAX_DISTANCE, len(name) // 2)
    best, best_distance = "", limit + 1
    for candidate in sorted(set(candidates)):
        distance = edit_distance(name.lower(), candidate.lower(), limit)
        if distance < best_distance and candidate != name:
            best, best_distance = candidate, distance
    return best
