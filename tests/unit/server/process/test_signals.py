import asyncio
import json
import signal

import pytest

from naiad.server.process.process_environment import StopSignal


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


def test_signal_line_is_json_like_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        StopSignal(log_format="json").receive(signal.SIGTERM)

    asyncio.run(run())
    (line,) = capfd.readouterr().err.splitlines()
    shown = json.loads(line)
    assert (shown["level"], shown["message"]) == ("INFO", "Signal (15) received.")
