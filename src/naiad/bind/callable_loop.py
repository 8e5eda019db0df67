"""The event loop of one instance: coroutines and generators of its callable run there.

The instance's thread submits the work of a batch and takes the next one; the loop runs the work of several batches in
turn. Theory of operation: `submit` counts the requests of a batch before it hands the coroutine to the loop, and
blocks while too many are open; the coroutine's end subtracts them. So the open requests of an instance are bounded,
and the rest waits in the queue of the model, where queue policies apply. `close` cancels what is left.
"""

import asyncio
import logging
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from naiad.client.loop_thread import LoopThread
from naiad.core.request import InferRequest
from naiad.telemetry.last_resort import report

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

MAX_OPEN_REQUESTS = 1024
"""Requests of an instance that execute at the same time."""
_PAUSED_S = 0.02
"""Interval at which requests are looked at whose clients do not read their responses."""
_CLOSE_S = 10.0
"""Time for cancelled work to end."""


class AsyncExecutor:
    """Starts a thread with an event loop when it is first needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop_thread: LoopThread | None = None
        self._open_count = 0
        self._changed = threading.Condition()
        self._tasks: set[asyncio.Task[Any]] = set()

    def submit(self, work: Coroutine[Any, Any, Any], request_count: int) -> None:
        """Begin the work of a batch and return; blocks while the limit of open requests is reached."""
        thread = self._started()
        with self._changed:
            self._changed.wait_for(lambda: not self._open_count or self._open_count < MAX_OPEN_REQUESTS)
            self._open_count += request_count
        try:
            thread.call_soon(self._begin, work, request_count)
        except BaseException:
            work.close()
            self._note_end(request_count)
            raise

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return the result of the work; blocks. Raises what the work raises."""
        return self._started().run(work)

    async def may_continue(self, requests: Sequence[InferRequest]) -> bool:
        """Let other work have its turn; return False once no client wants further responses.

        Waits while a client does not read its responses.
        """
        await asyncio.sleep(0)
        while any(request.is_paused and not request.cancelled for request in requests):
            await asyncio.sleep(_PAUSED_S)
        return not all(request.cancelled for request in requests)

    def close(self) -> None:
        """Cancel the work in progress and end the thread."""
        if self._loop_thread is not None and not self._loop_thread.close(_CLOSE_S):
            _log.warning("the event loop of instance '%s' does not end: a function blocks it", self._name)

    def _started(self) -> LoopThread:
        if self._loop_thread is None:
            self._loop_thread = LoopThread(self._name)
        return self._loop_thread

    def _begin(self, work: Coroutine[Any, Any, Any], request_count: int) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._end(done, request_count))

    def _end(self, task: "asyncio.Task[Any]", request_count: int) -> None:
        self._tasks.discard(task)
        self._note_end(request_count)
        if not task.cancelled() and (error := task.exception()) is not None:
            report(f"a batch of instance '{self._name}'", error)

    def _note_end(self, request_count: int) -> None:
        with self._changed:
            self._open_count -= request_count
            self._changed.notify()
