"""A least rate with a grace: how far a peer may fall behind it."""


class LeastRate:
    """Judges a growing count of bytes: a body that comes, or answers that are taken. Time is an argument.

    A peer begins with a grace. Time uses it up, bytes earn it back at the rate, and never more than the whole of it:
    a fast beginning does not pay for a long silence later.
    """

    __slots__ = ("_bytes_per_s", "_grace_ns", "_left_ns", "_seen_bytes", "_seen_ns")

    def __init__(self, bytes_per_s: int, grace_s: float, now_ns: int = 0) -> None:
        """Without `now_ns` the grace begins with the first look."""
        self._bytes_per_s = bytes_per_s
        self._grace_ns = self._left_ns = int(grace_s * 1e9)
        self._seen_bytes = 0
        self._seen_ns = now_ns

    def is_too_slow(self, total_bytes: int, now_ns: int) -> bool:
        """Record `total_bytes` so far; return whether the grace is used up."""
        elapsed_ns = now_ns - self._seen_ns if self._seen_ns else 0
        earned_ns = max(0, total_bytes - self._seen_bytes) * 1_000_000_000 // self._bytes_per_s
        self._left_ns = min(self._grace_ns, self._left_ns - elapsed_ns + earned_ns)
        self._seen_bytes = total_bytes
        self._seen_ns = now_ns
        return self._left_ns <= 0

    def excuse(self, now_ns: int) -> None:
        """Leave the time since the last look out: the peer could not go on."""
        self._seen_ns = now_ns
