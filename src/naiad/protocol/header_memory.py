"""Chooses the decoded headers to cache: the headers of requests that the engine admitted.

A decoder does not see the result of a request. It proposes a header after decoding. The engine admits the request or
rejects it, and notes an admission in the header itself. When the decoder meets the next unknown header, it settles
the proposals: admitted headers enter their cache, rejected headers are dropped with the few other proposals, which
are bounded in number and size.
"""

from collections import deque
from typing import Any

from naiad.core.bounded_cache import BoundedCache
from naiad.core.request import RequestHeader

_MAX_PROPOSALS = 16


class HeaderMemory:
    """The proposals of one decoder."""

    __slots__ = ("_proposals",)

    def __init__(self) -> None:
        self._proposals: deque[tuple[RequestHeader, BoundedCache[Any, Any], Any, Any, int]] = deque(
            maxlen=_MAX_PROPOSALS
        )

    def propose(self, header: RequestHeader, cache: BoundedCache[Any, Any], key: Any, value: Any, size: int) -> None:
        """Cache `value` if `header` is admitted; a header that is too large is dropped at once."""
        if size <= cache.max_entry_bytes:
            self._proposals.append((header, cache, key, value, size))

    def settle(self) -> None:
        """Cache the headers that were admitted since the last call."""
        for _ in range(len(self._proposals)):
            proposal = self._proposals.popleft()
            header, cache, key, value, size = proposal
            if header.admission is not None:
                cache.remember(key, value, size)
            else:
                self._proposals.append(proposal)
