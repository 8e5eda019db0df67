"""Where cached responses are kept: what a store does, and the one in the server's own memory."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from naiad.core.tensor import Buffer, TensorSpec

ENTRY_OVERHEAD_BYTES = 512
"""What an entry takes besides its data, roughly."""


class CachedResponse(NamedTuple):
    """The outputs of a response."""

    outputs: Sequence[TensorSpec]
    data: Sequence[Buffer]

    @property
    def byte_size(self) -> int:
        """What it takes in memory."""
        return ENTRY_OVERHEAD_BYTES + sum(map(len, self.data))


class CacheCounts(NamedTuple):
    """What a store holds and has done."""

    entry_count: int = 0
    byte_size: int = 0
    eviction_count: int = 0
    failure_count: int = 0
    """Times that the store could not be asked; each is a miss."""
    oldest_age_s: float = 0.0


class ResponseStore(Protocol):
    """Keeps responses by key; called on the event loop."""

    def get(self, key: bytes) -> CachedResponse | None:
        """Return what is kept under a key, None for nothing."""

    def fetch(self, key: bytes, found: Callable[[CachedResponse | None], object]) -> bool:
        """Begin to look elsewhere, and call `found` on the loop; False when there is no elsewhere to look."""

    def put(self, key: bytes, response: CachedResponse) -> None:
        """Keep a response."""

    def counts(self) -> CacheCounts:
        """Return what it holds; called on any thread."""

    def close(self) -> None:
        """Let go of everything."""


class LocalStore:
    """Keeps the responses that were used last, up to a number of bytes, over all models."""

    def __init__(self, size_bytes: int, ttl_s: float = 0.0, now_s: Callable[[], float] = time.monotonic) -> None:
        """`ttl_s`: how long a response counts; 0 for ever."""
        self._size_bytes = size_bytes
        self._ttl_s = ttl_s
        self._now_s = now_s
        self._entries: OrderedDict[bytes, tuple[CachedResponse, float]] = OrderedDict()
        self._byte_size = 0
        self._eviction_count = 0

    def get(self, key: bytes) -> CachedResponse | None:
        """Return what is kept under a key, which then counts as used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self._ttl_s and self._now_s() - entry[1] > self._ttl_s:
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def fetch(self, key: bytes, found: Callable[[CachedResponse | None], object]) -> bool:
        """There is no elsewhere."""
        return False

    def put(self, key: bytes, response: CachedResponse) -> None:
        """Keep a response, and forget those that were not used for longest until there is room."""
        size = response.byte_size
        if size > self._size_bytes:
            return
        if key in self._entries:
            self._remove(key)
        while self._byte_size + size > self._size_bytes:
            self._remove(next(iter(self._entries)))
            self._eviction_count += 1
        self._entries[key] = (response, self._now_s())
        self._byte_size += size

    def _remove(self, key: bytes) -> None:
        response, _ = self._entries.pop(key)
        self._byte_size -= response.byte_size

    def counts(self) -> CacheCounts:
        """Return what it holds."""
        oldest_s = min((at for _, at in list(self._entries.values())), default=None)
        age_s = 0.0 if oldest_s is None else self._now_s() - oldest_s
        return CacheCounts(len(self._entries), self._byte_size, self._eviction_count, 0, age_s)

    def close(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._byte_size = 0
