"""The instance runners of one served version: active, idle and leaving ones.

A runner takes its next batch itself as soon as its instance is free. A runner without work joins the idle list
(`idle`), and only the thread that removes it from that list may wake it; so each wake-up reaches exactly one runner,
and no runner is woken twice. The list is a stack: the last runner that joined has warm memory and is woken first.
Runners that are replaced enter `leaving`: they finish their work and take no new batches. The protocol between
enqueuing threads and runners is described in `dispatcher.py`.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

from naiad.backend.api import Instance
from naiad.core.batch import Batch
from naiad.core.errors import InferError
from naiad.scheduler.api import Scheduler


class InstanceRunner(Protocol):
    """Executes batches on one instance, one after the other."""

    index: int
    """Number of the instance among all instances of its version."""
    free_ns: int
    """Since when the instance has been free, in monotonic ns; 0 if its next batch was not asked for yet."""

    @property
    def instance(self) -> Instance:
        """Its instance."""

    def start(self) -> None:
        """Begin to take batches."""

    def wake(self) -> None:
        """Take a batch soon; called on the loop after the removal from the idle list."""

    def wake_now(self) -> None:
        """Take a batch at once; callable on any thread after the removal from the idle list."""

    def join(self, timeout_s: float) -> bool:
        """Wait for its end after a stop; return whether it has ended. Not called on the loop."""

    @property
    def executing(self) -> Batch | None:
        """The executing batch, if the engine limits its time."""

    def abort(self, error: InferError) -> bool:
        """Fail the executing batch with an error; return False if there is none. On the loop."""


class InstanceRunners:
    """The runners of a version; guarded by the lock of the dispatcher unless a method states otherwise."""

    def __init__(self) -> None:
        self.idle: list[InstanceRunner] = []
        """Sleeping runners; the last that joined has warm memory, and is woken first."""
        self.leaving: set[InstanceRunner] = set()
        """Runners that take no more batches; readable without the lock."""
        self._serving: list[InstanceRunner] = []

    def __iter__(self) -> Iterator[InstanceRunner]:
        return iter(self._serving)

    @property
    def instances(self) -> list[Instance]:
        """The instances of the active runners; readable without the lock."""
        return [runner.instance for runner in self._serving]

    @property
    def health(self) -> str:
        """Empty while at least one instance can execute, otherwise the reason; needs no lock."""
        reason = ""
        for runner in self._serving:
            reason = runner.instance.health
            if not reason:
                return ""
        return reason

    @property
    def await_restart(self) -> bool:
        """Whether an unhealthy instance will recover soon, so that requests wait; needs no lock."""
        return any(runner.instance.awaits_restart for runner in self._serving)

    def replace(self, runners: Sequence[InstanceRunner]) -> list[InstanceRunner]:
        """Continue with these runners, some of which are active; return the leaving ones, which are woken to end."""
        before, self._serving = self._serving, list(runners)
        leaving = [runner for runner in before if runner not in runners]
        self.leaving.update(leaving)
        for runner in leaving:
            if self.withdraw(runner):
                runner.wake_now()
        return leaving

    def forget(self, runners: Collection[InstanceRunner]) -> None:
        """Remove runners that have left."""
        self.leaving.difference_update(runners)

    def withdraw(self, runner: InstanceRunner) -> bool:
        """Remove a runner from the idle list; return False if another thread has done so and is about to wake it."""
        if runner not in self.idle:
            return False
        self.idle.remove(runner)
        return True

    def pop_woken(self, scheduler: Scheduler) -> InstanceRunner | None:
        """Remove the first idle runner with work from the list and return it, and wake all further ones."""
        woken = scheduler.pop_woken()
        found = [runner for runner in self.idle if runner.index in woken]
        for runner in found:
            self.idle.remove(runner)
        for runner in found[1:]:
            runner.wake_now()
        return found[0] if found else None

    def wake_all(self) -> None:
        """Wake every idle runner."""
        for runner in self.idle:
            runner.wake_now()
        self.idle.clear()


def join_all(runners: Iterable[InstanceRunner], deadline_s: float) -> bool:
    """Wait until a monotonic time for stopped runners; return whether all have ended."""
    have_ended = [runner.join(max(0.0, deadline_s - time.monotonic())) for runner in runners]
    return all(have_ended)
