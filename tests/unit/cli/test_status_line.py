"""The line that shows progress, in a terminal and elsewhere."""

import io

import pytest

from naiad.cli import status_line
from naiad.cli.status_line import StatusLine


class Stream(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


class Clock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(status_line, "time", clock := Clock())
    return clock


def stderr(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool) -> Stream:
    stream = Stream(is_terminal)
    monkeypatch.setattr("sys.stderr", stream)
    return stream


def test_lines_replace_each_other_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = stderr(monkeypatch, is_terminal=True)
    status = StatusLine()
    status.show("one")
    status.replace("two")
    status.finish("done")
    status.clear()
    assert stream.getvalue() == "\r\x1b[2Kone\r\x1b[2Ktwo\r\x1b[2Kdone\n\r\x1b[2K"


def test_log_gets_a_line_per_interval(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    stream = stderr(monkeypatch, is_terminal=False)
    status = StatusLine()
    for clock.now_s in (0, 9.9, 10, 19.9, 20):
        status.show(f"at {clock.now_s}")
    status.restart_interval()
    clock.now_s = 29
    status.show("at 29")
    status.clear()
    assert stream.getvalue() == "at 10\nat 20\n"


def test_log_gets_a_line_per_phase(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    stream = stderr(monkeypatch, is_terminal=False)
    status = StatusLine()
    for line, phase in (("a 1", "a"), ("a 2", "a"), ("b 1", "b"), ("a 3", "a")):
        status.show(line, phase)
    status.replace("not shown")
    status.finish("done")
    assert stream.getvalue() == "a 1\nb 1\na 3\ndone\n"


def test_texts_replace_each_other_in_a_terminal() -> None:
    stream = Stream(is_terminal=True)
    status = StatusLine(stream=stream)
    status.show_lines("one\ntwo")
    status.show_lines("three")
    status.show_lines("four")
    assert stream.getvalue() == "one\ntwo\n\x1b[2A\r\x1b[Jthree\n\x1b[1A\r\x1b[Jfour\n"


def test_texts_follow_each_other_in_a_log() -> None:
    stream = Stream(is_terminal=False)
    status = StatusLine(stream=stream)
    status.show_lines("one\ntwo")
    status.show_lines("three")
    assert stream.getvalue() == "one\ntwo\n\nthree\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_quiet_commands_show_nothing(monkeypatch: pytest.MonkeyPatch, clock: Clock, is_terminal: bool) -> None:
    stream = stderr(monkeypatch, is_terminal=is_terminal)
    status = StatusLine(is_quiet=True)
    status.show("a", "phase")
    clock.now_s = 100
    status.show("b", "phase")
    status.finish("c")
    assert stream.getvalue() == ""
