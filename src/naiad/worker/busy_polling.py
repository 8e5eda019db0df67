"""Waiting awake for the next batch, where that proves to be worth it.

A worker that sleeps needs about 50 us to be woken, which is as much as a small model takes. While single requests
come one right after the other - one client that waits for each answer - the worker looks for the next one for a
moment before it goes to sleep: 0.31 ms for a request of one HTTP client became 0.20 ms, at less CPU time. The event
loop does the same (engine/serving/busy_polling.py).

Several processes may have a part in a request: a model that calls models needs three. While one of them sleeps, what
the others wait for comes too late for them, so it never proves to be worth it for any. So whoever sleeps tries again
when all others do: the clock is the same for all. On a virtual machine whose host takes a sleeping core away, a model
that calls a model answered 360 to 1,600 requests/s of one client before, and 1,300 to 2,000 since, at less CPU time.
"""

from __future__ import annotations

import os
import select
import time

NEVER_AWAKE = "NAIAD_WORKER_NEVER_AWAKE"
"""The variable of its environment that tells a worker not to: a quota is charged for the time."""
AWAKE_NS = 600_000
"""How long to look for the next request before going to sleep."""
_MISS_COST = 2
"""How many requests in time make up for one that came later."""
_CREDIT_LIMIT = 32
TRIAL_PERIOD_NS = 400_000_000
TRIAL_NS = 12_000_000
"""For so long in each period all stay awake, whatever was learned before."""


def is_trial(now_ns: int) -> bool:
    """Whether this is a time at which all stay awake; of the clock that all processes of a machine share."""
    return now_ns % TRIAL_PERIOD_NS < TRIAL_NS


class SpinWait:
    """Decides before each wait whether to stay awake, from how that went before."""

    __slots__ = ("_credit", "_is_asleep", "_is_possible", "_poll", "had_single_request")

    def __init__(self, poll: select.poll) -> None:
        """`poll` watches what requests come on."""
        self._poll = poll
        # With one core, staying awake would keep the others from sending anything.
        has_cores = len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else False
        self._is_possible = has_cores and NEVER_AWAKE not in os.environ
        self._credit = 0
        self._is_asleep = False
        self.had_single_request = False
        """Whether the last batch was one request: with more of them in flight others need the core."""

    def wait(self) -> None:
        """Return when there is input, or when it is time to sleep until there is."""
        if not (self.had_single_request and self._is_possible):
            return
        now_ns = time.monotonic_ns()
        if self._is_asleep and not is_trial(now_ns):
            return
        poll = self._poll.poll
        end_ns = now_ns + AWAKE_NS
        while not poll(0):
            os.sched_yield()  # the server or its client may wait for this very core
            if time.monotonic_ns() > end_ns:
                self._note_miss(now_ns)
                return
        self._is_asleep = False
        if self._credit < _CREDIT_LIMIT:
            self._credit += 1

    def _note_miss(self, began_ns: int) -> None:
        """It came later, or not at all; what others missed as well while all tried proves nothing."""
        if is_trial(began_ns):
            return
        self._credit -= _MISS_COST
        if self._credit < 0:
            self._credit = 0
            self._is_asleep = True
