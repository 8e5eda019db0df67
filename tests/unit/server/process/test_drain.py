import asyncio
import logging

import pytest

from naiad.server.process.drain import drain
from support.one_engine import OneEngine


class Engine(OneEngine):
    """An engine with a sequence that ends by the third check."""

    is_draining = False
    count = 3

    def __init__(self) -> None:
        self.looks = 0
        self.is_closed_to_new_sequences = False

    @property
    def live_sequence_count(self) -> int:
        assert self.is_closed_to_new_sequences
        self.looks += 1
        return int(self.looks < 3)

    def abort(self, reason: str) -> None:
        self.reason = reason

    def close_to_new_sequences(self) -> None:
        self.is_closed_to_new_sequences = True


class FakeConnections:
    def __init__(self, events: list[str], name: str, *, closes: bool = True) -> None:
        self._events = events
        self._name = name
        self._closes = closes
        self.connection_count = 2

    def announce_drain(self) -> None:
        self._events.append(f"{self._name} announces")

    def drain(self) -> None:
        self._events.append(f"{self._name} drains")

    def finish(self) -> None:
        self._events.append(f"{self._name} finishes")

    async def wait_closed(self) -> None:
        if not self._closes:
            await asyncio.get_running_loop().create_future()
        self._events.append(f"{self._name} closed")

    def abort(self) -> None:
        self._events.append(f"{self._name} aborts what is left")


class FakeEndpoint:
    def __init__(self, events: list[str], name: str, *, closes: bool = True) -> None:
        self._events = events
        self._name = name
        self.connections = FakeConnections(events, name, closes=closes)

    async def stop_listening(self) -> None:
        self._events.append(f"{self._name} stops listening")


def run_drain(
    engine: Engine, events: list[str], *, closes: bool = True, unloads: bool = True, timeout_s: float = 5.0
) -> bool:
    def unload(left_s: float) -> bool:
        assert 0 <= left_s <= timeout_s
        assert engine.phase.is_draining
        events.append("unloads")
        return unloads

    services = [FakeEndpoint(events, "http"), FakeEndpoint(events, "grpc", closes=closes)]
    return asyncio.run(drain(engine, services, unload, drain_s=0, exit_timeout_s=timeout_s))  # type: ignore[arg-type]


def test_drain_runs_in_order() -> None:
    events: list[str] = []
    engine = Engine()
    assert run_drain(engine, events)
    assert engine.looks == 3
    assert engine.phase.is_draining
    assert events == [
        "http announces",
        "grpc announces",
        "http stops listening",
        "grpc stops listening",
        "http drains",
        "grpc drains",
        "http closed",
        "grpc closed",
        "http aborts what is left",
        "grpc aborts what is left",
        "unloads",
    ]


def test_drain_gives_up_when_connections_do_not_end(caplog: pytest.LogCaptureFixture) -> None:
    events: list[str] = []
    with caplog.at_level(logging.WARNING):
        assert not run_drain(Engine(), events, closes=False, timeout_s=0.0)
    assert "unloads" not in events
    assert "3 requests in flight, 4 connections open" in caplog.text


def test_drain_reports_unfinished_requests() -> None:
    assert not run_drain(Engine(), [], unloads=False)


def test_idle_connections_are_served_until_near_end() -> None:
    events: list[str] = []
    engine = Engine()
    engine.in_flight.count = 0
    assert run_drain(engine, events, closes=False, timeout_s=0.2)
    assert events.index("grpc finishes") < events.index("grpc aborts what is left")
    assert events[-1] == "unloads"
