"""Signals during a run interrupt it; afterwards the handlers of the program are in place again."""

import asyncio
import signal

from naiad.tools.perf.perf_session import _signals


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
