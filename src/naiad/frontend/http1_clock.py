"""The clock of an HTTP/1.1 connection: how long its current phase has lasted."""


class PhaseClock:
    """Shared by the parts of a connection: whichever begins a phase restarts it."""

    __slots__ = ("start_ns",)

    def __init__(self) -> None:
        self.start_ns = 0
        """Monotonic time of the first sweep of the phase, 0 before: no request pays for reading a clock."""

    def restart(self) -> None:
        """A new phase begins; the next sweep notes when."""
        self.start_ns = 0

    def elapsed_s(self, now_ns: int) -> float | None:
        """Return how long the phase has lasted; None when it begins now."""
        if not self.start_ns:
            self.start_ns = now_ns
            return None
        return (now_ns - self.start_ns) / 1e9
