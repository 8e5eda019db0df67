"""Overload: when requests arrive faster than a model executes them, the newest go first and the oldest are rejected.

A queue in order of arrival fails all clients under overload: each request executes just when its client is about to
time out. The guard distinguishes an overload from similar patterns:

- A burst is large, and then shrinks.
- A closed loop (N clients, each with one request at a time) keeps a long queue of constant length.
- An overload grows while it lasts; requests that their clients cancelled count as growth.

The guard checks the queue every `INTERVAL_NS`. A window between two checks grows when more requests arrived than were
taken. The rules, each of which has a test:

1. Overload begins after two or more growing windows in a row, when chance and batches do not explain the growth, and
   the oldest request has waited for longer than the target, or clients cancel queued requests.
2. During overload the newest request of a level goes first. Steps of ensembles and calls of models that have begun go
   before new requests; requests of a stream keep their order.
3. It ends when the oldest request is younger than the target, or when the queue neither grows nor shrinks: that is a
   closed loop, in which newest-first would starve some clients. The queue must be stable for as long as it grew,
   two to ten seconds: after a long overload a load near the capacity looks the same for a while, and in order of
   arrival all new requests would wait behind the old ones.
4. After the queue has grown for `max_wait_ns`, requests that have waited for longer are rejected, and while it grows
   the oldest are rejected when the queued requests hold more than `max_bytes`. No request is rejected otherwise, nor
   when chance may explain the growth of the last two seconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from naiad.core.request import InferRequest
from naiad.options.options import OverloadOptions
from naiad.scheduler.api import Dropped
from naiad.scheduler.queue import PriorityLevel, oldest_ns, overload_error

INTERVAL_NS = 250_000_000
NEVER_NS = 1 << 62
_FEWEST_WINDOWS = 2
_IMPATIENT_NS = 50_000_000
"""Replaces the target while clients cancel queued requests."""
_CLOSED_LOOP_NS = 2_000_000_000
"""Minimum time of constant length of the queue of a closed loop; growth also counts for this time."""
_FEWEST_TAKEN = 50
"""Minimum of requests and of full batches that must be taken in this time."""
_FEWEST_BATCHES = 20
_NOISE_BATCHES = 2
"""The length of a closed loop's queue varies by the executing batches."""
_SAMPLES = 256
"""Sample of requests that estimates the size of all."""


@dataclass(frozen=True, slots=True)
class OverloadPolicy:
    """Policy under overload for models without a queue policy in their configuration."""

    target_ns: int = 500_000_000
    """A growing queue is overloaded when its oldest request has waited for longer."""
    max_wait_ns: int = 10_000_000_000
    """Time of growth after which the oldest requests are rejected."""
    max_bytes: int = 0
    """Input bytes that may be queued while the queue grows; 0 for any number."""

    @classmethod
    def from_options(cls, options: OverloadOptions) -> "OverloadPolicy | None":
        """Return the policy of the server options; None for Triton's rule."""
        if options.policy == "none":
            return None
        return cls(options.target_ms * 1_000_000, options.max_wait_ms * 1_000_000, options.max_bytes)


