"""The loops that send the requests of a load: closed, with a constant number outstanding, open, and periodic."""

import abc
import asyncio
import ctypes
import os
import sys
import time
from array import array
from collections.abc import Callable

from naiad.tools.perf.generator.next_request import Requests
from naiad.tools.perf.generator.setup import Setup
from naiad.tools.perf.load.arrivals import OpenLoad, arrivals_ns, deal
from naiad.tools.perf.perf_exchange import SentRequest, Target
from naiad.tools.perf.perf_plan import Concurrency, PeriodicConcurrency

_RETRY_S = 0.02
"""Pause of a slot of a closed loop after a broken connection: a server that is gone must not cost a core."""
_BURST = 32
"""Requests of an open loop sent in one turn of the event loop; responses are read between turns."""
_MAX_COUNTED = 100_000
"""Unsent requests that are counted one by one; more are extrapolated, since counting takes time, too."""


class LoadLoop(abc.ABC):
    """A load in progress."""

    def __init__(self, target: Target, requests: Requests, record: Callable[[SentRequest], object]) -> None:
        self._target = target
        self._requests = requests
        self._record = record
        self._is_stopped = False
        self.sent = self.outstanding = 0
        """Requests so far."""
        self.unsent = 0
        """Requests that were due and not sent when the load was stopped."""

    @abc.abstractmethod
    def start(self) -> None:
        """Begin to send."""

    def stop(self, at_ns: int) -> None:
        """Send no more; requests that are due after `at_ns` do not belong to the load."""
        self._is_stopped = True

    @property
    @abc.abstractmethod
    def is_finished(self) -> bool:
        """Whether all requests of the load have ended."""


