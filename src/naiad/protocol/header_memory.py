"""Which decoded headers are remembered: those that the engine has admitted.

A decoder does not see what becomes of a request. It proposes a header when it has decoded it. The engine admits the
request at once or refuses it, and notes an admission in the header itself. When the decoder meets the next header
that it does not know, it settles: headers that were admitted enter the cache they are meant for. Those that were
refused leave with the few proposals that are kept, whose number and size are bounded.
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
        """Have `value` remembered in `cache` if `header` is admitted; what is too large is forgotten at once."""
        if size <= cache.max_entry_bytes:
            self._proposals.append((header, cache, key, value, size))

    def settle(self) -> None:
        """Remember what has been admitted since."""
        for _ in range(len(self._proposals)):
            proposal = self._proposals.popleft()
            header, cache, key, value, size = proposal
            if header.admission is not None:
                cache.remember(key, value, size)
            else:
                self._proposals.append(proposal)
