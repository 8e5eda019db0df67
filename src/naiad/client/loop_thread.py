"""A thread with an event loop, on which other threads run coroutines: calls of clients, functions of models."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from naiad.telemetry.last_resort import report

_T = TypeVar("_T")


class LoopThread:
    """Runs coroutines for other threads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_closing = False
        self._futures: set[Future[Any]] = set()
        """What runs, or waits to begin."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, _T]) -> "Future[_T]":
        """Begin a coroutine; its future is cancelled if the thread ends before. Raises RuntimeError after `close`."""
        if self._is_closing:  # a task that begins while the present ones are cancelled would never end
            raise RuntimeError("the thread is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        if self._loop.is_closed():  # just now: it does not begin any more
            future.cancel()
        return future

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return the result of a coroutine; an interrupted caller cancels it. Raises what it raises."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def is_open(self) -> bool:
        """Whether it takes calls."""
        return not self._is_closing

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function on the loop. Raises RuntimeError after `close`."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def close(self, timeout_s: float | None = None) -> bool:
        """Cancel what still runs and end the thread; False if something blocks it for longer than `timeout_s`."""
        if self._thread.is_alive():
            self._is_closing = True
            with contextlib.suppress(RuntimeError):  # another thread has closed it meanwhile
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._until_closed(self._loop.run_forever)
        self._until_done(_cancel_others)
        self._until_done(self._loop.shutdown_asyncgens)
        self._loop.close()
        for future in tuple(self._futures):  # began after the present tasks were cancelled
            future.cancel()

    def _until_closed(self, run: Callable[[], object]) -> None:
        while not self._is_closing:
            try:
                run()
            except BaseException as error:
                # asyncio passes on SystemExit and KeyboardInterrupt of a task, which would end the loop of all tasks.
                report(f"a task of '{self._name}'", error)

    def _until_done(self, begin: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run a coroutine of the end, also when the tasks that it ends raise."""
        try:
            self._loop.run_until_complete(begin())
        except BaseException as error:
            report(f"the end of '{self._name}'", error)


class LoopClient:
    """A client whose calls run on a thread of its own: what `with` closes."""

    def __init__(self, name: str, close_connections: Callable[[], object]) -> None:
        self._loop_thread = LoopThread(f"client of {name}")
        self._close_connections = close_connections

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client."""
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread; calls of other threads fail. May be called again."""
        if self._loop_thread.is_open:
            with contextlib.suppress(RuntimeError):  # another thread has closed it meanwhile
                self._loop_thread.call_soon(self._close_connections)
        self._loop_thread.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
