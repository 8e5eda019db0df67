"""The nearest valid name for a mistyped one."""

from collections.abc import Iterable

MAX_DISTANCE = 2
"""Maximum number of edits between a typo and its suggestion."""


def edit_distance(a: str, b: str, limit: int = MAX_DISTANCE) -> int:
    """Return the number of insertions, deletions, substitutions and swaps of adjacent characters that turn `a` into
    `b`.

    Any value above `limit` only means "more than `limit`".
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
    """Return the candidate that `name` is probably a typo of, or "".

    Case is ignored. Short names need to be closer, otherwise all two-letter names would match each other.
    """
    limit = min(MAX_DISTANCE, len(name) // 2)
    best, best_distance = "", limit + 1
    for candidate in sorted(set(candidates)):
        distance = edit_distance(name.lower(), candidate.lower(), limit)
        if distance < best_distance and candidate != name:
            best, best_distance = candidate, distance
    return best
