"""Reads a picture with one request: detection, direction and recognition are an ensemble in the server."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from PIL import Image, ImageDraw, ImageFont, ImageOps, UnidentifiedImageError
from rich.console import Console
from rich.table import Table

from naiad.tools.demo.demo_progress import waiting
from naiad.tools.demo.demo_repository import copy_model, new_model, write_characters
from naiad.tools.demo.demo_server import DemoSettings, serving
from naiad.tools.demo.packages import PP_OCR, fetch, fetch_all

MODEL = "ocr"
SIZE = (900, 760)
HEADING = "Invoice 2024-0117"
LINES = (
    ("Nereid Instruments", "12 Harbour Street"),
    ("3 Depth sounders", "1,050.00"),
    ("1 Tide gauge", "184.50"),
    ("Shipping", "50.00"),
    ("Total due", "1,284.50 EUR"),
)
SLANTED = "Thank you for your order"
UPSIDE_DOWN = "Paid on 9 March 2024"
_INK = "#202830"
_MARK = "#d02040"
_DETECT = """# PP-OCR v4: a page to the probability of text at every pixel.
backend: "onnxruntime"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 3, -1, -1 ] } ]
output [ { name: "sigmoid_0.tmp_0" data_type: TYPE_FP32 dims: [ -1, 1, -1, -1 ] } ]
"""
_DIRECTION = """# PP-OCR v2: which way up are these lines? Two probabilities each: upright, upside down.
backend: "onnxruntime"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 3, 48, 192 ] } ]
output [ { name: "save_infer_model/scale_0.tmp_1" data_type: TYPE_FP32 dims: [ -1, 2 ] } ]
"""
_READ = """# PP-OCR v4: lines of text to the best of 6625 characters at every eighth column.
backend: "onnxruntime"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 3, 48, -1 ] } ]
output [
  { name: "classes" data_type: TYPE_INT64 dims: [ -1, -1 ] },
  { name: "scores" data_type: TYPE_FP32 dims: [ -1, -1 ] }
]
"""
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class RecognisedPage:
    """The recognised text."""

    boxes: Array
    """FP32[n,4,2], corners clockwise from the top left."""
    texts: Sequence[str]
    confidences: Sequence[float]
    latency_ms: float


def run(settings: DemoSettings, console: Console, path: Path | None, output: Path | None) -> int:
    """Read the picture at `path` or a generated invoice and write it with its boxes; return the exit code.

    Without `output` the result is `NAME.ocr.png` beside the picture, for the invoice beside the repository.

    Raises RuntimeError if the models are not available or the server rejects the request, ValueError for a file that
    is not a picture.
    """
    picture = draw() if path is None else load(path)
    if output is None:
        output = settings.repository.with_name("invoice.ocr.png") if path is None else path.with_suffix(".ocr.png")
    else:
        _check_output(output, path)
    fetch_all([PP_OCR], console)
    root = build(settings.repository)
    with serving(root, settings, console, MODEL) as running:
        with waiting(console, "reading the picture"):
            page = read(running.http_url, picture)
        console.print(_table(page))
        console.print(f"{len(page.texts)} lines of text after {page.latency_ms:.0f} ms")
        annotate(picture, page.boxes, page.texts).save(output)
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


def read(http_url: str, picture: Image.Image) -> RecognisedPage:
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
        return RecognisedPage(boxes, [], [], latency_ms)
    confidences = result.as_numpy("CONFIDENCE").tolist()
    return RecognisedPage(boxes, [text.decode() for text in texts], confidences, latency_ms)


def _table(page: RecognisedPage) -> Table:
    table = Table(title="Recognised text", title_justify="left")
    table.add_column("text", overflow="fold")
    table.add_column("confidence", justify="right")
    table.add_column("box (clockwise from the top left)", overflow="fold")
    for corners, text, confidence in zip(page.boxes, page.texts, page.confidences, strict=True):
        box = " ".join(f"({x:.0f},{y:.0f})" for x, y in corners)
        table.add_row(text, f"{confidence:.2f}", box)
    return table


def draw() -> Image.Image:
    """Return an invoice; one line of it is slanted, and one is upside down."""
    page = Image.new("RGB", SIZE, "white")
    pen = ImageDraw.Draw(page)
    pen.text((60, 50), HEADING, fill=_INK, font=ImageFont.load_default(44))
    font = ImageFont.load_default(28)
    for number, (left, right) in enumerate(LINES):
        top = 150 + 70 * number
        pen.text((60, top), left, fill=_INK, font=font)
        pen.text((840 - font.getlength(right), top), right, fill=_INK, font=font)
        pen.line((60, top + 52, 840, top + 52), fill="#c0c8d0")
    slanted = _label(SLANTED, font).rotate(6, Image.Resampling.BICUBIC, expand=True, fillcolor="white")
    page.paste(slanted, (60, 540))
    page.paste(_label(UPSIDE_DOWN, font).rotate(180), (480, 640))
    return page


def _label(text: str, font: Any) -> Image.Image:
    label = Image.new("RGB", (int(font.getlength(text)) + 20, 52), "white")
    ImageDraw.Draw(label).text((10, 6), text, fill=_INK, font=font)
    return label


def annotate(picture: Image.Image, boxes: Array, texts: Sequence[str]) -> Image.Image:
    """Return the picture with the boxes f32[n,4,2] and the recognised text beside it."""
    marked = Image.new("RGB", (2 * picture.width, picture.height), "white")
    marked.paste(picture, (0, 0))
    pen = ImageDraw.Draw(marked)
    for corners, text in zip(boxes, texts, strict=True):
        pen.polygon([(float(x), float(y)) for x, y in corners], outline=_MARK, width=2)
        height = max(10, min(40, int(np.linalg.norm(corners[3] - corners[0]) * 0.6)))
        at = (picture.width + float(corners[:, 0].min()), float(corners[:, 1].min()))
        pen.text(at, text, fill=_INK, font=ImageFont.load_default(height))
    return marked


def build(root: Path) -> Path:
    """Write the models below `root` and return it. Models with the same names are replaced."""
    root.mkdir(parents=True, exist_ok=True)
    read, detect, direction = fetch(PP_OCR).values()
    shutil.copy(detect, new_model(root, "ocr_detect", _DETECT) / "model.onnx")
    shutil.copy(direction, new_model(root, "ocr_direction", _DIRECTION) / "model.onnx")
    (new_model(root, "ocr_read", _READ) / "model.onnx").write_bytes(best_only(read))
    for name in ("ocr", "ocr_page", "ocr_lines", "ocr_upright"):
        copy_model(root, name)
    write_characters(read, copy_model(root, "ocr_text").parent / "labels.txt")
    return root


def best_only(source: Path) -> bytes:
    """Return the reading network with only the best class and its score as outputs, serialised.

    Its own output has 6625 numbers for every eighth column: 2.6 MB for a line, of which 1.2 kB are needed.
    """
    model = onnx.load(source)
    graph = model.graph
    (probabilities,) = [output.name for output in graph.output]
    graph.node.append(helper.make_node("ArgMax", [probabilities], ["classes"], axis=2, keepdims=0))
    graph.node.append(helper.make_node("ReduceMax", [probabilities], ["scores"], axes=[2], keepdims=0))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("classes", TensorProto.INT64, ["lines", "columns"]))
    graph.output.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["lines", "columns"]))
    return bytes(model.SerializeToString())
