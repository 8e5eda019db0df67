"""`naiad demo voice` finds real speech, and the server's state makes the difference."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
PACKAGES_MAY_TAKE_S = 300


@pytest.mark.timeout(PACKAGES_MAY_TAKE_S + 60)
def test_voice_finds_the_words_of_real_speech(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "naiad", "demo", "voice", "--repository", str(tmp_path / "models")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PACKAGES_MAY_TAKE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [row for row in done.stdout.splitlines() if ".wav" in row]
    assert len(rows) == 4
    for row in rows:
        assert re.search(r"\d\.\d\d-\d+\.\d\d", row), row
    fronts = [row for row in rows if "Front_Center" in row]
    assert all("0.10-0.51, 0.80-1.41" in row for row in fronts)


def test_file_without_sound_is_refused_by_name(tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.wav"
    nonsense.write_bytes(b"nothing to hear")
    done = subprocess.run(
        [sys.executable, "-m", "naiad", "demo", "voice", str(nonsense), "--repository", str(tmp_path / "models")],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "500"},
        capture_output=True,
        text=True,
        timeout=PACKAGES_MAY_TAKE_S,
        check=False,
    )
    assert done.returncode == 1
    assert "nonsense.wav is not a WAV file" in done.stderr
