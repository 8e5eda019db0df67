"""The processes of `naiad check --load`."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from naiad.cli.check.check_load import LoadRules, _Loads


def test_interrupt_ends_a_load_that_just_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loads = _Loads(str(tmp_path), LoadRules(timeout_s=20.0))
    start = subprocess.Popen

    def interrupted(command: list[str], **settings: Any) -> "subprocess.Popen[bytes]":
        loads._is_over = True  # the interrupt arrives now, and finds no running process
        return start([sys.executable, "-c", "import time; time.sleep(60)"], **settings)

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    began_s = time.monotonic()
    failures, _ = loads._load("model")
    assert time.monotonic() - began_s < 10
    assert "SIGKILL" in failures[0]
