"""The control calls that a process which starts later has to catch up with."""

import logging
from collections.abc import Iterator
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)

_LIMIT = 10_000
"""Entries; settings and regions are few, and a model has one however often it was loaded."""

ControlKey = tuple[str, ...]
"""What a call is about: kind and name; a later call with the same key takes the place of an earlier one."""

_E = TypeVar("_E")


class Journal(Generic[_E]):
    """Calls that succeeded, the last one of each key, in the order in which they were made."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._number = 0
        self._entries: dict[ControlKey, tuple[int, _E]] = {}

    def add(self, key: ControlKey, entry: _E) -> None:
        """Record a call."""
        self._entries.pop(key, None)
        self._number += 1
        self._entries[key] = (self._number, entry)
        if len(self._entries) > self._limit:
            oldest = next(iter(self._entries))
            del self._entries[oldest]
            _log.warning("too many control calls to remember; a process that starts later will lack %s", oldest)

    def undo(self, key: ControlKey) -> None:
        """Forget the calls whose keys begin with `key`: another call has undone them."""
        for undone in [known for known in self._entries if known[: len(key)] == key]:
            del self._entries[undone]

    def after(self, number: int) -> Iterator[tuple[int, _E]]:
        """Return the entries made after the one of that number, 0 for all, each with its own number."""
        return iter([found for found in self._entries.values() if found[0] > number])
