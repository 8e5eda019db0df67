"""The last resort of threads and tasks: what nothing else has caught is logged, and the work goes on after a pause.

Theory of operation. A thread that ends by an exception, or a task whose exception is not read, leaves a server that
looks well and no longer does a part of its work. Code that is not ours may raise anything, also what is no
`Exception`: KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError. So

- work without end runs in `keep_running` (a thread) or `keep_running_task` (a task of a loop), which begin it again;
- work with an end runs as it is, and what it raises goes to `report`, or to the caller that waits for it;
- runners of instances use `Relapses` themselves: they also answer their requests and mark their instance.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from naiad.core.errors import cause_of

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0
_PROVEN_S = 60.0
"""After this time without a failure the next one counts as the first."""


class Relapses:
    """The pauses between failures of one piece of work: each is twice as long as the one before."""

    def __init__(self) -> None:
        self.count = 0
        """Failures in a row."""
        self._last_s = 0.0

    def next_pause_s(self, now_s: float) -> float:
        """Note a failure and return the pause after it."""
        if self.count and now_s - self._last_s > _PROVEN_S:
            self.count = 0
        self.count += 1
        self._last_s = now_s
        return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self.count - 1, 16))


def report(what: str, error: BaseException, outlook: str = "") -> None:
    """Log a failure that was not expected and is not reported elsewhere."""
    try:
        _log.critical("%s failed unexpectedly: %s%s", what, cause_of(error), outlook, exc_info=error)
    except BaseException:  # no memory for the traceback, or a handler of the log that fails: the work goes on
        return


def keep_running(
    what: str, work: Callable[[], object], pause: Callable[[float], bool], relapses: Relapses | None = None
) -> None:
    """Do the work of a thread until it returns; begin it again after any exception.

    `pause` waits for a number of seconds and returns whether the work is to end.
    """
    relapses = relapses or Relapses()
    while True:
        try:
            work()
        except BaseException as error:
            pause_s = relapses.next_pause_s(time.monotonic())
            report(what, error, f"; it goes on in {pause_s:g} s")
        else:
            return
        if pause(pause_s):
            return


async def keep_running_task(
    what: str, work: Callable[[], Awaitable[object]], relapses: Relapses | None = None
) -> None:
    """Do the work of a task until it returns or its task is cancelled; begin it again after any exception."""
    relapses = relapses or Relapses()
    while True:
        try:
            await work()
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            pause_s = relapses.next_pause_s(time.monotonic())
            report(what, error, f"; it goes on in {pause_s:g} s")
        else:
            return
        await asyncio.sleep(pause_s)


def begin_task(what: str, work: Coroutine[Any, Any, Any], tasks: "set[asyncio.Task[Any]]") -> "asyncio.Task[Any]":
    """Begin a task that is not awaited: it is in `tasks` until it ends, and what it raises is logged."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)

    def end(done: "asyncio.Task[Any]") -> None:
        tasks.discard(done)
        if not done.cancelled() and (error := done.exception()) is not None:
            report(what, error)

    task.add_done_callback(end)
    return task
