"""The lines of a worker that has died are closed when nobody uses them."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from naiad.backend import python_life
from naiad.backend.python_life import WorkerLife


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerLife]:
    monkeypatch.setattr(python_life, "_RELEASE_S", 0.001)
    anything: Any = None
    made = WorkerLife("m_0", anything, anything, {}, anything, lambda health: None)
    yield made
    made.close()


def test_who_still_reads_is_waited_for(life: WorkerLife) -> None:
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
