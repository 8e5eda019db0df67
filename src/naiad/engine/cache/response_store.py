"""Stores of cached responses: the interface, and the store in the server's own memory."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from naiad.core.parameters import NO_PARAMETERS, ParameterValue
from naiad.core.tensor import Buffer, TensorSpec

ENTRY_OVERHEAD_BYTES = 512
"""Approximate bytes of an entry besides its data."""


class CachedResponse(NamedTuple):
    """The outputs of a response, and the parameters of the model."""

    outputs: Sequence[TensorSpec]
    data: Sequence[Buffer]
    parameters: Mapping[str, ParameterValue] = NO_PARAMETERS

    @property
    def byte_size(self) -> int:
        """Its size in memory."""
        parameters = self.parameters
        extra = sum(len(name) + len(str(value)) for name, value in parameters.items()) if parameters else 0
        return ENTRY_OVERHEAD_BYTES + sum(map(len, self.data)) + extra


class Share:
    """The limit of one model in a store, and its current use, which the store maintains."""

    __slots__ = ("byte_size", "keys", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.byte_size = 0
        self.keys: OrderedDict[bytes, None] = OrderedDict()
        """Least recently used first."""


class CacheCounts(NamedTuple):
    """The contents and the counters of a store."""

    entry_count: int = 0
    byte_size: int = 0
    eviction_count: int = 0
    failure_count: int = 0
    """Failed operations; each is a miss."""
    oldest_age_s: float = 0.0


class ResponseStore(Protocol):
    """Stores responses by key; called on the event loop."""

    is_shared: bool
    """Whether other servers share the entries."""

    def get(self, key: bytes) -> CachedResponse | None:
        """Return the response of a key in this process, None without one."""

    def fetch(self, key: bytes, found: Callable[[CachedResponse | None], object]) -> bool:
        """Begin a remote lookup, and call `found` on the loop; return False if there is no remote store."""

    def put(self, key: bytes, response: CachedResponse, share: Share | None = None) -> None:
        """Store a response, as part of the share of its model if that is limited here."""

    def counts(self) -> CacheCounts:
        """Return the counts; called on any thread."""

    async def close(self) -> None:
        """Release everything; called on the event loop."""


class LocalCache:
    """Keeps the most recently used responses, up to a number of bytes in total and per share."""

    is_shared = False

    def __init__(self, size_bytes: int, ttl_s: float = 0.0, now_s: Callable[[], float] = time.monotonic) -> None:
        """`ttl_s`: lifetime of a response; 0 for no limit."""
        self._size_bytes = size_bytes
        self._ttl_s = ttl_s
        self._now_s = now_s
        self._entries: OrderedDict[bytes, tuple[CachedResponse, float, Share | None]] = OrderedDict()
        self._byte_size = 0
        self._eviction_count = 0

    def get(self, key: bytes) -> CachedResponse | None:
        """Return the response of a key, and mark it as used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self._ttl_s and self._now_s() - entry[1] > self._ttl_s:
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        if entry[2] is not None:
            entry[2].keys.move_to_end(key)
        return entry[0]

    def fetch(self, key: bytes, found: Callable[[CachedResponse | None], object]) -> bool:
        """Return False: there is no remote store."""
        return False

    def put(self, key: bytes, response: CachedResponse, share: Share | None = None) -> None:
        """Store a response, and evict the least recently used ones until there is room.

        A full share evicts only its own entries.
        """
        size = response.byte_size
        if size > self._size_bytes or (share is not None and size > share.limit_bytes):
            return
        if key in self._entries:
            self._remove(key)
        if share is not None:
            while share.byte_size + size > share.limit_bytes:
                self._evict(next(iter(share.keys)))
            share.keys[key] = None
            share.byte_size += size
        while self._byte_size + size > self._size_bytes:
            self._evict(next(iter(self._entries)))
        self._entries[key] = (response, self._now_s(), share)
        self._byte_size += size

    def _evict(self, key: bytes) -> None:
        self._remove(key)
        self._eviction_count += 1

    def _remove(self, key: bytes) -> None:
        response, _, share = self._entries.pop(key)
        size = response.byte_size
        self._byte_size -= size
        if share is not None:
            del share.keys[key]
            share.byte_size -= size

    def counts(self) -> CacheCounts:
        """Return the counts."""
        oldest_s = min((at for _, at, _ in list(self._entries.values())), default=None)
        age_s = 0.0 if oldest_s is None else self._now_s() - oldest_s
        return CacheCounts(len(self._entries), self._byte_size, self._eviction_count, 0, age_s)

    async def close(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._byte_size = 0
