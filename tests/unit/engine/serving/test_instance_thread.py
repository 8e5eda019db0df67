"""How much of its time the loop gives to executions, with a clock of the test."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import pytest

from naiad.core.batch import Batch
from naiad.engine.serving.execution.thread_runner import ThreadRunner
from support.engine_parts import ScriptedInstance
from support.scheduling import MS, waiting_request

if TYPE_CHECKING:
    from naiad.engine.serving.dispatch.dispatcher import Dispatcher
    from naiad.engine.serving.execution.executor import BatchExecutor


class _Instance(ScriptedInstance):
    runs_on_any_thread = True


class _Placement:
    is_on_loop = True
    is_wary = False

    def executed_on_loop(self, batch: Batch, before: object) -> None:
        pass


class _Loop:
    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        """Call what has been asked for until an execution is over, which asks for the next."""
        callbacks, self.soon = self.soon, []
        for callback in callbacks:
            callback()


class _Scene:
    """Single requests without end; each execution takes a millisecond."""

    def __init__(self, *, waiting: int = 10_000) -> None:
        self.now_ns = 1000 * MS
        self.waiting = waiting
        self.executed_count = 0
        self.loop = _Loop()
        self.thread = ThreadRunner(
            cast("Dispatcher", self), cast("BatchExecutor", self), _Instance(), cast("Any", self.loop)
        )
        self.thread._placement = cast("Any", _Placement())
        self.request_busy_polling = self

    def begin(self) -> None:
        pass

    def join_idle_if_empty(self, runner: object) -> bool:
        return False

    def take(self, runner: object) -> tuple[Batch | None, int]:
        if not self.waiting:
            return None, 0
        self.waiting -= 1
        return Batch([waiting_request()], 1), 0

    def execute(self, instance: object, batch: Batch, **_: Any) -> Sequence[object]:
        batch.exec_start_ns = self.now_ns
        self.now_ns += MS
        batch.exec_end_ns = self.now_ns
        self.executed_count += 1
        return ()

    def executed_in_turn(self, away_ns: int) -> int:
        """Return how many requests execute in a turn before which the loop did other things for so long."""
        self.now_ns += away_ns
        before = self.executed_count
        self.loop.turn()
        return self.executed_count - before


@pytest.mark.parametrize(("away_ms", "executed"), [(1, 1), (10, 10), (30, 30), (500, 40)])
def test_executions_get_their_share_of_the_loop(away_ms: int, executed: int) -> None:
    scene = _Scene()
    scene.thread.wake()
    scene.loop.turn()  # it gives way once before the first
    scene.loop.turn()
    assert scene.executed_in_turn(away_ms * MS) == executed
    assert scene.executed_in_turn(MS) == 1


def test_a_pause_without_requests_is_no_debt() -> None:
    scene = _Scene(waiting=1)
    scene.thread.wake()
    scene.loop.turn()
    scene.loop.turn()
    scene.loop.turn()
    assert (scene.executed_count, scene.loop.soon) == (1, [])
    scene.waiting = 10
    scene.thread.wake()
    assert scene.executed_in_turn(1000 * MS) == 1
