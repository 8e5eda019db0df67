"""The channels of a dead worker are closed once unused."""

import itertools
import queue
import threading
from collections.abc import Generator, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from naiad.backend.workers import life_cycle
from naiad.backend.workers.life_cycle import StartError, WorkerLife, begin
from naiad.backend.workers.process.worker_process import Event
from naiad.core.errors import InferError
from naiad.worker.channel import frame as frames
from naiad.worker.channel.frame import Frame


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerLife]:
    monkeypatch.setattr(life_cycle, "_RELEASE_S", 0.001)
    anything: Any = None
    made = WorkerLife("m_0", anything, anything, {}, anything, lambda health: None)
    yield made
    made.close()


def test_reading_thread_is_awaited(life: WorkerLife) -> None:
    found: list[bool] = []
    life.lock.acquire()
    waiting = threading.Thread(target=lambda: found.append(life._wait_until_free()))
    waiting.start()
    waiting.join(0.1)  # a hundred times as long as a loop that was stopped is waited for
    assert waiting.is_alive()
    life.lock.release()
    waiting.join(60)
    assert found == [True]


def test_a_loop_that_was_stopped_is_not(life: WorkerLife) -> None:
    life.lock.acquire()
    life._closing = True
    assert life._wait_until_free() is False


class Starting:
    """A worker that comes up, while another thread wakes the waiting one."""

    def __init__(self, *events: Event) -> None:
        self._events = list(events)
        self.channel = self

    def wait(self, timeout_s: float, wake_fd: int, *, for_reply: bool) -> Event:
        return self._events.pop(0)

    def localized(self, notes: dict[str, Any]) -> dict[str, Any]:
        return notes

    def send(self, kind: int, *, extra: dict[str, Any]) -> None:
        assert kind == frames.INITIALIZE

    def receive(self) -> Frame:
        return Frame(frames.DONE, (), "", {"answer": 42}, b"", 0, 0, 0)


SETTINGS: Any = SimpleNamespace(start_timeout_s=60.0, initialize_timeout_s=60.0)


def test_stale_wake_up_does_not_end_start() -> None:
    """The end of a first large batch wakes the thread, because idle memory must be checked from now on."""
    process: Any = Starting(Event.WAKE, Event.REPLY, Event.WAKE, Event.WAKE, Event.REPLY)
    assert begin(process, SETTINGS, {}, -1) == {"answer": 42}


def test_unload_does_not_wait_for_worker() -> None:
    process: Any = Starting(Event.REPLY, Event.WAKE)
    with pytest.raises(StartError, match="the model is being unloaded"):
        begin(process, SETTINGS, {}, -1, lambda: True)


class Broken(Starting):
    """A worker whose start meets a mistake of the server."""

    def __init__(self) -> None:
        super().__init__(Event.REPLY)
        self.gone = threading.Event()
        self.is_closed = False

    def localized(self, notes: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("args")

    def kill(self) -> None:
        self.gone.set()

    def close(self) -> None:
        self.is_closed = True


def test_unexpected_exception_fails_the_start() -> None:
    anything: Any = None
    process: Any = Broken()
    life = WorkerLife("m_0", SETTINGS, lambda: process, {}, anything, lambda health: None)
    with pytest.raises(InferError) as caught:
        life.start()
    assert caught.value.message == "instance 'm_0': the worker cannot be run: KeyError: 'args'"
    assert process.gone.is_set()
    assert process.is_closed


class Dying(Starting):
    """A worker that comes up and exits at once."""

    exit_text = "exited with status 1"

    def __init__(self) -> None:
        super().__init__(Event.REPLY, Event.REPLY, Event.EXIT)
        self.settled = threading.Event()
        self.gone = threading.Event()
        self.gone.set()

    def wait(self, timeout_s: float, wake_fd: int, *, for_reply: bool = False) -> Event:
        return self._events.pop(0)

    def await_ready(self, wake_fd: int, is_closing: object) -> None: ...

    def close(self) -> None: ...


def restarting(monkeypatch: pytest.MonkeyPatch, answering: Sequence[int], **settings: float) -> Generator[str]:
    """Yield what an instance says of each death of its worker; the workers numbered in `answering` answer a batch."""
    monkeypatch.setattr(life_cycle, "_FIRST_DELAY_S", 0.0)
    deaths: queue.Queue[str] = queue.Queue()
    numbers = itertools.count()
    chosen: Any = SimpleNamespace(
        **vars(SETTINGS),
        execute_timeout_s=0.0,
        hang_timeout_s=0.0,
        stacks_after_s=0.0,
        finalize_timeout_s=0.0,
        restart_wait_s=0.0,
        **settings,
    )

    def converse(process: object) -> Any:
        return SimpleNamespace(
            has_answered=next(numbers) in answering,
            executing_since_ns=0,
            has_blocks=False,
            finalize=lambda: False,
            close=lambda: None,
        )

    launch: Any = Dying
    life = WorkerLife("m_0", chosen, launch, {}, converse, lambda health: deaths.put(health) if health else None)
    try:
        life.start()
        while True:
            yield deaths.get(timeout=60)
    finally:
        life.close()


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_instance_is_down_after_the_configured_deaths(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    said = restarting(monkeypatch, (), restart_limit=limit, restart_window_s=60.0, restart_interval_s=3600.0)
    for _ in range(limit - 1):
        assert next(said).endswith("it is being restarted")
    assert f"that makes {limit} deaths within 60 s: requests are refused" in next(said)
    said.close()


def test_deaths_before_the_window_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    said = restarting(monkeypatch, (), restart_limit=2, restart_window_s=0.0, restart_interval_s=0.0)
    for _ in range(5):
        assert next(said).endswith("it is being restarted")
    said.close()


def test_deaths_before_a_passed_trial_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    said = restarting(monkeypatch, (3,), restart_limit=2, restart_window_s=60.0, restart_interval_s=0.0)
    assert next(said).endswith("it is being restarted")
    assert "that makes 2 deaths" in next(said)
    assert "on trial" in next(said)
    assert next(said).endswith("it is being restarted")
    assert "that makes 2 deaths" in next(said)
    said.close()
