"""What the connections of one HTTP/1.1 endpoint share."""

from collections.abc import Callable
from typing import Protocol

from naiad.frontend.exchange import HttpExchange
from naiad.frontend.http1_answer import AnswerHeads
from naiad.frontend.http1_head import HeadCache
from naiad.frontend.http1_limits import Http1Limits

_RECEIVE_BYTES = 65536

Handle = Callable[[HttpExchange], None]


class WatchedConnection(Protocol):
    """What the endpoint's owner does to a connection."""

    def restart_clock(self) -> None:
        """Begin a new phase."""

    def check_clock(self, now_ns: int) -> None:
        """Act when the current phase has lasted too long."""

    def abort(self) -> None:
        """Drop the connection."""


class Http1Endpoint:
    """Limits, caches, the buffer to receive into, and the registry of open connections."""

    def __init__(
        self,
        handle: Handle,
        limits: Http1Limits,
        on_change: Callable[[], None],
        on_close: Callable[[], None],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """`call_later` is the loop's; after 0 s other connections have been read."""
        self.handle = handle
        self.limits = limits
        self.heads = HeadCache(limits)
        self.answer_heads = AnswerHeads()
        self.receive_bytes = _RECEIVE_BYTES
        self.receive_buffer = bytearray(_RECEIVE_BYTES)
        self.receive_view = memoryview(self.receive_buffer)
        self.connections: set[WatchedConnection] = set()
        self.is_draining = False
        self.call_later = call_later
        self._on_change = on_change
        self._on_close = on_close

    def register(self, connection: WatchedConnection) -> bool:
        """Add a connection; False when there are too many."""
        if len(self.connections) >= self.limits.connections:
            return False
        self.connections.add(connection)
        self._on_change()
        return True

    def unregister(self, connection: WatchedConnection) -> None:
        """Remove a connection that was lost."""
        self.connections.discard(connection)
        self._on_change()
        self._on_close()
