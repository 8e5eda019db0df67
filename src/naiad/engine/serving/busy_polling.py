"""Keeping the event loop awake while something is due that is worth waiting for.

A process that sleeps needs 50 us and more to be woken on another core, on virtual machines as much as a small model
takes, and finds its caches cold. While clients send one request after the other, and a worker answers quickly, the
loop therefore looks for what comes next for a moment before it sleeps. One HTTP connection on two cores: 2,500
requests/s of a small Python model became 5,900 at 320 instead of 370 us of CPU each, 4,470 of an ONNX model 5,860 at
175 instead of 185.

Notices clients that send one request at a time to a model that batches.
"""

import functools
import os
import time
from typing import ClassVar

from naiad.backend.cores import is_charged_for_waiting, usable_cores
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.ports import Loop
from naiad.worker.busy_polling import is_trial

ENOUGH = 1000
"""Batches of one request in a row, with nothing beside them, that are worth a hint."""


class SerialClients:
    """Counts batches that had company in neither queue nor instances; tells once when there are many in a row."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def observe(self, in_flight: int) -> bool:
        """Note a batch while so many requests wait or execute, its own included; True when it is the last of many."""
        # hot: once a batch
        if in_flight > 1:
            self._count = 0
            return False
        self._count += 1
        return self._count == ENOUGH


def watch_for_serial_clients(config: ModelConfig) -> SerialClients | None:
    """Return what watches a model; None for one whose requests never share a batch, or whose batches stay open."""
    batches = config.HasField("dynamic_batching") and config.max_batch_size > 1
    return SerialClients() if batches and not config.model_transaction_policy.decoupled else None


def serial_clients_hint(name: str) -> str:
    """Return what to tell about a model."""
    return (
        f"model '{name}' batches, but its last {ENOUGH} requests came one at a time: the next was sent after the "
        "answer. Nothing can batch then; send requests side by side (several connections, or asynchronous calls)"
    )


_MISS_COST = 2
"""How many times in time make up for one that came too late."""
_CREDIT_LIMIT = 32


class BusyPolling:
    """Keeps the loop from sleeping after `begin` until `end`, for a while, if that proves to be worth it.

    Meanwhile the loop goes on looking at everything it watches. Used on the loop only.
    """

    last_begin_ns: ClassVar[int] = 0
    """When any vigil of the process began last: while others do, what is due is on its way (a model calls models)."""

    __slots__ = ("_credit", "_end_ns", "_is_asleep", "_is_kept", "_is_possible", "_loop", "_window_ns", "is_due")

    def __init__(self, loop: Loop, window_ns: int) -> None:
        """`window_ns`: how long to stay awake at most."""
        self._loop = loop
        self._window_ns = window_ns
        self._is_possible = may_busy_poll()
        self._is_kept = False
        self._end_ns = 0
        self._credit = 0
        self._is_asleep = False
        """Whether it is slept at once until all that have a part in requests try again, at the same time."""
        self.is_due = False
        """Between `begin` and `end`; who calls `end` often may ask before."""

    def begin(self) -> None:
        """Something is due from now on."""
        if not self._is_possible:
            return
        now_ns = time.monotonic_ns()
        if self._is_asleep and not is_trial(now_ns):
            return
        self.is_due = True
        BusyPolling.last_begin_ns = now_ns
        self._end_ns = now_ns + self._window_ns
        if not self._is_kept:
            self._is_kept = True
            self._loop.call_soon(self._keep)

    def end(self) -> None:
        """It has come, or is no longer waited for."""
        if self.is_due:
            self.is_due = self._is_asleep = False
            if self._credit < _CREDIT_LIMIT:
                self._credit += 1

    def _has_time(self) -> bool:
        now_ns = time.monotonic_ns()
        if now_ns >= self._end_ns:
            self._end_ns = BusyPolling.last_begin_ns + self._window_ns
        return now_ns < self._end_ns

    def _keep(self) -> None:
        """Have the loop come back at once, while there is still time."""
        if not self.is_due:
            self._is_kept = False
        elif self._has_time():
            # Whoever is to bring it may wait for this very core: a scheduler lets who runs go on for milliseconds.
            os.sched_yield()
            self._loop.call_soon(self._keep)
        else:
            self.is_due = self._is_kept = False
            self._note_miss()

    def _note_miss(self) -> None:
        if is_trial(time.monotonic_ns()):
            return
        self._credit -= _MISS_COST
        if self._credit < 0:
            self._credit = 0
            self._is_asleep = True


@functools.cache
def may_busy_poll() -> bool:
    """Tell whether staying awake is a question at all: on one core it keeps others from doing what is waited for."""
    return usable_cores() > 1 and not is_charged_for_waiting()
