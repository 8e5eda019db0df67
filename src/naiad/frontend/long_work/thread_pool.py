"""A few threads for work that would block the event loop for too long."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from naiad.core.errors import cause_of, internal
from naiad.telemetry.last_resort import report

_log = logging.getLogger(__name__)

RunInThread = Callable[[Callable[[], Any], Callable[[Any], object], Callable[[Exception], object]], None]
"""Takes work and two callbacks for the loop: one gets the result, the other the raised exception."""


class ThreadPool:
    """A few threads of one event loop.

    The queue is bounded by the open requests: a caller submits at most one piece of work for each open HTTP request
    or call.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, thread_count: int = 2) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(thread_count, thread_name_prefix=name)

    def run(
        self, work: Callable[[], Any], done: Callable[[Any], object], failed: Callable[[Exception], object]
    ) -> None:
        """Run `work` on a thread, then call `done` with its result or `failed` with its exception, on the loop."""
        self._pool.submit(self._work, work, done, failed)

    def close(self) -> None:
        """Start no more work; running work ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _work(
        self, work: Callable[[], Any], done: Callable[[Any], object], failed: Callable[[Exception], object]
    ) -> None:
        try:
            result = work()
        except Exception as error:
            self._return(failed, error)
        except BaseException as error:
            # The request would wait forever.
            report("work beside the event loop", error)
            self._return(failed, internal(cause_of(error)))
        else:
            self._return(done, result)

    def _return(self, callback: Callable[[Any], object], result: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, result)
        except RuntimeError:
            # The loop is closed: the result has no receiver.
            _log.debug("a result arrived after the event loop had ended")


def run_at_once(
    work: Callable[[], Any], done: Callable[[Any], object], failed: Callable[[Exception], object]
) -> None:
    """Run the work at once, for callers without threads."""
    try:
        result = work()
    except Exception as error:
        failed(error)
    else:
        done(result)
