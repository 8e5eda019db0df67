"""The threads of loads: one while loads are short, more of them where loads take long.

Loads of small models are mostly Python, which one thread executes at a time: further threads only take the
interpreter from it and from each other, and each change of the thread is several system calls. Loads of large models
are work of a framework, or wait for a process, and several of them take less time together.

Theory of operation: a thread takes one load after the other. The caller calls `add_thread_if_slow` while it waits for
the results: if each thread has been at its load for `_LONG_S`, there is one more from then on. A thread ends after a
short load if another thread is at a short one too, and when no load is left.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as NotDoneError
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
_LONG_S = 0.02
"""After this a load counts as long; one of a small model takes 2 to 4 ms."""


def ends_within(future: "Future[Any]", timeout_s: float) -> bool:
    """Wait for a load; return whether it has ended in time. Raises CancelledError if it was cancelled."""
    # `concurrent.futures.wait` takes five times as long, which a start with a thousand models feels.
    try:
        future.exception(timeout_s)
    except NotDoneError:
        return False
    return True


class LoadPool(Executor):
    """At most `most` threads for loads. All methods are called from any thread."""

    def __init__(self, most: int, name: str) -> None:
        """`name` is the beginning of the names of the threads."""
        self._most = most
        self._name = name
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._begun_s: dict[threading.Thread, float] = {}
        """The threads, and when each has begun its load."""
        self._thread_count = 0
        """Threads so far."""

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> "Future[_T]":
        """Have a load done. Raises RuntimeError if the system has no thread for it."""
        future: Future[_T] = Future()
        with self._lock:
            self._waiting.append((future, lambda: fn(*args, **kwargs)))
            if not self._begun_s:
                try:
                    self._start_thread()
                except BaseException:
                    self._waiting.pop()
                    raise
        return future

    def add_thread_if_slow(self) -> None:
        """Start another thread if loads wait and each of the present ones has been at its load for long."""
        with self._lock:
            if not self._waiting or len(self._begun_s) >= self._most or self._is_any_short():
                return
            try:
                self._start_thread()
            except RuntimeError:
                return  # the system has no more threads: those that are there go on

    def results(self, futures: "Iterable[Future[_T]]") -> Iterator[_T]:
        """Yield the results of submitted work as they come, in its order. Raises what the work raises."""
        for future in futures:
            while not ends_within(future, _LONG_S):
                self.add_thread_if_slow()
            yield future.result()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait until all loads have ended, if `wait`; with `cancel_futures` those that wait do not begin."""
        if cancel_futures:
            with self._lock:
                waiting, self._waiting = self._waiting, deque()
            for future, _ in waiting:
                future.cancel()
        while wait and (threads := self._threads()):
            for thread in threads:
                thread.join()

    def _threads(self) -> list[threading.Thread]:
        """Return the threads; the lock is not held: a thread that takes its next load is missing meanwhile."""
        with self._lock:
            return list(self._begun_s)

    def _start_thread(self) -> None:
        """Start a thread; the lock is held."""
        thread = threading.Thread(target=self._work, name=f"{self._name}_{self._thread_count}")
        self._thread_count += 1
        self._begun_s[thread] = time.monotonic()
        try:
            thread.start()
        except BaseException:
            del self._begun_s[thread]
            raise

    def _is_any_short(self) -> bool:
        """Return whether a thread has been at its load for a short time; the lock is held."""
        since_s = time.monotonic() - _LONG_S
        return any(begun_s > since_s for begun_s in self._begun_s.values())

    def _work(self) -> None:
        thread = threading.current_thread()
        while (task := self._next_task(thread)) is not None:
            future, load = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = load()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            # Neither keeps what was loaded while the next load goes on.
            del future, load, task
            result = None

    def _next_task(self, thread: threading.Thread) -> tuple["Future[Any]", Callable[[], Any]] | None:
        """Return the next load of a thread; None if it has to end."""
        with self._lock:
            was_short = time.monotonic() - self._begun_s.pop(thread) < _LONG_S
            if not self._waiting or (was_short and self._is_any_short()):
                return None
            self._begun_s[thread] = time.monotonic()
            return self._waiting.popleft()
