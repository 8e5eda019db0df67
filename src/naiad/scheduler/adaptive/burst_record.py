"""Whether waiting for the rest of bursts has paid so far.

Gaps between arrivals are told by a server that reads when it comes to it: after a pause of the machine requests that
were sent one by one look like a burst. So what holds have brought is compared with what they have cost, and where
they have lost there are none for a while.
"""

_TRIAL_COUNT = 8
"""Holds after which they are judged."""
_KEPT = 1.0 - 1.0 / 16
"""Of what is remembered, with each hold."""
_FIRST_PAUSE_COUNT = 64
"""Batches that are not held after holds have lost; twice as many each time."""
_LONGEST_PAUSE_COUNT = 16_384
_NONE_COUNT = 16
_NONE_PAUSE_COUNT = 256
"""Batches that are not looked at after so many of which none was worth holding."""


class BurstRecord:
    """The account of holds for the rest of a burst: whether they are worth trying."""

    __slots__ = ("_cost_ns", "_count", "_gain_ns", "_none_count", "_pause_count", "_paused_count")

    def __init__(self) -> None:
        self._gain_ns = 0.0
        self._cost_ns = 0.0
        self._count = 0
        self._none_count = 0
        self._pause_count = _FIRST_PAUSE_COUNT
        self._paused_count = 0

    def opens(self) -> bool:
        """Tell whether the next batch may be held for the rest of a burst; called once for each that is not yet."""
        if not self._paused_count:
            return True
        self._paused_count -= 1
        return False

    def note_none(self) -> None:
        """Learn that there was nothing to wait for; after many such batches it is not looked for in each."""
        self._none_count += 1
        if self._none_count >= _NONE_COUNT:
            self._none_count = 0
            self._paused_count = _NONE_PAUSE_COUNT

    def note(self, *, held_ns: int, before: int, came: int, turn_ns: float, mean_gap_ns: float) -> None:
        """Learn from a hold: `before` requests waited when it began, `came` have joined them.

        Those have been spared what would have been left of a turn of `turn_ns`. Those who were there, and those who
        come during the turn, wait longer by the hold.
        """
        gain_ns = came * max(0.0, turn_ns - held_ns)
        cost_ns = held_ns * (before + turn_ns / max(1.0, mean_gap_ns))
        self._gain_ns = _KEPT * self._gain_ns + gain_ns
        self._cost_ns = _KEPT * self._cost_ns + cost_ns
        self._count += 1
        self._none_count = 0
        if self._count < _TRIAL_COUNT:
            return
        if self._gain_ns >= self._cost_ns:
            self._pause_count = _FIRST_PAUSE_COUNT
            return
        self._paused_count = self._pause_count
        self._pause_count = min(_LONGEST_PAUSE_COUNT, 2 * self._pause_count)
        self._gain_ns = self._cost_ns = 0.0
        self._count = 0
