"""Pictures for the OCR demonstration: accepted inputs and outputs."""

import io
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from naiad.tools.demo import ocr
from naiad.tools.demo.demo_server import DemoSettings


def run(tmp_path: Path, output: Path, picture: Path | None = None) -> int:
    return ocr.run(DemoSettings(tmp_path / "models"), Console(file=io.StringIO()), picture, output)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(tmp_path: Path, mode: str) -> None:
    picture = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    picture.putpixel((1, 0), (0, 0, 0, 255))
    picture.convert(mode).save(tmp_path / "a.png")
    loaded = ocr.load(tmp_path / "a.png")
    assert [loaded.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (0, 0, 0)]


def test_a_photograph_is_turned_upright(tmp_path: Path) -> None:
    picture = Image.new("RGB", (20, 10))
    turned = picture.getexif()
    turned[0x0112] = 6
    picture.save(tmp_path / "a.jpg", exif=turned)
    assert ocr.load(tmp_path / "a.jpg").size == (10, 20)


@pytest.mark.parametrize("content", [b"", b"no pixels", b"\x89PNG\r\n\x1a\n\0\0"])
def test_file_without_picture_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.png is not a picture that Pillow can read"):
        ocr.load(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("output", "said"),
    [("a.words", "must end in the suffix of a picture"), ("absent/a.png", "there is no directory")],
)
def test_unwritable_output_is_reported_at_once(tmp_path: Path, output: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        run(tmp_path, tmp_path / output)
    assert not (tmp_path / "models").exists()


def test_the_picture_itself_is_not_written_over(tmp_path: Path) -> None:
    picture = tmp_path / "ocr.png"
    Image.new("RGB", (3, 3)).save(picture)
    with pytest.raises(ValueError, match="is the input picture"):
        run(tmp_path, picture, picture)
