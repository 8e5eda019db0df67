import asyncio

import pytest

from naiad.cluster.member.sharing import RequestCoalescing


class Source:
    """Returns an increasing number, once it is allowed to."""

    def __init__(self) -> None:
        self.begun = 0
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def ask(self, query: str) -> int:
        self.begun += 1
        number = self.begun
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return number


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_concurrent_callers_share_next_result() -> None:
    async def run() -> None:
        source = Source()
        answers: RequestCoalescing[str, int] = RequestCoalescing(source.ask)
        first = asyncio.ensure_future(answers.get("q"))
        await turns()
        later = [asyncio.ensure_future(answers.get("q")) for _ in range(100)]
        await turns()
        assert source.begun == 1
        source.gate.set()
        assert await first == 1
        assert await asyncio.gather(*later) == [2] * 100
        assert source.begun == 2

    asyncio.run(run())


def test_different_questions_do_not_wait_for_each_other() -> None:
    async def run() -> None:
        source = Source()
        answers: RequestCoalescing[str, int] = RequestCoalescing(source.ask)
        asked = [asyncio.ensure_future(answers.get(query)) for query in "ab"]
        await turns()
        assert source.begun == 2
        source.gate.set()
        assert await asyncio.gather(*asked) == [1, 2]

    asyncio.run(run())


def test_failure_reaches_only_waiting_callers() -> None:
    async def run() -> None:
        source = Source()
        source.error = ValueError("no")
        source.gate.set()
        answers: RequestCoalescing[str, int] = RequestCoalescing(source.ask)
        for result in await asyncio.gather(answers.get("q"), answers.get("q"), return_exceptions=True):
            assert isinstance(result, ValueError)
        source.error = None
        assert await answers.get("q") == 2
        assert not answers._querying
        assert not answers._next

    asyncio.run(run())


def test_cancelled_caller_does_not_affect_other_callers() -> None:
    async def run() -> None:
        source = Source()
        answers: RequestCoalescing[str, int] = RequestCoalescing(source.ask)
        impatient, patient = (asyncio.ensure_future(answers.get("q")) for _ in range(2))
        await turns()
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        source.gate.set()
        assert await patient == 1

    asyncio.run(run())
