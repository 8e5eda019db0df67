"""Text for terminals: columns and colors."""

import io
import logging

import pytest

from naiad.telemetry.logs.console import RED, YELLOW, has_colors, print_failure, wrapped
from naiad.telemetry.logs.log_output import TritonFormatter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_colors_need_terminal_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_colors(Terminal())
    assert not has_colors(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colors(Terminal())


def test_lines_fit_but_paths_stay_whole() -> None:
    path = "/" + "long-directory/" * 10
    lines = wrapped(f"{'word ' * 30}{path} {'word ' * 30}").splitlines()
    assert path in [line.strip() for line in lines]
    assert all(len(line) <= 100 for line in lines if path not in line)


def test_failure_is_red_on_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, opening in ((Terminal(), RED), (io.StringIO(), "naiad")):
        monkeypatch.setattr("sys.stderr", stream)
        print_failure("naiad serve: no", ["a: b\n  c"], "try this")
        assert stream.getvalue().startswith(opening)
        assert stream.getvalue().endswith("\n  a: b c\ntry this\n")


@pytest.mark.parametrize(("level", "color"), [(logging.ERROR, RED), (logging.WARNING, YELLOW), (logging.INFO, "I")])
def test_log_line_has_color_of_level(level: int, color: str) -> None:
    record = logging.makeLogRecord({"levelno": level, "msg": "text"})
    assert TritonFormatter(colors=True).format(record).startswith(color)
    assert "\x1b" not in TritonFormatter().format(record)
