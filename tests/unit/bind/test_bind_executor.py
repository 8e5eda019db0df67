"""The event loop of a bound instance: open requests are bounded, and nothing that a task raises ends it."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from naiad.bind import callable_loop
from naiad.bind.callable_loop import AsyncExecutor


@pytest.fixture
def executor() -> Iterator[AsyncExecutor]:
    made = AsyncExecutor("m_0_0")
    yield made
    made.close()


class _Work:
    """Work that stays open until it may end."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.gate: asyncio.Event | None = None
        self.open_count = 0

    async def __call__(self) -> None:
        self.gate = self.gate or asyncio.Event()
        self.open_count += 1
        self.begun.release()
        await self.gate.wait()
        self.open_count -= 1

    async def open_gate(self) -> None:
        assert self.gate is not None
        self.gate.set()


@pytest.mark.parametrize(("request_count", "submitted"), [(1, 2), (2, 1)])
def test_open_requests_are_bounded(
    executor: AsyncExecutor, monkeypatch: pytest.MonkeyPatch, request_count: int, submitted: int
) -> None:
    monkeypatch.setattr(callable_loop, "MAX_OPEN_REQUESTS", 2)
    work = _Work()
    for _ in range(submitted):
        executor.submit(work(), request_count)
        assert work.begun.acquire(timeout=60)
    further = threading.Thread(target=lambda: executor.submit(work(), request_count), daemon=True)
    further.start()
    further.join(0.2)
    assert further.is_alive()
    assert work.open_count == submitted
    executor.run(work.open_gate())
    further.join(60)
    assert not further.is_alive()
    assert work.begun.acquire(timeout=60)


def test_batch_larger_than_the_limit_executes(executor: AsyncExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callable_loop, "MAX_OPEN_REQUESTS", 2)
    work = _Work()
    executor.submit(work(), 5)
    assert work.begun.acquire(timeout=60)
    executor.run(work.open_gate())


@pytest.mark.parametrize(
    "raised", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, MemoryError]
)
def test_work_that_raises_gives_its_place_back(
    executor: AsyncExecutor, monkeypatch: pytest.MonkeyPatch, raised: type[BaseException]
) -> None:
    monkeypatch.setattr(callable_loop, "MAX_OPEN_REQUESTS", 1)

    async def fail() -> None:
        raise raised

    async def succeed() -> str:
        return "still here"

    for _ in range(3):
        executor.submit(fail(), 1)  # blocks forever if the one before keeps its place
    assert executor.run(succeed()) == "still here"


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_callback_that_raises_does_not_end_the_loop(executor: AsyncExecutor, raised: type[BaseException]) -> None:
    async def schedule() -> None:
        def fail() -> None:
            raise raised

        asyncio.get_running_loop().call_soon(fail)

    async def succeed() -> str:
        return "still here"

    executor.run(schedule())
    assert executor.run(succeed()) == "still here"


def test_submission_to_a_closed_executor_is_refused(executor: AsyncExecutor) -> None:
    async def nothing() -> Any:
        return None

    executor.run(nothing())
    executor.close()
    for _ in range(3):
        with pytest.raises(RuntimeError):
            executor.submit(nothing(), callable_loop.MAX_OPEN_REQUESTS)
