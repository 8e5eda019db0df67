"""The thread of an instance: when several others wake it, and when the loop executes in its place."""

import resource
import threading
import time
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from naiad.core.batch import Batch
from naiad.engine.instance_thread import InstanceThread
from support.engine_parts import ScriptedInstance, StepLoop


class Source:
    """A model that has nothing to do, and has stopped when it is asked a second time."""

    name, version = "m", "1"

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
            may_return.wait(10)

    monkeypatch.setattr(threading, "Thread", SlowToStart)
    source = Source()
    driver = InstanceThread(source, ScriptedInstance(), StepLoop())
    monkeypatch.undo()
    starter = plain(target=driver.wake_now)
    starter.start()
    assert source.asked.acquire(timeout=10)
    driver.wake_now()
    assert source.asked.acquire(timeout=10)
    may_return.set()
    starter.join()
    assert driver.join(10)
    assert source.count == 2


# --- who executes ---------------------------------------------------------------------------------------------------

US, MS = 1_000, 1_000_000


class Machine:
    """What the kernel says of the thread, as far as executions move it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cpu_ns = self.switches = 0
        monkeypatch.setattr(time, "thread_time_ns", lambda: self.cpu_ns)
        monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_nvcsw=self.switches))


class Timed:
    """A model whose executions take as long as they are told to, one after the other."""

    name, version = "m", "1"

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.waiting: deque[Batch] = deque()
        self.is_idle = threading.Event()
        self.is_stopping = False
        self.on_loop = False
        self.execution = (0, 0, False)

    def take(self, driver: object) -> tuple[Batch | None, int]:
        if self.waiting:
            return self.waiting.popleft(), 0
        self.is_idle.set()
        return None, -1 if self.is_stopping else 0

    def execute(self, instance: object, batch: Batch, *, on_loop: bool = False) -> None:
        wall_ns, cpu_ns, waits = self.execution
        batch.exec_start_ns, batch.exec_end_ns = 0, wall_ns
        self.machine.cpu_ns += cpu_ns
        self.machine.switches += waits
        self.on_loop = on_loop


class Anywhere(ScriptedInstance):
    runs_on_any_thread = True


class Scene:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model = Timed(Machine(monkeypatch))
        self.driver = InstanceThread(self.model, Anywhere(), StepLoop())  # type: ignore[arg-type]

    def execute(self, wall_ns: int, cpu_ns: int | None = None, *, waits: bool = False, size: int = 1) -> bool:
        """Execute a batch; whether the loop did it."""
        self.model.execution = (wall_ns, wall_ns if cpu_ns is None else cpu_ns, waits)
        self.model.is_idle.clear()
        self.model.waiting.append(Batch([None] * size, size))  # type: ignore[list-item]  # nobody looks at them
        self.driver.wake()
        assert self.model.is_idle.wait(60)
        return self.model.on_loop

    def prove(self) -> None:
        """Have the thread find that the instance is fast."""
        for _ in range(64):
            assert not self.execute(30 * US)
        assert self.execute(30 * US)

    def stop(self) -> None:
        self.model.is_stopping = True
        self.driver.wake_now()
        assert self.driver.join(60)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(monkeypatch)
    yield made
    made.stop()


def test_the_loop_executes_what_has_proved_to_be_fast(scene: Scene) -> None:
    scene.prove()


def test_what_is_never_fast_stays_with_its_thread(scene: Scene) -> None:
    assert not any(scene.execute(150 * US) for _ in range(200))


def test_a_busy_machine_does_not_keep_the_loop_from_trying(scene: Scene) -> None:
    """The thread waits for the core and the GIL; the shortest of its executions tells what the model takes."""
    assert not any(scene.execute(5 * MS if number % 4 else 40 * US) for number in range(64))
    assert scene.execute(40 * US)


def test_what_other_processes_take_does_not_count(scene: Scene) -> None:
    scene.prove()
    for _ in range(100):
        assert scene.execute(20 * MS, 30 * US)


def test_an_execution_that_waits_for_long_goes_back_to_the_thread_for_long(scene: Scene) -> None:
    scene.prove()
    assert scene.execute(20 * MS, 30 * US, waits=True)  # the first doubt
    assert scene.execute(20 * MS, 30 * US, waits=True)
    assert not any(scene.execute(30 * US) for _ in range(10_000))
    scene.prove()


def test_executions_that_compute_for_too_long_go_back_to_the_thread(scene: Scene) -> None:
    scene.prove()
    assert any(not scene.execute(300 * US) for _ in range(20))
    assert not any(scene.execute(30 * US) for _ in range(999))


def test_a_large_batch_may_take_longer(scene: Scene) -> None:
    scene.prove()
    assert all(scene.execute(200 * US, size=32) for _ in range(200))
    assert any(not scene.execute(500 * US, size=32) for _ in range(200))