class ClosedLoop(LoadLoop):
    """Keeps a number of requests outstanding: the end of one sends the next, in the same callback."""

    def __init__(
        self,
        load: Concurrency,
        setup: Setup,
        limit: int | None,
        target: Target,
        requests: Requests,
        record: Callable[[SentRequest], object],
    ) -> None:
        """`limit`: send only this many requests."""
        super().__init__(target, requests, record)
        self._slots = range(setup.part, load.value, setup.parts)
        self._limit = limit
        self._event_loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Fill all slots."""
        for slot in self._slots:
            self._send(slot)

    @property
    def is_finished(self) -> bool:
        """The limit is reached, or the load was stopped, and all requests have ended."""
        return not self.outstanding and (self._is_stopped or self.sent == self._limit)

    def _send(self, slot: int) -> None:
        if self._is_stopped or self.sent == self._limit:
            return
        # hot: a new exchange costs 1 us. Reused ones would need a reset of nearly all fields, and a target that
        # looks at an exchange after its end would see that of another request.
        exchange = SentRequest(self._ended)
        exchange.slot = slot
        prepared = self._requests.in_slot(slot, exchange)
        self.sent += 1
        self.outstanding += 1
        self._target.send(prepared, exchange)
        exchange.intended_ns = exchange.start_ns

    def _ended(self, exchange: SentRequest) -> None:
        self.outstanding -= 1
        self._record(exchange)
        if exchange.failure == "connection":
            self._event_loop.call_later(_RETRY_S, self._send, exchange.slot)
        else:
            self._send(exchange.slot)


class OpenLoop(LoadLoop):
    """Sends requests when they are due, however many are outstanding.

    A request that cannot leave because `max_outstanding` are outstanding, or all serial sequences are busy, leaves as
    soon as it can; its latency counts from the moment at which it was due, and nothing is dropped. `late_ns` has by
    how much each request left late for reasons of the generator, which excludes such waits.
    """

    def __init__(
        self,
        load: OpenLoad,
        setup: Setup,
        limit: int | None,
        target: Target,
        requests: Requests,
        record: Callable[[SentRequest], object],
        begin_ns: int,
    ) -> None:
        """`limit`: send only this many requests; `begin_ns`: the start of the load's offsets."""
        super().__init__(target, requests, record)
        self._arrivals = deal(arrivals_ns(load, setup.seed), setup.part, setup.parts)
        self._limit = limit
        self._part, self._parts = setup.part, setup.parts
        self._max_outstanding = max(1, setup.max_outstanding // setup.parts)
        self._begin_ns = begin_ns
        self._event_loop = asyncio.get_running_loop()
        self._timer = DueTimer(self._event_loop, self._pump)
        self._due: tuple[int, int] | None = None
        """Number and moment of the next request; None when there is no more."""
        self._is_blocked = False
        self._unblocked_ns = 0
        self._free_slots: list[int] = []
        self._is_over = False
        self.late_ns = array("q")

    def start(self) -> None:
        """Begin to send."""
        self._advance()
        self._pump()

    def stop(self, at_ns: int) -> None:
        """Send no more, and count the requests that were due by `at_ns`."""
        if self._is_over:
            return
        first_ns = self._due[1] if self._due else at_ns
        while self._due is not None and self._due[1] <= at_ns:
            self.unsent += 1
            if self.unsent >= _MAX_COUNTED:
                self.unsent = int(self.unsent * (at_ns - first_ns) / max(self._due[1] - first_ns, 1))
                break
            self._advance()
        self._end()

    @property
    def is_finished(self) -> bool:
        """The schedule is played or the load was stopped, and all requests have ended."""
        return self._is_over and not self.outstanding

    def _end(self) -> None:
        self._is_over = True
        self._due = None
        self._timer.close()

    def _advance(self) -> None:
        following = None if self.sent + self.unsent == self._limit else next(self._arrivals, None)
        self._due = following and (following[0], following[1] + self._begin_ns)

    def _pump(self) -> None:
        """Send what is due, then set the timer for the next request."""
        if self._is_over:
            return
        now_ns = 0
        for _ in range(_BURST):
            if self._due is None:
                self._end()
                return
            number, due_ns = self._due
            if due_ns > now_ns:
                now_ns = time.monotonic_ns()
                if due_ns > now_ns:
                    self._timer.arm(due_ns)
                    return
            if not self._send(number, due_ns):
                self._is_blocked = True
                self._timer.disarm()
                return
        # Behind schedule: the timer would wait for a turn of the event loop's poll, as this does.
        self._timer.arm(1)

    def _send(self, number: int, due_ns: int) -> bool:
        if self.outstanding >= self._max_outstanding:
            return False
        if not self._free_slots:
            self._free_slots.append(self.outstanding * self._parts + self._part)
        exchange = SentRequest(self._ended)
        exchange.slot = self._free_slots[-1]
        prepared = self._requests.in_turn(number, exchange)
        if prepared is None:
            return False
        self._free_slots.pop()
        exchange.intended_ns = due_ns
        self.sent += 1
        self.outstanding += 1
        self._advance()
        self._target.send(prepared, exchange)
        self.late_ns.append(exchange.start_ns - max(due_ns, self._unblocked_ns))
        return True

    def _ended(self, exchange: SentRequest) -> None:
        self.outstanding -= 1
        self._free_slots.append(exchange.slot)
        self._record(exchange)
        if self._is_blocked:
            self._is_blocked = False
            self._unblocked_ns = time.monotonic_ns()
            self._pump()
        elif self._due is not None and self._due[1] <= exchange.end_ns:
            self._pump()


class PeriodicLoop(LoadLoop):
    """Sends a group of requests when each request of the group before has got a number of responses, or has ended."""

    def __init__(
        self,
        load: PeriodicConcurrency,
        target: Target,
        requests: Requests,
        record: Callable[[SentRequest], object],
    ) -> None:
        super().__init__(target, requests, record)
        self._load = load
        self._waits_for: set[SentRequest] = set()
        """Requests of the last group with fewer responses than the load asks for."""

    def start(self) -> None:
        """Send the first group."""
        self._send_group(self._load.start)

    @property
    def is_finished(self) -> bool:
        """All groups were sent, or the load was stopped, and all requests have ended."""
        return not self.outstanding and (self._is_stopped or self.sent == self._load.end)

    def _send_group(self, size: int) -> None:
        for _ in range(size):
            exchange = SentRequest(self._ended)
            exchange.on_response = self._responded
            exchange.slot = self.sent
            prepared = self._requests.in_slot(self.sent, exchange)
            self.sent += 1
            self.outstanding += 1
            self._waits_for.add(exchange)
            self._target.send(prepared, exchange)
            exchange.intended_ns = exchange.start_ns

    def _responded(self, exchange: SentRequest) -> None:
        if exchange.responses == self._load.responses:
            self._period_ended(exchange)

    def _ended(self, exchange: SentRequest) -> None:
        self.outstanding -= 1
        self._record(exchange)
        self._period_ended(exchange)

    def _period_ended(self, exchange: SentRequest) -> None:
        if exchange not in self._waits_for:
            return
        self._waits_for.remove(exchange)
        if not self._waits_for and not self._is_stopped and self.sent < self._load.end:
            self._send_group(self._load.step)


_TFD_NONBLOCK, _TFD_CLOEXEC, _TFD_TIMER_ABSTIME, _CLOCK_MONOTONIC = 0o4000, 0o2000000, 1, 1
# --- timer --------------------------------------------------------------------------------------------------------

_S = 1_000_000_000


class DueTimer:
    """Calls `callback` on the event loop at a moment of the monotonic clock.

    On Linux it is a timerfd, whose expiry has the resolution of the kernel's high-resolution timers and wakes the
    loop as a readable file; setting it again clears the expiry, so that it is never read. Elsewhere it is the loop's
    timer. No core spins: the server under test often runs on the same machine.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._fd = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
            if self._fd < 0:
                raise OSError(ctypes.get_errno(), "timerfd_create failed")
            self._setting = (ctypes.c_long * 4)()
            """struct itimerspec: interval, then first expiry, each in seconds and ns."""
            loop.add_reader(self._fd, callback)

    def arm(self, at_ns: int) -> None:
        """Fire at `at_ns`, at once if it has passed, instead of the moment set before."""
        if self._fd >= 0:
            self._set(max(at_ns, 1))
            return
        self.disarm()
        self._handle = self._loop.call_later(max(0.0, (at_ns - time.monotonic_ns()) / _S), self._callback)

    def disarm(self) -> None:
        """Do not fire."""
        if self._fd >= 0:
            self._set(0)
        elif self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        """Release the file."""
        self.disarm()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _set(self, at_ns: int) -> None:
        self._setting[2], self._setting[3] = divmod(at_ns, _S)
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, self._setting, None)
