import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from naiad.core.errors import internal
from naiad.server.ports.file_watch import FileWatch


class Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(callback))
        return self.timers[-1]


def watch(path: Path, reload: Callable[[], None]) -> tuple[Any, FileWatch]:
    loop = Loop()
    return loop, FileWatch(loop, (str(path),), reload)  # type: ignore[arg-type]


def test_reloads_once_for_each_change(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("a")
    calls: list[str] = []
    _, files = watch(path, lambda: calls.append(path.read_text()))
    files.check()
    assert calls == []
    path.write_text("bb")
    files.check()
    files.check()
    assert calls == ["bb"]


def test_sees_a_link_that_leads_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("a")
    (tmp_path / "new").write_text("b")
    link = tmp_path / "keys"
    link.symlink_to("old")
    calls: list[str] = []
    _, files = watch(link, lambda: calls.append(link.read_text()))
    (tmp_path / "next").symlink_to("new")
    os.replace(tmp_path / "next", link)
    files.check()
    assert calls == ["b"]


def test_failure_is_logged_and_next_change_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    path.write_text("a")

    def reload() -> None:
        raise internal("--api-key-file keys: line 1: wrong")

    _, files = watch(path, reload)
    path.write_text("bb")
    with caplog.at_level(logging.INFO):
        files.check()
        path.unlink()
        files.check()
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == ["--api-key-file keys: line 1: wrong; the previous content stays in use"] * 2


def test_looks_again_and_again_until_stopped(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("a")
    calls: list[str] = []
    loop, files = watch(path, lambda: calls.append("reloaded"))
    files.start()
    path.write_text("bb")
    loop.timers[-1].callback()
    assert calls == ["reloaded"]
    assert len(loop.timers) == 2
    files.stop()
    assert loop.timers[-1].is_cancelled
