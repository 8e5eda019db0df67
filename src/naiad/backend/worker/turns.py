"""Who reads a line that several threads wait at: whoever waits, one at a time, also for the others.

A thread of its own that reads would have to be woken for each answer, and to wake who waits for it: two switches
between threads, which cost as much as a small model takes.
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from typing import Callable


class Waiter(ABC):
    """Someone who waits until `is_done`."""

    __slots__ = ("bell",)

    def __init__(self) -> None:
        self.bell: queue.SimpleQueue[None] | None = None
        """What it sleeps on, when it sleeps."""

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether there is nothing to wait for any more."""


class Turns:
    """Hands the turn to read from one to the next."""

    def __init__(self, read: Callable[[bool], None]) -> None:
        """`read` waits for one message and sees to it; it is told whether to wait awake for a moment."""
        self._read = read
        self._guard = threading.Lock()
        self._is_taken = False
        self._asleep: set[Waiter] = set()

    def wait(self, waiter: Waiter, *, may_stay_awake: bool = True) -> None:
        """Return when `waiter` is done; read meanwhile, unless someone else does."""
        while True:
            with self._guard:
                if waiter.is_done:
                    self._asleep.discard(waiter)
                    self._pass_on()
                    return
                bell = None
                if self._is_taken:
                    bell = waiter.bell = waiter.bell or queue.SimpleQueue()
                    self._asleep.add(waiter)
                else:
                    self._is_taken = True
            if bell is not None:
                self._sleep(waiter, bell)
                continue
            try:
                while not waiter.is_done:
                    self._read(may_stay_awake)
            finally:
                with self._guard:
                    self._is_taken = False
                    self._pass_on()

    def _sleep(self, waiter: Waiter, bell: queue.SimpleQueue[None]) -> None:
        try:
            bell.get()
        except BaseException:
            # A signal handler has interrupted the wait: nobody may count on this thread any more. It may have been
            # handed the turn already.
            with self._guard:
                self._asleep.discard(waiter)
                self._pass_on()
            raise

    def wake(self, waiter: Waiter) -> None:
        """Let a waiter see that it is done; called after it is."""
        with self._guard:
            if waiter in self._asleep:
                self._asleep.discard(waiter)
                self._ring(waiter)

    def _pass_on(self) -> None:
        """Wake someone to take the turn, if nobody has it."""
        if self._asleep and not self._is_taken:
            self._ring(self._asleep.pop())

    def _ring(self, waiter: Waiter) -> None:
        if waiter.bell is not None:
            waiter.bell.put(None)
