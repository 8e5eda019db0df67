"""Which threads a change wakes, of loads that wait for room."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from naiad.config.load_policy import LoadPolicy
from naiad.repository.control.on_demand import room_line
from naiad.repository.control.on_demand.memory.budgets import HOST
from naiad.repository.control.on_demand.residency import Residency
from naiad.repository.control.on_demand.room_line import RoomLine

NAMES = ("a", "b", "c", "d")


class Scene:
    """Loads that wait for room, and how often each has looked."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.residency = Residency({HOST: 1 << 20})
        self.line = RoomLine(self.lock, self.changed, self.residency)
        self.looks: Counter[str] = Counter()
        self._has_ended = False
        for name in NAMES:
            self.residency.add(name, LoadPolicy(is_on_demand=True), 1)
            self.residency.ask(name, 0.0)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._wait, args=(name,)) for name in NAMES]
        for thread in threads:
            thread.start()
        self.until(lambda: len(self.looks) == len(NAMES))
        try:
            yield
        finally:
            with self.lock:
                self._has_ended = True
                self.line.notify_all()
            for thread in threads:
                thread.join(10)
                assert not thread.is_alive()

    def _wait(self, name: str) -> None:
        with self.lock:
            while not self._has_ended:
                self.looks[name] += 1
                self.line.wait(name, 60.0)

    def until(self, holds) -> None:
        end_s = time.monotonic() + 30
        while time.monotonic() < end_s:
            with self.lock:
                if holds():
                    return
            time.sleep(0.002)
        raise AssertionError(self.looks)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(room_line, "_LOOK_S", 60.0)
    monkeypatch.setattr(room_line, "_WAIT_S", 60.0)
    return Scene()


def test_changes_wake_only_the_first_load(scene: Scene) -> None:
    with scene.waiting():
        for number in range(2, 12):
            with scene.lock:
                scene.line.notify()
            scene.until(lambda count=number: scene.looks["a"] >= count)
        assert [scene.looks[name] for name in "bcd"] == [1, 1, 1]


def test_next_load_wakes_when_it_is_first(scene: Scene) -> None:
    with scene.waiting():
        with scene.lock:
            scene.residency.room("a", dict, 0.0)  # it is admitted
            scene.line.notify()
        scene.until(lambda: scene.looks["b"] == 2)
        assert [scene.looks[name] for name in "cd"] == [1, 1]


def test_all_look_while_the_first_is_stuck(scene: Scene) -> None:
    with scene.waiting():
        with scene.lock:
            scene.residency._stuck.add("a")
            scene.line.notify()
        scene.until(lambda: all(scene.looks[name] == 2 for name in NAMES))
