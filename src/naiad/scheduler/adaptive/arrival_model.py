"""When the next request comes, learned from the gaps between those that came.

The mean alone would not do: clients that wait for their answers send the next requests in a burst, and what pays is
to wait for the rest of a burst, not for the next one. So the distribution of gaps is kept, in bins of half an octave.
"""

from collections.abc import Sequence

from naiad.core.request import InferRequest

_BIN_COUNT = 2 * 44
"""Up to 2^43 ns, more than two hours."""
_MEMORY_COUNT = 512
"""Gaps after which the counts are halved."""
_CERTAIN_COUNT = 16
_SAMPLED = 4
"""One batch in so many is looked at once there were some: gaps cost more to sort than they tell."""


def _lower_ns(index: int) -> int:
    """Return the shortest gap of a bin."""
    octave, half = divmod(index, 2)
    if octave < 2:
        return (1 << octave >> 1) + half
    return (1 << (octave - 1)) + half * (1 << (octave - 2))


LOWER_NS = tuple(_lower_ns(index) for index in range(_BIN_COUNT + 1))
_MIDDLE_NS = tuple((LOWER_NS[i] + LOWER_NS[i + 1]) / 2 for i in range(_BIN_COUNT))


def bin_of(gap_ns: int) -> int:
    """Return the bin of a gap of at least 0 ns."""
    octave = gap_ns.bit_length()
    if octave < 2:
        return 2 * octave
    return min(_BIN_COUNT - 1, 2 * octave + ((gap_ns >> (octave - 2)) & 1))


class ArrivalModel:
    """The distribution of the gaps between arrivals, with forgetting."""

    __slots__ = ("_batches", "_counts", "_gap_count", "_gap_sum_ns", "_seen", "newest_ns")

    def __init__(self) -> None:
        self._counts = [0.0] * _BIN_COUNT
        self._seen = 0
        """Gaps in the bins, forgotten or not."""
        self._batches = 0
        self._gap_count = 0
        self._gap_sum_ns = 0
        self.newest_ns = 0
        """When the last request came; 0 before the first."""

    @property
    def is_certain(self) -> bool:
        """Whether enough was seen to decide by it."""
        return self._seen >= _CERTAIN_COUNT

    @property
    def mean_gap_ns(self) -> float:
        """The mean gap; 0 before there is one."""
        return self._gap_sum_ns / self._gap_count if self._gap_count else 0.0

    def observe(self, requests: Sequence[InferRequest]) -> None:
        """Learn when the requests of a batch, at least one, have come."""
        # hot: once a batch
        before_ns, self.newest_ns = self.newest_ns, requests[-1].arrival_ns
        self._batches += 1
        if self._seen >= _MEMORY_COUNT and self._batches % _SAMPLED:
            return
        if before_ns:
            self._learn(before_ns, [request.arrival_ns for request in requests])

    def _learn(self, before_ns: int, arrivals_ns: Sequence[int]) -> None:
        self._gap_sum_ns += max(0, arrivals_ns[-1] - before_ns)
        counts = self._counts
        for arrival_ns in arrivals_ns:
            counts[bin_of(arrival_ns - before_ns) if arrival_ns > before_ns else 0] += 1.0
            before_ns = arrival_ns
        seen = self._seen
        self._seen = seen + len(arrivals_ns)
        self._gap_count += len(arrivals_ns)
        if self._seen // _MEMORY_COUNT > seen // _MEMORY_COUNT:
            self._counts = [count / 2 for count in counts]
            self._gap_sum_ns //= 2
            self._gap_count //= 2

    def probability_within(self, waited_ns: int, more_ns: int) -> float:
        """Return how likely a request comes in the next `more_ns` when none has for `waited_ns`."""
        first, last = bin_of(max(0, waited_ns)), bin_of(max(0, waited_ns + more_ns))
        beyond = sum(self._counts[first:])
        return sum(self._counts[first:last]) / beyond if beyond else 0.0

    def best_hold_ns(self, waited_ns: int, requests: int, turn_ns: float, overhead_ns: float) -> int:
        """Return for how long it pays to wait for one more request; 0 for not at all.

        `requests` wait already, and no other has come for `waited_ns`. Who misses this batch waits up to `turn_ns`
        for the next. Holding for d costs each of those requests, and each that comes during the next turn, the time
        until the next request or d; it saves the one that comes in time the rest of its turn. With arrivals that do
        not depend on each other this never pays, whatever their rate; with bursts it does.
        """
        counts = self._counts
        first = bin_of(max(0, waited_ns))
        beyond = sum(counts[first:])
        if not beyond:
            return 0
        delayed = requests + turn_ns / max(1.0, self.mean_gap_ns)
        best, best_ns = 0.1 * turn_ns, 0
        came = saved = spent = 0.0
        for index in range(first, _BIN_COUNT):
            end_ns = LOWER_NS[index + 1] - waited_ns
            if end_ns > turn_ns:
                break
            count = counts[index]
            if not count:
                continue
            gap_ns = max(0.0, _MIDDLE_NS[index] - waited_ns)
            came += count
            saved += count * (turn_ns - gap_ns)
            spent += count * gap_ns
            # Those that have not come by then have been waited for in vain.
            cost = (spent + (beyond - came) * end_ns) * delayed
            gain = (saved - cost) / beyond - overhead_ns * delayed
            if gain > best:
                best, best_ns = gain, end_ns
        return best_ns
