"""Which of many marks a text has, in a time that does not grow with their number."""

import re
from collections.abc import Callable, Collection, Iterable

_HEAD = 4
"""Characters by which marks are grouped: models have thousands of marks, and few beginnings of them."""
_AT_ONCE = 4096
"""Places that are looked at between two looks whether the result is still wanted."""


class MarkSearch:
    """Finds marks in texts; made once for a model.

    One search finds the places where a mark may begin. At each of them a look into a table has the marks with that
    beginning, and their lengths. It is no regular expression of all marks, which would try thousands of them at each
    place, and hold the interpreter's lock meanwhile.
    """

    def __init__(self, marks: Iterable[str]) -> None:
        """`marks`: any texts; empty ones are left out."""
        groups: dict[str, set[str]] = {}
        for mark in filter(None, marks):
            groups.setdefault(mark[:_HEAD], set()).add(mark)
        self._groups = {
            head: (_common_beginning(found), sorted({len(each) for each in found}), frozenset(found))
            for head, found in groups.items()
        }
        self._head_lengths = sorted({len(head) for head in groups})
        first = sorted({head[0] for head in groups})
        self._beginnings = re.compile(f"[{re.escape(''.join(first))}]") if first else None

    @property
    def has_marks(self) -> bool:
        """Return whether there are any marks."""
        return self._beginnings is not None

    def find(self, text: str, check: Callable[[], object] = lambda: None) -> str:
        """Return the first mark in a text, empty without one. `check` is called now and then, and may raise."""
        if self._beginnings is None:
            return ""
        for count, place in enumerate(self._beginnings.finditer(text), 1):
            if not count % _AT_ONCE:
                check()
            mark = self._mark_at(text, place.start())
            if mark:
                return mark
        return ""

    def _mark_at(self, text: str, start: int) -> str:
        for head_length in self._head_lengths:
            group = self._groups.get(text[start : start + head_length])
            if group is None:
                continue
            prefix, lengths, marks = group
            if text.startswith(prefix, start):
                for length in lengths:
                    if text[start : start + length] in marks:
                        return text[start : start + length]
        return ""


def _common_beginning(marks: Collection[str]) -> str:
    first, last = min(marks), max(marks)
    return first[: next((at for at, each in enumerate(first) if last[at : at + 1] != each), len(first))]
