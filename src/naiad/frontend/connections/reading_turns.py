"""Limits how long one turn of the event loop reads.

A connection yields after a few milliseconds, but hundreds of busy connections together would be read for more than a
second in one turn. Meanwhile nothing else has its turn: no response leaves, and a model that runs on the loop stands
still. After 10 ms of a turn the bytes of further connections therefore wait, and go on in the next turns:

    turn 1: A, B, C are read; D, E, F wait | responses | turn 2: D, E, F go on; what A sends waits | responses | ...

Connections go on in the order in which they began to wait, and those that were read in a turn come after those that
were not. Connections with few bytes have a line of their own, and half of a turn: a client with one request does not
wait for hundreds with a thousand each.

A read compares the time that it needs anyway with `look_ns`. While the loop has little to do, a turn is watched about
every 10 ms; watching costs a callback.
"""

import time
from collections import deque
from collections.abc import Callable

from naiad.frontend.long_work.slice_runner import CallSoon

_LONGEST_NS = 10_000_000
"""Reads of one turn."""
_UNWATCHED_NS = 10_000_000
"""After a turn without waiting connections, reads are not watched for this long."""
_FEW_BYTES = 2048
"""A connection with no more bytes takes little time."""
NEVER_NS = 1 << 62
"""As `look_ns`: no read asks."""

GoOn = Callable[[], object]
"""Continues with one connection, for a few milliseconds at most."""


class ReadingTurns:
    """The reads of the connections of one endpoint, and the connections that wait for a later turn."""

    __slots__ = ("_call_soon", "_clock_ns", "_is_watching", "_many", "_read", "_small", "look_ns")

    def __init__(self, call_soon: CallSoon, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._call_soon = call_soon
        self._clock_ns = clock_ns
        self.look_ns = 0
        """A read that begins at this time or later must ask `is_over`."""
        self._is_watching = False
        """`_begin` is called at the begin of the next turn."""
        self._small: deque[GoOn] = deque()
        """Connections with few bytes that wait, oldest first."""
        self._many: deque[GoOn] = deque()
        """Other connections that wait, oldest first."""
        self._read: list[GoOn] = []
        """Connections that wait although they were read in this turn; from the next turn on they are in `_many`."""

    @property
    def waiting_count(self) -> int:
        """Number of connections that wait."""
        return len(self._small) + len(self._many) + len(self._read)

    def is_over(self, now_ns: int) -> bool:
        """Return whether what is read now must wait, at a time not before `look_ns`."""
        if self._is_watching:
            return True
        self._watch(now_ns + _LONGEST_NS)
        return False

    def postpone(self, go_on: GoOn, waiting_bytes: int) -> None:
        """Call `go_on` in a later turn, for a connection whose bytes were not looked at in this one."""
        (self._small if waiting_bytes <= _FEW_BYTES else self._many).append(go_on)
        self._watch_if_needed()

    def yield_to_others(self, go_on: GoOn) -> None:
        """Call `go_on` in a later turn, for a connection that was read for long in this one."""
        self._read.append(go_on)
        self._watch_if_needed()

    def _watch_if_needed(self) -> None:
        if not self._is_watching:
            self._watch(self._clock_ns() + _LONGEST_NS)

    def _watch(self, look_ns: int) -> None:
        self.look_ns = look_ns
        self._is_watching = True
        self._call_soon(self._begin)

    def _begin(self) -> None:
        """Begin a turn: continue with the connections that wait, for as long as a turn may read."""
        self._is_watching = False
        began_ns = self._clock_ns()
        if not self.waiting_count:
            self.look_ns = began_ns + _UNWATCHED_NS
            return
        self._many.extend(self._read)
        self._read.clear()
        end_ns = began_ns + _LONGEST_NS
        self.look_ns = NEVER_NS  # those that go on now need not ask
        self._is_watching = True
        try:
            self._serve(self._small, began_ns + _LONGEST_NS // 2)
            self._serve(self._many, end_ns)
            self._serve(self._small, end_ns)
        finally:
            self._watch(0 if self._small or self._many else end_ns)

    def _serve(self, line: deque[GoOn], until_ns: int) -> None:
        """Continue with the connections of a line until the given time."""
        while line and self._clock_ns() < until_ns:
            line.popleft()()
