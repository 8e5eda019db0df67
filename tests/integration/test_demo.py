"""The demonstration does what the README promises: real models, real inputs, right answers over both protocols."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image, ImageDraw, ImageFont

from support.browser import needs_browser
from support.page_tests import needs_modules, needs_node, run_page_tests

SOURCE = Path(__file__).resolve().parents[2] / "src"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "200"}
PACKAGES_MAY_TAKE_S = 300
COMMANDS = "Three commands to copy"
NOTE = ("Meeting at noon", "Bring 3 red apples", "Room 42, second floor")
pytestmark = pytest.mark.timeout(PACKAGES_MAY_TAKE_S + 60)


class Kept(NamedTuple):
    """A demonstration that keeps running."""

    folder: Path
    printed: list[str]
    """Its lines up to the address of the dashboard."""


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


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """The command of `make demo-keep`, with what it has printed."""
    folder = tmp_path_factory.mktemp("kept")
    process = subprocess.Popen(
        naiad("demo", "--keep-running"), cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        printed: list[str] = []
        for line in process.stdout:
            printed.append(line.strip())
            if line.startswith("Dashboard: "):
                break
        yield Kept(folder, printed)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        process.stdout.close()


def test_demo_answers_over_http_and_grpc(kept: Kept) -> None:
    check_answers(kept.printed)
    assert list(kept.folder.iterdir()) == [kept.folder / "naiad_demo"]
    run(naiad("check", "naiad_demo/models"), kept.folder)


@pytest.mark.long  # test_demo_ocr.py has a demonstration that ends by itself
def test_demo_ends_by_itself(tmp_path: Path) -> None:
    rows = run(naiad("demo"), tmp_path).splitlines()
    check_answers(rows)
    first = rows.index(COMMANDS) + 1
    commands = [row.strip() for row in rows[first : first + 3]]
    assert [shlex.split(command)[-1] for command in commands] == [
        "naiad_demo/models",
        "http://localhost:8000/v2/models/file_type",
        "file_type",
    ]
    assert list(tmp_path.iterdir()) == [tmp_path / "naiad_demo"]


def check_answers(rows: Sequence[str]) -> None:
    """Check the tables that a demonstration prints."""
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


def test_printed_commands_work_beside_demo(kept: Kept) -> None:
    first = kept.printed.index(COMMANDS) + 1
    metadata, explain, ocr = map(shlex.split, kept.printed[first : first + 3])
    assert '"target_label"' in run(metadata, kept.folder)
    assert "Rows of batches" in run(explain, kept.folder)
    assert "Thank you for your order" in run(ocr, kept.folder)
    assert (kept.folder / "naiad_demo" / "invoice.ocr.png").is_file()
    assert {path.name for path in (kept.folder / "naiad_demo").iterdir()} == {"models", "ocr", "invoice.ocr.png"}


def write_note(path: Path) -> None:
    """Draw lines of several sizes, one of them slanted, on a background that is not flat."""
    page = Image.blend(
        Image.linear_gradient("L").resize((800, 500)).convert("RGB"), Image.new("RGB", (800, 500), "#ffe0a0"), 0.7
    )
    pen = ImageDraw.Draw(page)
    pen.text((70, 50), NOTE[0], fill="#102040", font=ImageFont.load_default(56))
    pen.text((70, 190), NOTE[1], fill="#601020", font=ImageFont.load_default(40))
    label = Image.new("RGB", (460, 66), "#fff4d0")
    ImageDraw.Draw(label).text((10, 10), NOTE[2], fill="#104010", font=ImageFont.load_default(36))
    page.paste(label.rotate(5, Image.Resampling.BICUBIC, expand=True, fillcolor="#ffe0a0"), (150, 300))
    page.save(path)


@needs_node
@needs_modules
@needs_browser
def test_own_picture_is_read_in_a_browser(kept: Kept, tmp_path: Path) -> None:
    write_note(tmp_path / "note.png")
    label, _, url = kept.printed[-1].partition(" ")
    assert label == "Dashboard:"
    run_page_tests(
        "playground/demo.test.mjs",
        NAIAD_URL=url,
        WORK=str(tmp_path),
        PICTURE=str(tmp_path / "note.png"),
        LINES=json.dumps(NOTE),
    )
