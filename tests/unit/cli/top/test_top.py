"""How `naiad top` follows servers: what ends the wait of `--once`, and streams of other programs."""

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest

from naiad.cli.top import top as top_module
from naiad.cli.top.top import Top, make_parser
from naiad.client import ErrorCode, InferError
from naiad.client.live_events import LiveEvent

SAMPLE = {"time_ms": 1, "process": {"cpu_s": 0.0, "resident_bytes": 1, "in_flight": 0}, "versions": {}}


async def follow_until(top: Top, is_met: Callable[[], bool]) -> None:
    """Follow the servers of a table until a condition is met."""
    following = [asyncio.ensure_future(top._follow(index)) for index in range(len(top._servers))]
    async with asyncio.timeout(30):
        while not is_met():
            await asyncio.sleep(0.01)
    for task in following:
        task.cancel()


class Answers:
    """A client that has an error or a sample for each attempt, then samples."""

    def __init__(self, *answers: InferError | None) -> None:
        self._answers = list(answers)

    async def live(self, **query: object) -> AsyncGenerator[LiveEvent, None]:
        answer = self._answers.pop(0) if self._answers else None
        if answer is not None:
            raise answer
        yield LiveEvent("sample", SAMPLE)


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


REFUSED = InferError(ErrorCode.PERMISSION_DENIED, "missing API key")
ABSENT = InferError(ErrorCode.NOT_FOUND, "no such path")


def test_refusals_of_a_proxy_are_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_module, "_FIRST_PAUSE_S", 0.01)
    for answers in ((ABSENT, REFUSED, None), (None, REFUSED, ABSENT, None)):
        top = make_top(Answers(*answers))  # type: ignore[arg-type]
        samples = answers.count(None)
        asyncio.run(follow_until(top, lambda top=top, samples=samples: top._sample_counts[0] > samples))  # type: ignore[misc]
        assert top._status is None


def test_reason_is_shown_while_a_server_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_module, "_FIRST_PAUSE_S", 0.01)
    top = make_top(Answers(None, REFUSED, *[ABSENT] * 50))  # type: ignore[arg-type]
    asyncio.run(follow_until(top, lambda: "no such path" in top._servers[0].problem))
    assert top._status is None


def test_wrong_key_at_the_start_is_the_end() -> None:
    top = make_top(Answers(*[REFUSED] * 50))  # type: ignore[arg-type]
    asyncio.run(follow_until(top, lambda: top._status is not None))
    assert (top._status, top._servers[0].problem) == (1, "missing API key")


def test_refusal_of_one_server_is_not_the_end() -> None:
    top = Top(["http://one:8000", "http://two:8000"], {}, make_parser().parse_args([]))
    top._clients = [Answers(*[REFUSED] * 50), Answers()]  # type: ignore[list-item]
    asyncio.run(follow_until(top, lambda: None not in top._was_refused))
    assert (top._status, top._was_refused) == (None, [True, False])
