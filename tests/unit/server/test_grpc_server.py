"""Responses of another server for a client that does not read."""

import asyncio

import pytest

from naiad.server import grpc_server


def test_long_pause_is_looked_at_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s: list[float] = []

    async def sleep(delay_s: float) -> None:
        pauses_s.append(delay_s)

    monkeypatch.setattr(grpc_server.asyncio, "sleep", sleep)
    asyncio.run(grpc_server._end_of_pause(lambda: len(pauses_s) < 50))
    assert pauses_s[:3] == [0.005, 0.01, 0.02], "a client that was slow for a moment is answered soon"
    assert pauses_s[-40:] == [0.1] * 40
    assert sum(pauses_s) > 4, "200 looks at each client in a second would occupy the loop"
    for earlier, pause_s in enumerate(pauses_s[1:], 1):
        assert pause_s <= sum(pauses_s[:earlier]) + 0.005
