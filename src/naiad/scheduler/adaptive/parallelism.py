"""What instances gain from executing at the same time, learned from how much they slow each other down."""

from collections.abc import Sequence

_STEP = 1 / 16
"""Weight of a new observation once there are some."""
_WORTHWHILE = 0.9
"""A level with this share of the best throughput will do, if fewer instances reach it."""
_THRASHING = 2.0
"""A batch is never taken to be slowed down by more than this many times the batches beside it."""
_KEPT = 1.0 - 1.0 / 32
"""Of what is remembered, with each observation."""
_PRIOR_WEIGHT = 2.0
"""How many observations the guess weighs that a device is shared."""
_CLIP = 4.0
"""A batch that takes more than this many times what was expected counts as one that does: there are pauses."""
_FIRST_INTERVAL = 8
_LAST_INTERVAL = 256
_PROBES_PER_INTERVAL = 4
_MOST_BETWEEN_NS = 1_000_000
"""More than this between two batches was a pause of the machine."""


class Parallelism:
    """How many batches are worth executing at once.

    `slowdown[n - 1]` is how many times longer a batch takes when n execute than when it is alone. It begins with n,
    as if all shared one device; what is really gained is found out by probes: batches that may begin although as
    many execute as are known to be worthwhile. Probes are frequent at first and rare later.

    Between two batches an instance answers one and gathers the other. Another one can execute meanwhile, so instances
    gain something even where they share a device, much if the model is small.
    """

    __slots__ = (
        "_between_ns",
        "_duration_ns",
        "_interval",
        "_probes",
        "_time_ns",
        "_turns",
        "_work_ns",
        "gain",
        "slowdown",
        "worthwhile",
    )

    def __init__(self, instance_count: int) -> None:
        self.slowdown = [float(level) for level in range(1, instance_count + 1)]
        self.worthwhile = 1
        """How many batches are worth executing at once."""
        self.gain = 1.0
        """How many instances' worth of work the worthwhile number of instances does together."""
        self._between_ns = 0.0
        """From the end of an execution to the beginning of the next one of the same instance."""
        self._duration_ns = 0.0
        """What the batches took alone that were beside others."""
        self._time_ns = [0.0] * instance_count
        """For each level: how long batches executed beside so many ..."""
        self._work_ns = [0.0] * instance_count
        """... and how long that would have taken alone."""
        self._interval = _FIRST_INTERVAL
        self._probes = 0
        self._turns = 0

    def _slowed_cycles(self) -> list[float]:
        """Return how many times longer it takes from the beginning of a batch to that of the next, for each level."""
        between_ns, duration_ns = self._between_ns, self._duration_ns
        if not duration_ns:
            return self.slowdown
        whole_ns = duration_ns + between_ns
        return [(slowed * duration_ns + between_ns) / whole_ns for slowed in self.slowdown]

    def observe_between(self, ns: int) -> None:
        """Learn what passed from the end of an execution to the beginning of the next one of the same instance."""
        self._between_ns += _STEP * (min(ns, _MOST_BETWEEN_NS) - self._between_ns)

    def slowed(self, beside: float) -> float:
        """Return how many times longer a batch takes with on average `beside` others beside it."""
        level, share = self._level(beside)
        if level + 1 >= len(self.slowdown):
            return self.slowdown[-1]
        return 1.0 / ((1.0 - share) / self.slowdown[level] + share / self.slowdown[level + 1])

    def _level(self, beside: float) -> tuple[int, float]:
        level = min(int(beside), len(self.slowdown) - 1)
        return level, beside - level

    def should_probe(self) -> bool:
        """Tell whether the batch that would wait for its turn may begin; called once for each such batch."""
        if self.worthwhile == len(self.slowdown):
            return False
        self._turns += 1
        if self._turns % self._interval:
            return False
        self._probes += 1
        if not self._probes % _PROBES_PER_INTERVAL:
            self._interval = min(_LAST_INTERVAL, 2 * self._interval)
        return True

    def observe(self, duration_ns: int, beside: float, alone_ns: float) -> None:
        """Learn from a batch that would have taken `alone_ns`, with on average `beside` others beside it.

        It has to be one that has begun beside another. To choose those that have had much company would be to choose
        the long ones, and to find that instances gain nothing from each other.
        """
        self._duration_ns += (alone_ns - self._duration_ns) * (_STEP if self._duration_ns else 1.0)
        level, share = self._level(beside)
        if level + 1 < len(self.slowdown) and (share >= 0.5 or not level):
            learned, others = level + 1, level
        else:
            learned, others, share = level, min(level + 1, len(self.slowdown) - 1), 1.0 - min(1.0, share)
        if not learned:
            return
        duration_ns = min(duration_ns, int(_CLIP * self.slowdown[learned] * alone_ns))
        work_ns = alone_ns - (1.0 - share) * duration_ns / self.slowdown[others]
        self._learn(learned, share * duration_ns, work_ns, alone_ns)

    def _learn(self, level: int, time_ns: float, work_ns: float, alone_ns: float) -> None:
        if not self._time_ns[level]:
            self._time_ns[level] = _PRIOR_WEIGHT * alone_ns * self.slowdown[level]
            self._work_ns[level] = _PRIOR_WEIGHT * alone_ns
        self._time_ns[level] = _KEPT * self._time_ns[level] + time_ns
        self._work_ns[level] = _KEPT * self._work_ns[level] + work_ns
        least, most = self.slowdown[level - 1], 1.0 + _THRASHING * level
        work_ns = max(self._work_ns[level], self._time_ns[level] / most, 1.0)
        self.slowdown[level] = max(least, self._time_ns[level] / work_ns)
        slowed_cycles = self._slowed_cycles()
        worthwhile = _fewest_worthwhile(slowed_cycles)
        if worthwhile > self.worthwhile:
            # One more may be worthwhile, too: find out soon.
            self._interval, self._probes = _FIRST_INTERVAL, 0
        self.worthwhile = worthwhile
        self.gain = worthwhile / slowed_cycles[worthwhile - 1]


def _fewest_worthwhile(slowdown: Sequence[float]) -> int:
    throughputs = [level / slowed for level, slowed in enumerate(slowdown, 1)]
    enough = _WORTHWHILE * max(throughputs)
    return next(level for level, throughput in enumerate(throughputs, 1) if throughput >= enough)
