"""A timer that fires at a moment, to some 50 us: event loops round theirs to milliseconds."""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

_TFD_NONBLOCK, _TFD_CLOEXEC, _TFD_TIMER_ABSTIME, _CLOCK_MONOTONIC = 0o4000, 0o2000000, 1, 1
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