class OverloadGuard:
    """Detects an overloaded queue and chooses the requests to reject."""

    def __init__(self, policy: OverloadPolicy | None, *, max_batch_size: int = 1) -> None:
        """Without a policy there is no overload, as in Triton."""
        self._policy = policy or OverloadPolicy()
        self._max_rows = max(1, max_batch_size)
        self.is_on = policy is not None
        self.look_ns = 1 if self.is_on else NEVER_NS
        """Time of the next call of `look`."""
        self.is_overloaded = False
        self.left_count = 0
        """Requests that left without execution since the last check; the scheduler counts them."""
        self.taken_count = 0
        """Requests taken since the last check; counted only while overloaded."""
        self._seen_ns = 0
        self._seen_count = 0
        """Requests queued at the last check."""
        self._window_count = 0
        """Growing windows in a row, with their growth, departures and duration."""
        self._excess = 0
        self._left = 0
        self._taken = 0
        self._duration_ns = 0
        self._growing_since_ns = 0
        """0 while an overloaded queue does not grow."""
        self._growth_ns = 0
        """Time that the overloaded queue has grown."""
        self._grew_ns = 0
        """Time of the last growth that chance does not explain."""

    def guard(self, now_ns: int, waiting_count: int, levels: Sequence[PriorityLevel]) -> tuple[bool, list[Dropped]]:
        """Check if it is time, and order the queue accordingly; `levels` has the least urgent last.

        Returns whether the queue is overloaded, and the rejected requests.
        """
        if now_ns < self.look_ns:
            for level in levels:
                level.alternate()
            return self.is_overloaded, []
        was_overloaded = self.is_overloaded
        self.look(now_ns, waiting_count, oldest_ns(levels))
        if self.is_overloaded != was_overloaded:
            for level in levels:
                if self.is_overloaded:
                    level.split()
                else:
                    level.join()
        return self.is_overloaded, [
            Dropped(each, overload_error(each)) for each in self._refuse(now_ns, waiting_count, levels)
        ]

    def look(self, now_ns: int, waiting_count: int, oldest_arrival_ns: int) -> None:
        """Judge a queue of `waiting_count` requests, the oldest of which arrived at `oldest_arrival_ns`."""
        window_ns = now_ns - self._seen_ns
        excess = waiting_count - self._seen_count + self.left_count
        left, taken = self.left_count, self.taken_count
        is_first = not self._seen_ns
        self._seen_ns, self._seen_count = now_ns, waiting_count
        self.left_count = self.taken_count = 0
        self.look_ns = now_ns + INTERVAL_NS
        if is_first:
            return
        age_ns = now_ns - oldest_arrival_ns if waiting_count else 0
        # A slow model has a slow queue: two of its executions are no overload.
        target_ns = max(self._policy.target_ns, 2 * window_ns)
        if self.is_overloaded:
            self._excess += excess
            self._taken += taken
            self._duration_ns += window_ns
            if left * 10 > taken:
                target_ns = _IMPATIENT_NS
            self._judge_overload(now_ns, age_ns <= target_ns)
        elif excess <= 0:
            self._restart()
        else:
            self._window_count += 1
            self._excess += excess
            self._left += left
            self._duration_ns += min(window_ns, 2 * INTERVAL_NS) if self._window_count == 1 else window_ns
            if self._window_count >= _FEWEST_WINDOWS:
                self._judge_growth(now_ns, waiting_count, age_ns, target_ns)

    def _judge_growth(self, now_ns: int, waiting_count: int, age_ns: int, target_ns: int) -> None:
        """Apply rule 1."""
        # In order of arrival, all requests since the oldest are queued.
        arrived = max(self._excess, waiting_count * self._duration_ns // max(1, age_ns))
        if self._left * 10 > arrived:
            target_ns = _IMPATIENT_NS
        if age_ns > target_ns and self._excess >= self._least_excess(arrived, 0.1, 3):
            self.is_overloaded = True
            self._growing_since_ns = now_ns - self._duration_ns
            self._growth_ns = self._duration_ns
            self._grew_ns = now_ns
            self._restart()

    def _judge_overload(self, now_ns: int, is_young: bool) -> None:
        """Apply rule 3."""
        if is_young:
            self._end()
            return
        if abs(self._excess) >= self._least_excess(self._taken + max(0, self._excess), 0.05, 2):
            if self._excess < 0:
                self._growing_since_ns = 0
            else:
                self._growing_since_ns = self._growing_since_ns or now_ns
                self._growth_ns += self._duration_ns
                self._grew_ns = now_ns
            self._restart()
        elif (
            self._duration_ns >= self._closed_loop_ns()
            and self._taken >= _FEWEST_TAKEN + _FEWEST_BATCHES * self._max_rows
        ):
            self._end()

    def _closed_loop_ns(self) -> int:
        """Return the minimum time of constant length of the queue of a closed loop."""
        return max(_CLOSED_LOOP_NS, min(self._growth_ns, self._policy.max_wait_ns))

    def _least_excess(self, arrived: int, share: float, deviations: int) -> float:
        """Return the growth that chance does not explain, for a Poisson process in batches."""
        return max(share * arrived, deviations * math.sqrt(arrived), _NOISE_BATCHES * self._max_rows)

    def _end(self) -> None:
        self.is_overloaded = False
        self._growing_since_ns = 0
        self._restart()

    def _restart(self) -> None:
        self._window_count = self._excess = self._left = self._taken = self._duration_ns = 0

    def _refuse(self, now_ns: int, waiting_count: int, levels: Sequence[PriorityLevel]) -> list[InferRequest]:
        """Apply rule 4: remove and return the requests to reject."""
        if not self._growing_since_ns or now_ns - self._grew_ns > _CLOSED_LOOP_NS:
            return []
        policy, left = self._policy, list[InferRequest]()
        if now_ns - self._growing_since_ns >= policy.max_wait_ns:
            for level in levels:
                left += level.pop_before(now_ns - policy.max_wait_ns)
        waiting_count -= len(left)
        if policy.max_bytes and waiting_count:
            mean_bytes = _mean_bytes(levels)
            surplus = waiting_count - int(policy.max_bytes / mean_bytes) if mean_bytes else 0
            for level in reversed(levels):
                if surplus > 0:
                    oldest = level.pop_oldest(surplus)
                    left += oldest
                    surplus -= len(oldest)
        self._seen_count -= len(left)
        return left


def _mean_bytes(levels: Sequence[PriorityLevel]) -> float:
    """Return the mean input bytes of a request, estimated from the newest ones of each level."""
    sizes = [
        sum(map(len, request.data))
        for level in levels
        for queue in level.queues
        for request in islice((newest for newest in reversed(queue.requests) if newest.queue is queue), _SAMPLES)
    ]
    return sum(sizes) / len(sizes) if sizes else 0.0
