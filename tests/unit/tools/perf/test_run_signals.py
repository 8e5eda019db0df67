"""Signals during a run interrupt it; afterwards the handlers of the program are in place again."""

import asyncio
import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from naiad.client import ConnectionFailedError
from naiad.tools.perf.measuring.level import PerfProgress
from naiad.tools.perf.perf_plan import Concurrency, ModelLoad, Plan, Protocol, Search, ServerTarget
from naiad.tools.perf.perf_session import LoadNotSentError, Session, _measure_all, _signals


class Interrupted:
    def __init__(self) -> None:
        self.count = 0

    def interrupt(self) -> None:
        self.count += 1


def test_handlers_of_the_program_return() -> None:
    received: list[int] = []
    own = lambda number, frame: received.append(number)  # noqa: E731 - a handler
    before = signal.signal(signal.SIGTERM, own)
    session = Interrupted()

    async def run(*, is_interrupted: bool) -> None:
        with _signals(session):
            if is_interrupted:
                signal.raise_signal(signal.SIGTERM)
                while not session.count:
                    await asyncio.sleep(0)

    try:
        asyncio.run(run(is_interrupted=False))
        assert signal.getsignal(signal.SIGTERM) is own
        asyncio.run(run(is_interrupted=True))
        assert (session.count, received) == (1, [])
        signal.raise_signal(signal.SIGTERM)
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


class Opening:
    """A generator whose connections are never open, or fail at a number of them."""

    def __init__(self, limit: int = 1) -> None:
        self.limit = limit
        self.is_cancelled = False

    async def open(self, connections: int) -> None:
        if connections > self.limit > 1:
            raise ConnectionFailedError(f"{connections} are too many")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise


def session_with(generator: Opening, loads: Search) -> Session:
    session = Session(Plan(ServerTarget("http://h:1", Protocol.HTTP), [ModelLoad("m")], loads), PerfProgress())
    session._generator = cast("Any", generator)
    return session


def test_interrupt_ends_the_opening_of_connections() -> None:
    async def main() -> None:
        generator = Opening()
        session = session_with(generator, Search(100_000, 100_000))
        asyncio.get_running_loop().call_later(0.01, session.interrupt)
        assert await asyncio.wait_for(_measure_all(session), 30) == ([], None, "interrupted")
        assert generator.is_cancelled

    asyncio.run(main())


def test_loads_before_a_failed_one_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        session = session_with(Opening(limit=50), Search(10, 100, 90))
        connect = session.measure

        async def measure(load: Concurrency) -> list[Any]:
            return await connect(load) if load.value > 50 else [SimpleNamespace(interrupted="")]

        monkeypatch.setattr(session, "measure", measure)
        rows, _, exit_reason = await _measure_all(session)
        assert (len(rows), exit_reason) == (1, "100 are too many")
        with pytest.raises(LoadNotSentError, match="100 are too many"):
            await connect(Concurrency(100))

    asyncio.run(main())
