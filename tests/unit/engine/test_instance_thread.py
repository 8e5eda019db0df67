"""The thread of an instance, when several others wake it."""

import os
import threading

import pytest

from naiad.core.batch import Batch
from naiad.engine.instance_thread import InstanceThread
from support.engine_parts import ScriptedInstance, StepLoop


class Source:
    """A dispatcher that has nothing to do, and has stopped when it is asked a second time."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.count = 0

    def take(self, driver: object) -> tuple[Batch | None, int]:
        self.count += 1
        self.asked.release()
        return None, 0 if self.count == 1 else -1


def test_a_thread_may_be_woken_again_before_its_start_has_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    may_return = threading.Event()
    plain = threading.Thread

    class SlowToStart(plain):
        def start(self) -> None:
            super().start()
            may_return.wait(60)

    monkeypatch.setattr(threading, "Thread", SlowToStart)
    source = Source()
    driver = InstanceThread(source, None, ScriptedInstance(), StepLoop())  # nothing is executed
    monkeypatch.undo()
    starter = plain(target=driver.wake_now)
    starter.start()
    assert source.asked.acquire(timeout=60)
    driver.wake_now()
    assert source.asked.acquire(timeout=60)
    may_return.set()
    starter.join()
    assert driver.join(60)
    assert source.count == 2


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound here")
def test_the_thread_of_an_instance_runs_on_the_cores_of_its_host_policy() -> None:
    class Anywhere(ScriptedInstance):
        runs_on_any_thread = True

    class Asked(Source):
        def take(self, driver: object) -> tuple[Batch | None, int]:
            self.seen = os.sched_getaffinity(0)
            return None, -1

    before = os.sched_getaffinity(0)
    instance, source = Anywhere(), Asked()
    instance.cores = frozenset({min(before)})
    driver = InstanceThread(source, None, instance, StepLoop())
    driver.wake_now()
    assert driver.join(60)
    assert source.seen == instance.cores
    assert os.sched_getaffinity(0) == before
