"""The soak tests, in short: `python -m bench.soak` runs them in full."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("kind", "count"), [("bls", 60), ("sequences", 60), ("mixed", 500)])
def test_every_answer_is_right_and_nothing_is_left(kind: str, count: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "bench.soak", kind, str(count)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"soak {kind}: " in done.stdout
    assert "0 wrong, 0 hung, nothing left behind" in done.stdout
