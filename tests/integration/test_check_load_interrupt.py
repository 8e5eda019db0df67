"""The processes of `naiad check --load`, when the command is interrupted."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from naiad.cli.check import check_load
from naiad.cli.check.check_load import LoadRules, _Loads
from naiad.tools.process.child import ChildProcess


def test_interrupt_ends_a_load_that_just_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loads = _Loads(str(tmp_path), LoadRules(timeout_s=50.0))

    def interrupted(command: Sequence[str], **settings: Any) -> ChildProcess:
        loads._is_over = True  # the interrupt arrives now, and finds no running process
        return ChildProcess([sys.executable, "-c", "import time; time.sleep(600)"], **settings)

    monkeypatch.setattr(check_load, "ChildProcess", interrupted)
    failures, _ = loads._load("model")
    assert "SIGKILL" in failures[0]


def test_load_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loads = _Loads(str(tmp_path), LoadRules(timeout_s=0.2))
    started: list[ChildProcess] = []

    def slow(command: Sequence[str], **settings: Any) -> ChildProcess:
        started.append(ChildProcess([sys.executable, "-c", "import time; time.sleep(600)"], **settings))
        return started[0]

    monkeypatch.setattr(check_load, "ChildProcess", slow)
    assert loads._load("model") == (["it was not ready after 0.2 s"], 0.2)
    assert not started[0].is_alive
