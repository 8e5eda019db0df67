"""Busy polling of the event loop while an expected event is worth a spin wait, and a hint about serial clients.

Waking a sleeping process on another core takes 50 us and more, on virtual machines as long as a small model takes,
and its caches are cold. While clients send one request after the other, and a worker responds quickly, the loop
therefore polls for a moment before it sleeps. One HTTP connection on two cores: 2,500 requests/s of a small Python
model became 5,900 at 320 instead of 370 us of CPU each, 4,470 of an ONNX model 5,860 at 175 instead of 185.

Whether it helps depends on the machine and on what else runs there: many virtual machines poll in their kernel before
they halt, and one client then gets its responses as soon without busy polling, for a fifth less CPU. Nothing in the
process shows it beforehand, so `PollingTrial` measures both.

`SerialClients` detects clients that send one request at a time to a batching model.
"""

import functools
import os
import time
from typing import ClassVar

from naiad.backend.cores import allowed_cpu_count, cgroup_quota, is_charged_for_waiting, usable_cores
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.environment.ports import Loop
from naiad.worker.busy_polling import is_trial

ENOUGH = 1000
"""Batches of one request in a row, without other requests in flight, before the hint."""


class SerialClients:
    """Counts batches of one request without other requests in flight; reports a long series once."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def observe(self, in_flight: int) -> bool:
        """Note a batch with the requests in flight, its own included; return True for the last one of a long
        series.
        """
        # hot: once a batch
        if in_flight > 1:
            self._count = 0
            return False
        self._count += 1
        return self._count == ENOUGH


def watch_for_serial_clients(config: ModelConfig) -> SerialClients | None:
    """Return the detector of a model; None for a model that never batches, or with decoupled batches."""
    batches = config.HasField("dynamic_batching") and config.max_batch_size > 1
    return SerialClients() if batches and not config.model_transaction_policy.decoupled else None


def serial_clients_hint(name: str) -> str:
    """Return the hint about a model."""
    return (
        f"model '{name}' batches, but its last {ENOUGH} requests came one at a time: each was sent after the "
        "previous response. Nothing can batch then; send requests side by side "
        "(several connections, or asynchronous calls)"
    )


_MISS_COST = 2
"""Number of events in time that offset a late one."""
_CREDIT_LIMIT = 32
_RUNS = 4
RUN_COUNT = 128
"""Requests of one run of a trial."""
HOLD_COUNT = 4096
"""Requests after a trial until the next one: it costs a twentieth of what the better way saves."""
LONGEST_PERIOD_NS = 5_000_000
"""A longer time between two responses says nothing: the client had other work."""
_MARGIN = 1.2
"""By how much faster busy polling has to make a lone client."""
_YIELD_NS = 50_000
"""Time before the core is yielded: an event that another core is about to send arrives sooner, and a yield to a
process of low priority takes milliseconds."""


class PollingTrial:
    """Compares how long a lone client takes from request to request with busy polling and without.

    Four short runs take turns, so that a slow moment of the machine meets both. What was better then holds for a
    longer run. Busy polling takes a quarter more CPU for each request, so it has to save about as much of the time.
    """

    __slots__ = ("_count", "_last_ns", "_polling_ns", "_run", "_sleeping_ns", "polls")

    def __init__(self) -> None:
        self.polls = True
        """Whether to poll for the next request."""
        self._run = 0
        """Number of the run: an even one polls and an odd one sleeps; the one after them is the longer run."""
        self._count = 0
        self._last_ns = 0
        self._polling_ns = self._sleeping_ns = 0
        """Sums of the runs with busy polling, and without; earlier trials count half as much each time."""

    def note(self, now_ns: int) -> bool:
        """Note that a response was sent, and return `polls` for the next request."""
        # hot: once a request of a lone client
        period_ns, self._last_ns = now_ns - self._last_ns, now_ns
        if period_ns < LONGEST_PERIOD_NS:
            self._count += 1
            if self._run < _RUNS and self.polls:
                self._polling_ns += period_ns
            elif self._run < _RUNS:
                self._sleeping_ns += period_ns
            if self._count >= (RUN_COUNT if self._run < _RUNS else HOLD_COUNT):
                self._end_run()
        return self.polls

    def _end_run(self) -> None:
        self._count = 0
        self._run += 1
        if self._run < _RUNS:
            self.polls = self._run % 2 == 0
        elif self._run == _RUNS:
            self.polls = self._polling_ns * _MARGIN < self._sleeping_ns
        else:
            self._run, self.polls = 0, True
            self._polling_ns //= 2
            self._sleeping_ns //= 2


class BusyPolling:
    """Keeps the loop awake after `begin` until `end`, within a window, while that proves useful.

    Meanwhile the loop continues to handle all its events. Used on the loop only.
    """

    last_begin_ns: ClassVar[int] = 0
    """Start of the last busy polling in the process: while another one begins, events are in progress (a model calls
    models)."""

    __slots__ = (
        "_credit",
        "_end_ns",
        "_is_asleep",
        "_is_kept",
        "_is_possible",
        "_loop",
        "_trial",
        "_window_ns",
        "_yield_ns",
        "is_due",
    )

    def __init__(self, loop: Loop, window_ns: int, trial: PollingTrial | None = None) -> None:
        """`window_ns`: maximum time to stay awake. `trial` decides whether it helps; None if it always does."""
        self._loop = loop
        self._trial = trial
        self._window_ns = window_ns
        self._is_possible = may_busy_poll(is_tried=trial is not None)
        self._is_kept = False
        self._end_ns = 0
        self._yield_ns = 0
        self._credit = 0
        self._is_asleep = False
        """Whether the loop sleeps at once until all parts of the request path try again, at the same time."""
        self.is_due = False
        """True between `begin` and `end`; a frequent caller of `end` can check it first."""

    def begin(self) -> None:
        """Note that an event is expected from now on."""
        if not self._is_possible:
            return
        now_ns = time.monotonic_ns()
        if self._trial is not None and not self._trial.note(now_ns):
            return
        if self._is_asleep and not is_trial(now_ns):
            return
        self.is_due = True
        BusyPolling.last_begin_ns = now_ns
        self._end_ns = now_ns + self._window_ns
        self._yield_ns = now_ns + _YIELD_NS
        if not self._is_kept:
            self._is_kept = True
            self._loop.call_soon(self._keep)

    def end(self) -> None:
        """Note that the event has arrived, or is no longer expected."""
        if self.is_due:
            self.is_due = self._is_asleep = False
            if self._credit < _CREDIT_LIMIT:
                self._credit += 1

    def _keep(self) -> None:
        """Let the loop return at once, within the window."""
        if not self.is_due:
            self._is_kept = False
            return
        now_ns = time.monotonic_ns()
        if now_ns >= self._end_ns:
            self._end_ns = BusyPolling.last_begin_ns + self._window_ns
        if now_ns < self._end_ns:
            if now_ns >= self._yield_ns:
                # The sender of the event may wait for this core: a kernel scheduler lets a running thread continue
                # for milliseconds.
                os.sched_yield()
            self._loop.call_soon(self._keep)
        else:
            self.is_due = self._is_kept = False
            self._note_miss(now_ns)

    def _note_miss(self, now_ns: int) -> None:
        if is_trial(now_ns):
            return
        self._credit -= _MISS_COST
        if self._credit < 0:
            self._credit = 0
            self._is_asleep = True


@functools.cache
def may_busy_poll(*, is_tried: bool) -> bool:
    """Return whether busy polling is possible: on one core it would block the thread that it waits for.

    `is_tried`: a trial decides whether it helps. Then one of several processes may also use a core beyond its share,
    which is mostly idle when a client is alone: without busy polling, a lone client got 0.72 of the requests/s of
    one process. When the cores are busy, the trial notices that it does not help.
    """
    if is_charged_for_waiting():
        return False
    return usable_cores() > 1 or (is_tried and cgroup_quota() is None and allowed_cpu_count() > 1)
