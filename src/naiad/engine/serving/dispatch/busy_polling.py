"""Busy polling of the event loop while an expected event is worth a spin wait, and a hint about serial clients.

Waking a sleeping process on another core takes 50 us and more, on virtual machines as long as a small model takes,
and its caches are cold. While clients send one request after the other, and a worker responds quickly, the loop
therefore polls for a moment before it sleeps. One HTTP connection on two cores: 2,500 requests/s of a small Python
model became 5,900 at 320 instead of 370 us of CPU each, 4,470 of an ONNX model 5,860 at 175 instead of 185.

`SerialClients` detects clients that send one request at a time to a batching model.
"""

import functools
import os
import time
from typing import ClassVar

from naiad.backend.cores import is_charged_for_waiting, usable_cores
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
_YIELD_NS = 50_000
"""Time before the core is yielded: an event that another core is about to send arrives sooner, and a yield to a
process of low priority takes milliseconds."""


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
        "_window_ns",
        "_yield_ns",
        "is_due",
    )

    def __init__(self, loop: Loop, window_ns: int) -> None:
        """`window_ns`: maximum time to stay awake."""
        self._loop = loop
        self._window_ns = window_ns
        self._is_possible = may_busy_poll()
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
def may_busy_poll() -> bool:
    """Return whether busy polling is possible: on one core it would block the thread that it waits for."""
    return usable_cores() > 1 and not is_charged_for_waiting()
