"""The event loop of a model with `async def execute`.

The coroutine of a batch runs on the thread that executes, which costs no switch between threads. A model may leave
work behind: tasks, timers, or an answer that is still to come. Then the loop moves to a thread of its own for good,
where it runs between batches too, as in Triton:

    execute returns, nothing is left     the loop stops until the next batch
    execute returns, something is left   thread "asyncio": run_forever; later coroutines are submitted to it
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any, Coroutine

_log = logging.getLogger(__name__)
_CLOSE_S = 2.0


class ModelLoop:
    """One event loop and, from when it is needed, its thread. Used by the thread that executes."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = False

    @property
    def thread_id(self) -> int:
        """The thread that coroutines run on."""
        thread = self._thread
        return threading.get_ident() if thread is None or thread.ident is None else thread.ident

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return what a coroutine returns. Raises what it raises."""
        loop = self._made()
        if self._thread is not None:
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result()
        try:
            return loop.run_until_complete(coroutine)
        finally:
            if _has_work(loop):
                self.keep_running()

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine beside others; it must see to its own exceptions."""
        self.keep_running()
        asyncio.run_coroutine_threadsafe(coroutine, self._made())

    def keep_running(self) -> None:
        """Run the loop between batches too, from now on."""
        if self._thread is None:
            self._made()
            self._thread = threading.Thread(target=self._run, name="asyncio", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop the loop; what has not ended by then does not end."""
        self._is_closing = True
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            # A task that blocks is not waited for: the process ends without it.
            self._thread.join(_CLOSE_S)
        if self._loop is not None and not self._loop.is_running():
            self._loop.close()

    def _made(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # Triton: code that is not a coroutine finds it, too.
            asyncio.set_event_loop(self._loop)
        return self._loop

    def _run(self) -> None:
        loop = self._made()
        asyncio.set_event_loop(loop)
        while not self._is_closing:
            try:
                loop.run_forever()
            except BaseException as error:
                # asyncio lets SystemExit and KeyboardInterrupt of a task through, which would end the loop for all.
                _log.error("a task of the model has raised %r", error)


def _has_work(loop: asyncio.AbstractEventLoop) -> bool:
    """Tell whether tasks or timers are left that the next batch should not have to wait for."""
    timers = getattr(loop, "_scheduled", ())
    return bool(asyncio.all_tasks(loop)) or any(not timer.cancelled() for timer in timers)
