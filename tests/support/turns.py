"""Threads that take turns: at each pause the test decides which one goes on, so that every overlap can be tried."""

import threading
from collections.abc import Callable


class DeadlockError(AssertionError):
    """No thread can go on."""


class _Actor:
    def __init__(self, work: Callable[[], None]) -> None:
        self.may_run = threading.Semaphore(0)
        self.can_go_on: Callable[[], bool] = lambda: True
        self.has_ended = False
        self.work = work


class Turns:
    """Runs pieces of work on threads of their own, one at a time."""

    def __init__(self) -> None:
        self._actors: list[_Actor] = []
        self._by_thread: dict[int, _Actor] = {}
        self._paused = threading.Semaphore(0)

    def begin(self, work: Callable[[], None]) -> None:
        """Add a piece of work, which must not raise; it begins with its first turn."""
        actor = _Actor(work)
        self._actors.append(actor)
        threading.Thread(target=self._run, args=(actor,), daemon=True).start()

    def pause(self, can_go_on: Callable[[], bool] = lambda: True) -> None:
        """Let others go on; returns at a later turn, at which the condition holds. No effect on other threads."""
        actor = self._by_thread.get(threading.get_ident())
        if actor is None:
            return
        actor.can_go_on = can_go_on
        self._paused.release()
        actor.may_run.acquire()

    def run(self, choose: Callable[[int], int], at_each_pause: Callable[[], None]) -> None:
        """Give turns until all work has ended; `choose` gets the number of threads that can go on.

        Raises DeadlockError if none can.
        """
        while left := [actor for actor in self._actors if not actor.has_ended]:
            ready = [actor for actor in left if actor.can_go_on()]
            if not ready:
                raise DeadlockError(f"{len(left)} pieces of work wait for each other")
            ready[choose(len(ready))].may_run.release()
            assert self._paused.acquire(timeout=60)
            at_each_pause()

    def _run(self, actor: _Actor) -> None:
        self._by_thread[threading.get_ident()] = actor
        actor.may_run.acquire()
        try:
            actor.work()
        finally:
            del self._by_thread[threading.get_ident()]
            actor.has_ended = True
            self._paused.release()
