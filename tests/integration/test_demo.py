"""The demonstration does what the README promises: real models, real inputs, right answers over both protocols."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
PACKAGES_MAY_TAKE_S = 300


@pytest.mark.timeout(PACKAGES_MAY_TAKE_S + 60)
def test_demo_answers_over_http_and_grpc(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "naiad", "demo", "--repository", str(tmp_path / "models")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PACKAGES_MAY_TAKE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = done.stdout.splitlines()
    for protocol in ("HTTP", "gRPC"):
        answers = "\n".join(row for row in rows if f" {protocol} " in row)
        assert "python (1.00)" in answers
        assert "png (1.00)" in answers
        assert "≈ How do I reset the login to my account?" in answers
        assert "≈ Will it rain tomorrow?" in answers
        assert "“Invoice 2024-0117”" in answers
        assert "“Total due: 1,284.50 EUR" in answers
