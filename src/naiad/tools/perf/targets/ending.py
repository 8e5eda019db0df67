"""How a request ends: by its responses, a failure, or its time limit."""

import asyncio
import time
from collections.abc import Callable

from naiad.tools.perf.perf_exchange import CONNECTION as CONNECTION
from naiad.tools.perf.perf_exchange import TIMEOUT as TIMEOUT
from naiad.tools.perf.perf_exchange import WRONG_ANSWER as WRONG_ANSWER
from naiad.tools.perf.perf_exchange import SentRequest


def fail(exchange: SentRequest, kind: str, message: str) -> None:
    """End a request with a failure."""
    exchange.end_ns = time.monotonic_ns()
    exchange.failure = kind
    exchange.failure_message = message
    exchange.on_end(exchange)


def count_response(exchange: SentRequest, now_ns: int) -> None:
    """Note a response of a model that may be decoupled."""
    exchange.responses += 1
    if exchange.responses == 1:
        exchange.first_ns = now_ns
    elif exchange.gaps_ns is None:
        exchange.gaps_ns = [now_ns - exchange.end_ns]
    else:
        exchange.gaps_ns.append(now_ns - exchange.end_ns)
    exchange.end_ns = now_ns
    if exchange.on_response is not None:
        exchange.on_response(exchange)


def finish(exchange: SentRequest, now_ns: int) -> None:
    """End a request after its final response, which may be empty."""
    exchange.end_ns = exchange.end_ns or now_ns
    exchange.first_ns = exchange.first_ns or now_ns
    exchange.on_end(exchange)


_SWEEPS_PER_TIMEOUT = 20
_SHORTEST_SWEEP_S, _LONGEST_SWEEP_S = 0.005, 1.0


class TargetDeadlines:
    """The time limit of requests: one timer for all of a target, since all have the same limit.

    Calls `expire(before_ns, message)` at intervals: requests that have started before are to fail.
    """

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
