"""How `naiad top` follows servers: what ends the wait of `--once`, and streams of other programs."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from naiad.cli.top import top as top_module
from naiad.cli.top.top import Top, make_parser
from naiad.client.live_events import LiveEvent

SAMPLE = {"time_ms": 1, "process": {"cpu_s": 0.0, "resident_bytes": 1, "in_flight": 0}, "versions": {}}


class Stream:
    """A client whose stream has given events, with a pause before each."""

    def __init__(self, *events: LiveEvent, pause_s: float = 0.0) -> None:
        self._events = events
        self._pause_s = pause_s

    async def live(self, **query: object) -> AsyncGenerator[LiveEvent, None]:
        for event in self._events:
            await asyncio.sleep(self._pause_s)
            yield event
        await asyncio.sleep(3600)


def make_top(stream: Stream, *arguments: str) -> Top:
    top = Top(["http://one:8000"], {}, make_parser().parse_args(["--once", *arguments]))
    top._clients = [stream]  # type: ignore[list-item]
    return top


def test_once_waits_for_its_intervals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(top_module, "_ONCE_TIMEOUT_S", 0.05)
    samples = [LiveEvent("sample", {**SAMPLE, "time_ms": number}) for number in (1, 2, 3)]
    top = make_top(Stream(*samples, pause_s=0.1), "--interval=10s")
    assert asyncio.run(top.once()) == 0
    assert top._sample_counts == [3]


@pytest.mark.parametrize("data", [{}, {"time_ms": "1", "process": {}, "versions": {}}, {"time_ms": 1, "process": []}])
def test_stream_of_another_program_is_a_problem(data: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    samples = [LiveEvent("sample", SAMPLE), LiveEvent("sample", data)]
    assert asyncio.run(make_top(Stream(*samples)).once()) == 0
    assert "is not one of this version of naiad" in capsys.readouterr().out
