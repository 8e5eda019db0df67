"""How long slow clients of one instance may keep other clients waiting: a common allowance, not one for each.

Ten clients that read nothing, one after the other, cost other clients no more than one of them. A client that catches
up gives back what it has used.
"""

_MOST_NS = 300_000_000
_RENEWAL = 20
"""Used time comes back at this fraction of the time that passes."""
_SAME_WAIT_NS = 300_000_000
"""Two checks that are further apart belong to different waits."""


class Patience:
    """The allowance. Time is an argument (monotonic ns)."""

    __slots__ = ("_left_ns", "_lent_ns", "_seen_ns")

    def __init__(self) -> None:
        self._left_ns = _MOST_NS
        self._lent_ns = 0
        """What clients have used that are still waited for."""
        self._seen_ns = 0

    def give_back(self) -> None:
        """Note that a client has caught up."""
        self._left_ns = min(_MOST_NS, self._left_ns + self._lent_ns)
        self._lent_ns = 0

    def settle(self) -> None:
        """Note that a client is not waited for any longer."""
        self._lent_ns = 0

    def spend(self, now_ns: int) -> bool:
        """Note that a request waits for a slow client; return whether any time is left for that."""
        elapsed_ns = now_ns - self._seen_ns if self._seen_ns else 0
        self._seen_ns = now_ns
        self._left_ns = min(_MOST_NS, self._left_ns + elapsed_ns // _RENEWAL)
        if elapsed_ns < _SAME_WAIT_NS:
            spent_ns = min(self._left_ns, elapsed_ns)
            self._left_ns -= spent_ns
            self._lent_ns += spent_ns
        return self._left_ns > 0


def reads_nothing(paused_bytes: int, unread_bytes: int) -> bool:
    """Return whether a client has taken nothing since its request was paused.

    `paused_bytes` were unread then, `unread_bytes` are now; -1 where the transport does not know. A request without
    unread bytes waits for the server, which encodes a large response in pieces.
    """
    return unread_bytes > 0 and 0 <= paused_bytes <= unread_bytes
