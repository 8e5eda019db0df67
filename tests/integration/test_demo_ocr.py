"""`naiad demo ocr` reads what is written, slanted or upside down, through one ensemble."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from naiad.tools.demo import ocr

SOURCE = Path(__file__).resolve().parents[2] / "src"
PACKAGES_MAY_TAKE_S = 300
pytestmark = pytest.mark.timeout(PACKAGES_MAY_TAKE_S + 60)


def demo(tmp_path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    flags = ("--repository", str(tmp_path / "models"))
    return subprocess.run(
        [sys.executable, "-m", "naiad", "demo", "ocr", *arguments, *flags],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=PACKAGES_MAY_TAKE_S,
        check=False,
    )


def test_every_line_of_the_invoice_is_read(tmp_path: Path) -> None:
    done = demo(tmp_path, "--output", str(tmp_path / "read.png"))
    assert done.returncode == 0, done.stdout + done.stderr
    expected = [ocr.HEADING, *(part for line in ocr.LINES for part in line)]
    for text in (*expected, ocr.SLANTED, ocr.UPSIDE_DOWN):
        assert f" {text} " in done.stdout
    assert f"{len(expected) + 2} lines of text" in done.stdout
    with Image.open(tmp_path / "read.png") as marked:
        assert marked.size == (2 * ocr.SIZE[0], ocr.SIZE[1])


def test_picture_without_text_skips_rest_of_pipeline(tmp_path: Path) -> None:
    Image.new("RGB", (200, 100), "white").save(tmp_path / "blank.png")
    done = demo(tmp_path, str(tmp_path / "blank.png"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "blank.ocr.png").is_file()
    assert "0 lines of text" in done.stdout


def test_file_without_picture_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "words.png").write_text("no pixels")
    done = demo(tmp_path, str(tmp_path / "words.png"))
    assert done.returncode == 1
    assert "words.png is not a picture that Pillow can read" in done.stderr


def test_missing_file_is_refused_at_once(tmp_path: Path) -> None:
    done = demo(tmp_path, str(tmp_path / "missing.png"))
    assert done.returncode == 2
    assert "missing.png is not a file" in done.stderr
