"""The demonstration does what the README promises: real models, real inputs, right answers over both protocols."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "200"}
PACKAGES_MAY_TAKE_S = 300
COMMANDS = "Three commands to copy"
pytestmark = pytest.mark.timeout(PACKAGES_MAY_TAKE_S + 60)


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PACKAGES_MAY_TAKE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def naiad(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "naiad", *arguments]


def test_demo_answers_over_http_and_grpc(tmp_path: Path) -> None:
    printed = run(naiad("demo"), tmp_path)
    rows = printed.splitlines()
    for protocol in ("HTTP", "gRPC"):
        answers = "\n".join(row for row in rows if f" {protocol} " in row)
        assert "python (1.00)" in answers
        assert "png (1.00)" in answers
        assert "≈ How do I reset the login to my account?" in answers
        assert "≈ Will it rain tomorrow?" in answers
        assert "“Invoice 2024-0117”" in answers
        assert "“Total due: 1,284.50 EUR" in answers
    title = next(number for number, row in enumerate(rows) if "200 concurrent requests" in row)
    rate, executions, mean_batch_size, *percentiles = map(float, re.findall(r"[\d.]+", rows[title + 4]))
    assert rate > 0
    assert 1 < mean_batch_size <= 64
    assert executions == pytest.approx(200 / mean_batch_size, rel=0.01)
    assert percentiles == sorted(percentiles)
    commands = [row.strip() for row in rows[rows.index(COMMANDS) + 1 :]]
    assert [shlex.split(command)[-1] for command in commands] == [
        "naiad_demo/models",
        "http://localhost:8000/v2/models/file_type",
        "file_type",
    ]
    assert list(tmp_path.iterdir()) == [tmp_path / "naiad_demo"]
    run(naiad("check", "naiad_demo/models"), tmp_path)


def test_printed_commands_work_beside_demo(tmp_path: Path) -> None:
    process = subprocess.Popen(
        naiad("demo", "--keep-running"), cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith(COMMANDS):
                break
        metadata, explain, ocr = (shlex.split(process.stdout.readline()) for _ in range(3))
        assert '"target_label"' in run(metadata, tmp_path)
        assert "Rows of batches" in run(explain, tmp_path)
        assert "Thank you for your order" in run(ocr, tmp_path)
        assert (tmp_path / "naiad_demo" / "invoice.ocr.png").is_file()
        assert {path.name for path in (tmp_path / "naiad_demo").iterdir()} == {"models", "ocr", "invoice.ocr.png"}
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        process.stdout.close()
