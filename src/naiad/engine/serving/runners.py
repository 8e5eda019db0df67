"""The drivers of the instances of one served version: who serves, who is idle, who leaves.

A driver takes its next batch itself as soon as its instance is free. One that finds nothing to do joins the idle, and
only who has taken it off that list wakes it.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

from naiad.backend.api import Instance
from naiad.core.batch import Batch
from naiad.core.errors import InferError
from naiad.scheduler.api import Scheduler


class InstanceRunner(Protocol):
    """Has one instance execute the batches that it takes, one after the other."""

    index: int
    """Number of the instance among all that its version ever had."""

    @property
    def instance(self) -> Instance:
        """What it drives."""

    def start(self) -> None:
        """Begin to take batches."""

    def wake(self) -> None:
        """Look for a batch soon; called on the loop after the driver was taken off the list of the idle."""

    def wake_now(self) -> None:
        """Look for a batch at once; callable on any thread after the driver was taken off the list of the idle."""

    def join(self, timeout_s: float) -> bool:
        """Wait for its end after it was told that all is over; whether it has ended. Not called on the loop."""

    @property
    def executing(self) -> Batch | None:
        """The batch that executes, where the engine limits how long it may."""

    def abort(self, error: InferError) -> bool:
        """Answer the batch that executes with an error; False when there is none. On the loop."""


class InstanceRunners:
    """Knows the drivers; guarded, where a method does not say otherwise, by the lock of the dispatcher."""

    def __init__(self) -> None:
        self.idle: list[InstanceRunner] = []
        """Who sleeps until it is woken; the last that joined has its memory warm, and is woken first."""
        self.leaving: set[InstanceRunner] = set()
        """Who takes no batch any more; may be asked without the lock."""
        self._serving: list[InstanceRunner] = []

    def __iter__(self) -> Iterator[InstanceRunner]:
        return iter(self._serving)

    @property
    def instances(self) -> list[Instance]:
        """What the serving drivers drive; readable without the lock."""
        return [runner.instance for runner in self._serving]

    @property
    def health(self) -> str:
        """Empty while at least one instance can execute, otherwise the reason why none can; needs no lock."""
        reason = ""
        for runner in self._serving:
            reason = runner.instance.health
            if not reason:
                return ""
        return reason

    @property
    def await_restart(self) -> bool:
        """Whether at least one instance that cannot execute will soon, so that requests wait; needs no lock."""
        return any(runner.instance.awaits_restart for runner in self._serving)

    def replace(self, runners: Sequence[InstanceRunner]) -> list[InstanceRunner]:
        """Go on with these drivers, of which some serve already; return those that leave, which are woken for it."""
        before, self._serving = self._serving, list(runners)
        leaving = [runner for runner in before if runner not in runners]
        self.leaving.update(leaving)
        for runner in leaving:
            if self.withdraw(runner):
                runner.wake_now()
        return leaving

    def forget(self, runners: Collection[InstanceRunner]) -> None:
        """Let go of drivers that were leaving and have left."""
        self.leaving.difference_update(runners)

    def withdraw(self, runner: InstanceRunner) -> bool:
        """Take a driver off the list of the idle; False when someone else has done so and is about to wake it."""
        if runner not in self.idle:
            return False
        self.idle.remove(runner)
        return True

    def pop_woken(self, scheduler: Scheduler) -> InstanceRunner | None:
        """Take the first idle driver off the list that the scheduler has something for, and wake the others."""
        woken = scheduler.pop_woken()
        found = [runner for runner in self.idle if runner.index in woken]
        for runner in found:
            self.idle.remove(runner)
        for runner in found[1:]:
            runner.wake_now()
        return found[0] if found else None

    def wake_all(self) -> None:
        """Wake every idle driver."""
        for runner in self.idle:
            runner.wake_now()
        self.idle.clear()


def join_all(runners: Iterable[InstanceRunner], deadline_s: float) -> bool:
    """Wait until a monotonic time for drivers that were told to end; whether all have."""
    have_ended = [runner.join(max(0.0, deadline_s - time.monotonic())) for runner in runners]
    return all(have_ended)
