"""Waiting awake for the next batch, where that proves to be worth it.

A worker that sleeps needs about 50 us to be woken, which is as much as a small model takes. While single requests
come one right after the other - one client that waits for each answer - the worker looks for the next one for a
moment before it goes to sleep: 0.31 ms for a request of one HTTP client became 0.20 ms, at less CPU time. The event
loop does the same (engine/vigil.py).
"""

from __future__ import annotations

import os
import select
import time

NEVER_AWAKE = "NAIAD_WORKER_NEVER_AWAKE"
"""The variable of its environment that tells a worker not to: a quota is charged for the time."""
AWAKE_NS = 300_000
"""How long to look for the next request before going to sleep."""
_MISS_COST = 4
"""How many requests in time make up for one that came later."""
_CREDIT_LIMIT = 16
_ASLEEP_COUNT = 500
"""Batches that are waited for asleep before it is tried again."""


class Alertness:
    """Decides before each wait whether to stay awake, from how that went before."""

    __slots__ = ("_asleep_count", "_credit", "_is_possible", "_poll", "had_single_request")

    def __init__(self, poll: select.poll) -> None:
        """`poll` watches what requests come on."""
        self._poll = poll
        # With one core, staying awake would keep the others from sending anything.
        has_cores = len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else False
        self._is_possible = has_cores and NEVER_AWAKE not in os.environ
        self._credit = 0
        self._asleep_count = 0
        self.had_single_request = False
        """Whether the last batch was one request: with more of them in flight others need the core."""

    def wait(self) -> None:
        """Return when there is input, or when it is time to sleep until there is."""
        if not (self.had_single_request and self._is_possible):
            return
        if self._asleep_count:
            self._asleep_count -= 1
            return
        poll = self._poll.poll
        end_ns = time.monotonic_ns() + AWAKE_NS
        while not poll(0):
            os.sched_yield()  # the server or its client may wait for this very core
            if time.monotonic_ns() > end_ns:
                self._credit -= _MISS_COST
                if self._credit < 0:
                    self._credit = 0
                    self._asleep_count = _ASLEEP_COUNT
                return
        if self._credit < _CREDIT_LIMIT:
            self._credit += 1
