"""Reads a picture with one request: detection, direction and recognition are an ensemble in the server."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from rich.console import Console
from rich.table import Table

from naiad.demo import invoice, ocr_repository
from naiad.demo.packages import PP_OCR, fetch_all
from naiad.demo.progress import waiting
from naiad.demo.server import Settings, serving

MODEL = "ocr"
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Page:
    """The recognised text."""

    boxes: Array
    """FP32[n,4,2], corners clockwise from the top left."""
    texts: Sequence[str]
    confidences: Sequence[float]
    latency_ms: float


def run(settings: Settings, console: Console, path: Path | None, output: Path | None) -> int:
    """Read the picture at `path` or a generated invoice and write it with its boxes; return the exit code.

    Without `output` the result is `NAME.ocr.png` beside the picture, for the invoice beside the repository.

    Raises RuntimeError if the models are not available or the server rejects the request, ValueError for a file that
    is not a picture.
    """
    picture = invoice.draw() if path is None else load(path)
    if output is None:
        output = settings.repository.with_name("invoice.ocr.png") if path is None else path.with_suffix(".ocr.png")
    else:
        _check_output(output, path)
    fetch_all([PP_OCR], console)
    root = ocr_repository.build(settings.repository)
    with serving(root, settings, console, MODEL) as running:
        with waiting(console, "reading the picture"):
            page = read(running.http_url, picture)
        console.print(_table(page))
        console.print(f"{len(page.texts)} lines of text after {page.latency_ms:.0f} ms")
        invoice.annotate(picture, page.boxes, page.texts).save(output)
        console.print(f"The picture with its boxes: {output}", soft_wrap=True)
    return 0


def load(path: Path) -> Image.Image:
    """Return a picture from a file, upright and on white. Raises ValueError if it is not a picture."""
    try:
        # Cameras store the orientation beside the pixels.
        opened = ImageOps.exif_transpose(Image.open(path))
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
        raise ValueError(f"{path} is not a picture that Pillow can read: {error}") from error
    if not opened.has_transparency_data:
        return opened.convert("RGB")
    # Without this, transparent pixels would be black behind dark text.
    layer = opened.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")


def _check_output(output: Path, path: Path | None) -> None:
    """Raise ValueError for a file that cannot be written, or that is the input picture."""
    if output.suffix.lower() not in Image.registered_extensions():
        raise ValueError(f"--output {output} must end in the suffix of a picture, such as .png")
    if not output.parent.is_dir():
        raise ValueError(f"--output {output}: there is no directory {output.parent}")
    if path is not None and output.exists() and output.samefile(path):
        raise ValueError(f"--output {output} is the input picture; name another file")


def read(http_url: str, picture: Image.Image) -> Page:
    """Send a picture to the ensemble. Raises RuntimeError with the server's message."""
    import tritonclient.http as api
    from tritonclient.utils import InferenceServerException

    pixels = np.asarray(picture, np.uint8)
    with api.InferenceServerClient(http_url) as client:
        tensor = api.InferInput("IMAGE", list(pixels.shape), "UINT8")
        tensor.set_data_from_numpy(pixels)
        began = time.perf_counter()
        try:
            result = client.infer(MODEL, [tensor])
        except InferenceServerException as error:
            raise RuntimeError(f"the server could not read the picture: {error}") from error
        latency_ms = (time.perf_counter() - began) * 1e3
    boxes, texts = result.as_numpy("BOXES"), result.as_numpy("TEXT")
    if texts is None:  # a picture without text: the steps after the detection were skipped
        return Page(boxes, [], [], latency_ms)
    confidences = result.as_numpy("CONFIDENCE").tolist()
    return Page(boxes, [text.decode() for text in texts], confidences, latency_ms)


def _table(page: Page) -> Table:
    table = Table(title="Recognised text", title_justify="left")
    table.add_column("text", overflow="fold")
    table.add_column("confidence", justify="right")
    table.add_column("box (clockwise from the top left)", overflow="fold")
    for corners, text, confidence in zip(page.boxes, page.texts, page.confidences, strict=True):
        box = " ".join(f"({x:.0f},{y:.0f})" for x, y in corners)
        table.add_row(text, f"{confidence:.2f}", box)
    return table
