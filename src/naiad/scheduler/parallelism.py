"""What instances gain from executing at the same time, learned from how much they slow each other down."""

from collections.abc import Sequence

_STEP = 1 / 16
"""Weight of a new observation once there are some."""
_WORTHWHILE = 0.9
"""A level with this share of the best throughput will do, if fewer instances reach it."""
_THRASHING = 2.0
"""A batch is never taken to be slowed down by more than this many times the batches beside it."""
_CLIPPED_AFTER = 8
_CLIP = 0.2
"""A batch that strays further counts as one that does so much: some take many times as long, none as much less."""
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
        "_counts",
        "_duration_ns",
        "_interval",
        "_probes",
        "_turns",
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
        self._counts = [0] * instance_count
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
        return self.slowdown[level] * (1.0 - share) + self.slowdown[level + 1] * share

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

    def observe(self, ratio: float, beside: float, alone_ns: float) -> None:
        """Learn from a batch that took `ratio` times as long as alone, with on average `beside` others beside it."""
        self._duration_ns += (alone_ns - self._duration_ns) * (_STEP if self._duration_ns else 1.0)
        slowdown = self.slowdown
        level, share = self._level(beside)
        if share >= 0.5 and level + 1 < len(slowdown):
            self._learn(level + 1, slowdown[level] + (ratio - slowdown[level]) / share)
        elif level >= 1:
            upper = slowdown[level + 1] if level + 1 < len(slowdown) else slowdown[level]
            self._learn(level, (ratio - share * upper) / max(0.5, 1.0 - share) if share < 1.0 else ratio)

    def _learn(self, level: int, slowdown: float) -> None:
        self._counts[level] += 1
        least, most = self.slowdown[level - 1], 1.0 + _THRASHING * level
        step = max(_STEP, 1.0 / self._counts[level])
        away = min(most, max(least, slowdown)) - self.slowdown[level]
        if self._counts[level] > _CLIPPED_AFTER:
            away = min(_CLIP, max(-_CLIP, away))
        self.slowdown[level] += step * away
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
