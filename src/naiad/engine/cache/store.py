"""Where cached responses are kept: what a store does, and the one in the server's own memory."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from naiad.core.parameters import NO_PARAMETERS, ParameterValue
from naiad.core.tensor import Buffer, TensorSpec

ENTRY_OVERHEAD_BYTES = 512
"""What an entry takes besides its data, roughly."""


class CachedResponse(NamedTuple):
    """The outputs of a response, and the parameters that the model gave it."""

    outputs: Sequence[TensorSpec]
    data: Sequence[Buffer]
    parameters: Mapping[str, ParameterValue] = NO_PARAMETERS

    @property
    def byte_size(self) -> int:
        """What it takes in memory."""
        parameters = self.parameters
        extra = sum(len(name) + len(str(value)) for name, value in parameters.items()) if parameters else 0
        return ENTRY_OVERHEAD_BYTES + sum(map(len, self.data)) + extra


class Share:
    """What one model may take of a store, and what it takes: the store's to change."""

    __slots__ = ("byte_size", "keys", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.byte_size = 0
        self.keys: OrderedDict[bytes, None] = OrderedDict()
        """What was not used for longest comes first."""


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

    is_shared: bool
    """Whether other servers find what this one keeps."""

    def get(self, key: bytes) -> CachedResponse | None:
        """Return what is kept under a key, None for nothing."""

    def fetch(self, key: bytes, found: Callable[[CachedResponse | None], object]) -> bool:
        """Begin to look elsewhere, and call `found` on the loop; False when there is no elsewhere to look."""

    def put(self, key: bytes, response: CachedResponse, share: Share | None = None) -> None:
        """Keep a response, as part of the share of its model if that is limited here."""

    def counts(self) -> CacheCounts:
        """Return what it holds; called on any thread."""

    async def close(self) -> None:
        """Release everything; called on the event loop."""


class LocalStore:
    """Keeps the responses that were used last, up to a number of bytes: over all models, and of a share."""

    is_shared = False

    def __init__(self, size_bytes: int, ttl_s: float = 0.0, now_s: Callable[[], float] = time.monotonic) -> None:
        """`ttl_s`: how long a response counts; 0 for ever."""
        self._size_bytes = size_bytes
        self._ttl_s = ttl_s
        self._now_s = now_s
        self._entries: OrderedDict[bytes, tuple[CachedResponse, float, Share | None]] = OrderedDict()
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
        if entry[2] is not None:
            entry[2].keys.move_to_end(key)
        return entry[0]

    def fetch(self, key: bytes, found: Callable[[CachedResponse | None], object]) -> bool:
        """There is no elsewhere."""
        return False

    def put(self, key: bytes, response: CachedResponse, share: Share | None = None) -> None:
        """Keep a response, and forget those that were not used for longest until there is room.

        A share that is full makes room of its own: it takes nothing from other models.
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
        """Return what it holds."""
        oldest_s = min((at for _, at, _ in list(self._entries.values())), default=None)
        age_s = 0.0 if oldest_s is None else self._now_s() - oldest_s
        return CacheCounts(len(self._entries), self._byte_size, self._eviction_count, 0, age_s)

    async def close(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._byte_size = 0
