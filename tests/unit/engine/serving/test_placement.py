"""Whether the loop or the thread of an instance executes: judged by what the model takes, not by what others take."""

import resource
import time
from types import SimpleNamespace

import pytest

from naiad.core.batch import Batch
from naiad.engine.serving.execution.thread_runner import Placement, ThreadUsage

US, MS = 1_000, 1_000_000


class Scene:
    """Executions with scripted durations, on a machine with scripted readings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.placement = Placement()
        self.cpu_ns = self.switches = 0
        monkeypatch.setattr(time, "thread_time_ns", lambda: self.cpu_ns)
        monkeypatch.setattr(resource, "getrusage", lambda of: SimpleNamespace(ru_nvcsw=self.switches))

    def execute(self, wall_ns: int, cpu_ns: int | None = None, *, waits: bool = False, size: int = 1) -> bool:
        """Execute a batch; whether the loop did it."""
        batch = Batch([None] * size, size)  # type: ignore[list-item]  # they are not read
        batch.exec_start_ns, batch.exec_end_ns = 0, wall_ns
        on_loop = self.placement.is_on_loop
        before = ThreadUsage() if on_loop and self.placement.is_wary else None
        self.cpu_ns += wall_ns if cpu_ns is None else cpu_ns
        self.switches += waits
        if on_loop:
            self.placement.executed_on_loop(batch, before)
        else:
            self.placement.executed_on_thread(batch)
        return on_loop

    def prove(self) -> None:
        """Have the thread find that the instance is fast."""
        for _ in range(64):
            assert not self.execute(30 * US)
        assert self.execute(30 * US)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_loop_executes_instances_measured_as_fast(scene: Scene) -> None:
    scene.prove()
    assert all(scene.execute(80 * US) for _ in range(1000))


def test_temporarily_slow_machine_changes_nothing(scene: Scene) -> None:
    scene.prove()
    assert all(scene.execute(180 * US) for _ in range(1000))


def test_slow_execution_moves_to_the_thread(scene: Scene) -> None:
    scene.prove()
    while scene.execute(250 * US):
        pass
    assert not any(scene.execute(150 * US) for _ in range(2000))


def test_what_is_never_fast_stays_with_its_thread(scene: Scene) -> None:
    assert not any(scene.execute(150 * US) for _ in range(200))


def test_busy_machine_still_tries_the_loop(scene: Scene) -> None:
    """The thread waits for the core and the GIL; the shortest of its executions shows what the model takes."""
    assert not any(scene.execute(5 * MS if number % 4 else 40 * US) for number in range(64))
    assert scene.execute(40 * US)


def test_what_other_processes_take_does_not_count(scene: Scene) -> None:
    scene.prove()
    assert all(scene.execute(20 * MS, 30 * US) for _ in range(1000))


def test_long_waits_move_back_with_growing_intervals(scene: Scene) -> None:
    scene.prove()
    assert scene.execute(20 * MS, 30 * US, waits=True)  # the first doubt
    for penalty in (250, 1000, 4000, 10_000, 10_000):
        assert scene.execute(20 * MS, 30 * US, waits=True)
        assert not any(scene.execute(30 * US) for _ in range(penalty))
        scene.prove()


def test_what_was_long_ago_is_forgotten(scene: Scene) -> None:
    scene.prove()
    for _ in range(2):
        assert scene.execute(20 * MS, 30 * US, waits=True)  # the first doubt
        assert scene.execute(20 * MS, 30 * US, waits=True)
        assert not any(scene.execute(30 * US) for _ in range(250))
        scene.prove()
        assert all(scene.execute(30 * US) for _ in range(10_000))


def test_long_computation_moves_back_to_the_thread(scene: Scene) -> None:
    scene.prove()
    assert scene.execute(20 * MS)
    assert scene.execute(20 * MS)
    assert not scene.execute(30 * US)


def test_long_executions_stay_on_the_thread(scene: Scene) -> None:
    scene.prove()
    assert any(not scene.execute(300 * US) for _ in range(20))
    assert not any(scene.execute(30 * US) for _ in range(999))


def test_a_large_batch_may_take_longer(scene: Scene) -> None:
    scene.prove()
    assert all(scene.execute(200 * US, size=32) for _ in range(200))
    assert any(not scene.execute(500 * US, size=32) for _ in range(200))


def test_kernel_is_asked_only_after_a_long_execution(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.prove()
    assert scene.execute(250 * US)  # the doubt
    calls: list[int] = []
    monkeypatch.setattr(resource, "getrusage", lambda target: calls.append(target) or SimpleNamespace(ru_nvcsw=0))
    assert all(scene.execute(50 * US) for _ in range(1000))
    assert len(calls) == 64


def test_long_executions_among_short_ones_are_noticed(scene: Scene) -> None:
    scene.prove()
    assert not all(scene.execute((600 if number % 2 else 50) * US) for number in range(100))


def test_usage_knows_the_own_work_of_this_thread() -> None:
    before = ThreadUsage()
    total = sum(range(20_000))
    assert total
    assert before.undisturbed_ns(1 << 62) > 0
