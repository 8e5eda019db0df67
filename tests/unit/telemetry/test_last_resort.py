"""Work without end goes on after any exception, after pauses that grow."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from naiad.telemetry import last_resort
from naiad.telemetry.last_resort import Relapses, begin_task, keep_running, keep_running_task, report

RAISED = [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, MemoryError, RecursionError]


def failing(times: int, raised: type[BaseException], calls: list[int]) -> Callable[[], None]:
    def work() -> None:
        calls.append(len(calls))
        if len(calls) <= times:
            raise raised

    return work


def test_pauses_grow_to_a_limit_and_begin_again():
    relapses = Relapses()
    pauses = [relapses.next_pause_s(0.0) for _ in range(12)]
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 30.0
    assert relapses.next_pause_s(1000.0) == 0.1


@pytest.mark.parametrize("raised", RAISED)
def test_thread_works_on_until_its_work_returns(raised: type[BaseException], caplog: pytest.LogCaptureFixture):
    calls: list[int] = []
    pauses: list[float] = []

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        return False

    keep_running("the thread", failing(3, raised, calls), pause)
    assert len(calls) == 4
    assert pauses == [0.1, 0.2, 0.4]
    assert len(caplog.records) == 3
    assert f"the thread failed unexpectedly: {raised.__name__}" in caplog.text


def test_thread_may_end_in_its_pause():
    calls: list[int] = []
    keep_running("the thread", failing(3, ValueError, calls), lambda seconds: True)
    assert len(calls) == 1


@pytest.mark.parametrize("raised", RAISED)
def test_task_works_on_until_it_is_cancelled(raised: type[BaseException], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(last_resort, "_FIRST_PAUSE_S", 0.0)
    calls: list[int] = []
    work = failing(3, raised, calls)

    async def without_end() -> None:
        work()
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.ensure_future(keep_running_task("the task", without_end))
        while len(calls) < 4:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(calls) == 4


def test_failure_of_a_task_is_logged(caplog: pytest.LogCaptureFixture):
    tasks: set[asyncio.Task[None]] = set()

    async def fail() -> None:
        raise ValueError("of a task")

    async def main() -> None:
        task = begin_task("a task", fail(), tasks)
        assert tasks == {task}
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert not tasks

    asyncio.run(main())
    assert "a task failed unexpectedly: ValueError: of a task" in caplog.text


def test_failing_log_does_not_end_the_work():
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise MemoryError

    handler = Broken()
    logging.getLogger("naiad").addHandler(handler)
    try:
        report("the thread", ValueError("x"))
    finally:
        logging.getLogger("naiad").removeHandler(handler)
