"""A dictionary that is bounded in entries and in bytes and evicts its oldest entry first."""

from collections.abc import Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class BoundedCache(dict[_K, _V], Generic[_K, _V]):
    """Look up as in any dictionary; add with `remember`, which needs the size of the entry."""

    __slots__ = ("_sizes", "max_bytes", "max_entries", "max_entry_bytes", "used_bytes")

    def __init__(self, *, max_entries: int, max_bytes: int, max_entry_bytes: int) -> None:
        super().__init__()
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.max_entry_bytes = max_entry_bytes
        self.used_bytes = 0
        """Sum of the sizes of all entries."""
        self._sizes: dict[_K, int] = {}

    def __setitem__(self, key: _K, value: _V) -> None:
        raise TypeError("use remember(), which counts bytes")

    def remember(self, key: _K, value: _V, size: int) -> None:
        """Add an entry of about `size` bytes; an entry that is too large is not kept."""
        if size > self.max_entry_bytes:
            return
        self.forget(key)
        while self and (len(self) >= self.max_entries or self.used_bytes + size > self.max_bytes):
            self.forget(next(iter(self)))
        super().__setitem__(key, value)
        self._sizes[key] = size
        self.used_bytes += size

    def forget(self, key: _K) -> None:
        """Remove an entry, if it exists."""
        if key in self:
            super().__delitem__(key)
            self.used_bytes -= self._sizes.pop(key)

    def clear(self) -> None:
        """Remove all entries."""
        super().clear()
        self._sizes.clear()
        self.used_bytes = 0
