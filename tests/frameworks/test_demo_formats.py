"""`naiad demo formats`: all formats of one classifier in one server give the same answers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from naiad.tools.demo.formats.format_catalog import FORMATS

SOURCE = Path(__file__).resolve().parents[2] / "src"
MAY_TAKE_S = 280


@pytest.mark.long  # test_any_file.py serves all formats in CI.
def test_formats_agree(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "naiad", "demo", "formats", "--repository", str(tmp_path / "models")],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=MAY_TAKE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if line.count("│") > 5}
    for each in FORMATS:
        assert re.search(r" (\d+)/297 +│ +297/297 ", rows[each.name]), rows[each.name]
