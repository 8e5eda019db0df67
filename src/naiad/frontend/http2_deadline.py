"""Deadlines of the calls of one connection with a single timer.

Clients repeat their timeout, so later calls have later deadlines: the timer is armed for the first and, when it goes
off, for the earliest of those that are open then. A call costs one comparison.
"""

from collections.abc import Callable, Iterable

from naiad.core.ports import Loop, TimerHandle
from naiad.frontend.http2_call import Http2Call

_SHORTEST_S = 0.001  # the loop's own granularity


class DeadlineTimer:
    """Calls `expire(call)` for calls whose deadline has passed."""

    __slots__ = ("_calls", "_expire", "_handle", "_loop", "_next_ns", "_now_ns")

    def __init__(
        self,
        loop: Loop,
        calls: Callable[[], Iterable[Http2Call]],
        expire: Callable[[Http2Call], None],
        now_ns: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._calls = calls
        self._expire = expire
        self._now_ns = now_ns
        self._handle: TimerHandle | None = None
        self._next_ns = 0

    def watch(self, deadline_ns: int, now_ns: int) -> None:
        """See that the timer goes off at `deadline_ns` at the latest."""
        if self._handle is not None:
            if self._next_ns <= deadline_ns:
                return
            self._handle.cancel()
        self._next_ns = deadline_ns
        self._handle = self._loop.call_later(max(_SHORTEST_S, (deadline_ns - now_ns) / 1e9), self._on_timer)

    def close(self) -> None:
        """Call the timer off and refer to no calls any more."""
        self._calls = tuple
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _on_timer(self) -> None:
        self._handle = None
        now_ns = self._now_ns()
        waiting = [call for call in self._calls() if call.deadline_ns and not call.is_local_closed]
        for call in waiting:
            if call.deadline_ns <= now_ns:
                self._expire(call)
        left = [call.deadline_ns for call in waiting if not call.is_local_closed]
        if left:
            self.watch(min(left), now_ns)
