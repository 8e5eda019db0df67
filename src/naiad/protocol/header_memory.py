"""Chooses the decoded headers to cache: those that come again and again, of requests that the engine admitted.

Every request of a sequence may have a header of its own, for its sequence id and its flags. Such headers would push
those that are used all the time out of the cache, and what the backends know of a header would have to be found out
again. A header is therefore proposed only when it was already seen several times. What was seen is known by its hash
alone: a hash that two headers share brings one of them into the cache a little earlier, and nothing else.

A decoder does not see the result of a request. It proposes a header after decoding. The engine admits the request or
rejects it, and notes an admission in the header itself. When the decoder meets the next unknown header, it settles
the proposals: admitted headers enter their cache, rejected headers are dropped with the few other proposals, which
are bounded in number and size.
"""

from collections import deque
from collections.abc import Hashable
from typing import Any

from naiad.core.limits.bounded_cache import BoundedCache
from naiad.core.request import RequestHeader

_MAX_PROPOSALS = 16
SIGHTINGS = 4
"""How often a header is met before it is cached. The first requests of a model are decoded as often as that."""
_MAX_SEEN = 4096


class HeaderMemory:
    """The proposals of one decoder."""

    __slots__ = ("_proposals", "_seen")

    def __init__(self) -> None:
        self._proposals: deque[tuple[RequestHeader, BoundedCache[Any, Any], Any, Any, int]] = deque(
            maxlen=_MAX_PROPOSALS
        )
        self._seen: BoundedCache[int, int] = BoundedCache(
            max_entries=_MAX_SEEN, max_bytes=_MAX_SEEN, max_entry_bytes=1
        )

    def propose(self, header: RequestHeader, cache: BoundedCache[Any, Any], key: Any, value: Any, size: int) -> None:
        """Cache `value` if `header` is admitted and known well; a header that is too large is dropped at once."""
        if size <= cache.max_entry_bytes and self._is_frequent(cache, key):
            self._proposals.append((header, cache, key, value, size))

    def _is_frequent(self, cache: BoundedCache[Any, Any], key: Hashable) -> bool:
        mark = hash((id(cache), key))
        count = self._seen.get(mark, 0) + 1
        if count >= SIGHTINGS:
            return True
        self._seen.remember(mark, count, 1)
        return False

    def settle(self) -> None:
        """Cache the headers that were admitted since the last call."""
        for _ in range(len(self._proposals)):
            proposal = self._proposals.popleft()
            header, cache, key, value, size = proposal
            if header.admission is not None:
                cache.remember(key, value, size)
            else:
                self._proposals.append(proposal)
