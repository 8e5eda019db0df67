"""The time limit of requests: one timer for all of a target, since all have the same limit."""

import asyncio
import time
from collections.abc import Callable

_SWEEPS_PER_TIMEOUT = 20
_SHORTEST_SWEEP_S, _LONGEST_SWEEP_S = 0.005, 1.0


class Deadlines:
    """Calls `expire(before_ns, message)` at intervals: requests that have started before are to fail."""

    def __init__(self, timeout_s: float, expire: Callable[[int, str], None]) -> None:
        """A timeout of 0 is none."""
        self._timeout_s = timeout_s
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._timer is None and self._timeout_s > 0:
            self._arm()

    def stop(self) -> None:
        """Stop; `start` may be called again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        interval_s = min(max(self._timeout_s / _SWEEPS_PER_TIMEOUT, _SHORTEST_SWEEP_S), _LONGEST_SWEEP_S)
        self._timer = asyncio.get_running_loop().call_later(interval_s, self._sweep)

    def _sweep(self) -> None:
        self._arm()
        self._expire(time.monotonic_ns() - int(self._timeout_s * 1e9), f"no response within {self._timeout_s:g} s")
