"""Work that would hold the event loop for too long, done by a few threads beside it."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_log = logging.getLogger(__name__)

RunAside = Callable[[Callable[[], Any], Callable[[Any], object], Callable[[Exception], object]], None]
"""Takes work, and who is told on the loop: the first of its result, the second of what it raised."""


class SideThreads:
    """A few threads of one event loop.

    What waits for them is bounded by what waits for answers: a caller hands over at most one piece of work for each
    exchange or call that is open.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, thread_count: int = 2) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(thread_count, thread_name_prefix=name)

    def run(
        self, work: Callable[[], Any], done: Callable[[Any], object], failed: Callable[[Exception], object]
    ) -> None:
        """Have `work` done, then call `done` with its result or `failed` with what it raised, on the loop."""
        self._pool.submit(self._work, work, done, failed)

    def close(self) -> None:
        """Begin nothing more; what is being done ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _work(
        self, work: Callable[[], Any], done: Callable[[Any], object], failed: Callable[[Exception], object]
    ) -> None:
        try:
            result = work()
        except Exception as error:
            self._return(failed, error)
        else:
            self._return(done, result)

    def _return(self, callback: Callable[[Any], object], result: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, result)
        except RuntimeError:
            # The loop is closed: nobody waits for the outcome any more.
            _log.debug("an outcome came after the event loop had ended")


def run_here(work: Callable[[], Any], done: Callable[[Any], object], failed: Callable[[Exception], object]) -> None:
    """Do the work at once: for whoever has no other threads."""
    try:
        result = work()
    except Exception as error:
        failed(error)
    else:
        done(result)
