"""Token buckets against floods of frames that cost the peer nothing."""


class FloodMeter:
    """Counts events against a burst and a sustained rate; time is an argument (monotonic ns)."""

    __slots__ = ("_burst", "_last_ns", "_per_s", "_tokens")

    def __init__(self, burst: int, per_s: int) -> None:
        self._burst = burst
        self._per_s = per_s
        self._tokens = float(burst)
        self._last_ns = 0

    def is_exceeded(self, now_ns: int) -> bool:
        """Count one event at `now_ns` and tell whether it is one too many."""
        elapsed_ns = now_ns - self._last_ns
        if elapsed_ns > 0:
            self._last_ns = now_ns
            self._tokens = min(self._burst, self._tokens + elapsed_ns * self._per_s / 1e9)
        self._tokens -= 1
        return self._tokens < 0

    def refund(self, count: int) -> None:
        """Allow `count` more events, never more than the burst."""
        self._tokens = min(self._burst, self._tokens + count)
