import asyncio
import signal

import pytest

from naiad.server.process.runner import StopSignal


def test_first_signal_asks_and_second_ends_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    statuses: list[int] = []

    async def run() -> None:
        stop = StopSignal(exit_now=statuses.append)
        assert not stop.is_set
        stop.receive(signal.SIGTERM)
        await stop.wait()
        assert stop.is_set
        assert statuses == []
        stop.receive(signal.SIGINT)

    asyncio.run(run())
    assert statuses == [1]
    assert capfd.readouterr().err == "Signal (15) received.\nSignal (2) received.\n"
