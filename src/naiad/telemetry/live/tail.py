"""The last entries of a kind, numbered, so that several readers find what is new to each of them."""

import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from naiad.telemetry.live.live_answer import TailPart

_T = TypeVar("_T")


class Tail(Generic[_T]):
    """Keeps the last entries; thread-safe."""

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._entries: deque[_T] = deque(maxlen=limit)

    def add(self, entry: _T) -> None:
        """Add an entry."""
        with self._lock:
            self._count += 1
            self._entries.append(entry)

    def part(self) -> TailPart[_T]:
        """Return what is kept."""
        with self._lock:
            return TailPart(os.getpid(), self._count, tuple(self._entries))


class TailReader(Generic[_T]):
    """What one reader has seen of the tails of all processes. It begins with the entries after its first look."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._has_begun = False

    def read(self, parts: Sequence[TailPart[_T]], limit: int) -> tuple[list[_T], int]:
        """Return the newest entries since the last call, at most `limit`, and the number of those left out."""
        found: list[_T] = []
        new_count = 0
        for part in parts:
            # A process that starts later has no entries from before the first look.
            seen = self._seen.get(part.source, 0 if self._has_begun else part.count)
            fresh = max(0, part.count - seen)
            new_count += fresh
            found += part.entries[-fresh:] if fresh else ()
        self._seen = {part.source: part.count for part in parts}
        self._has_begun = True
        kept = found[-limit:]
        return kept, new_count - len(kept)
