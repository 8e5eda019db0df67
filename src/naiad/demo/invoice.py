"""Pictures for OCR: a generated invoice, and the recognised text drawn over it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Array = np.ndarray[Any, np.dtype[Any]]

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
    _paste(page, _label(SLANTED, font).rotate(6, Image.Resampling.BICUBIC, expand=True, fillcolor="white"), (60, 540))
    _paste(page, _label(UPSIDE_DOWN, font).rotate(180), (480, 640))
    return page


def _label(text: str, font: Any) -> Image.Image:
    label = Image.new("RGB", (int(font.getlength(text)) + 20, 52), "white")
    ImageDraw.Draw(label).text((10, 6), text, fill=_INK, font=font)
    return label


def _paste(page: Image.Image, label: Image.Image, at: tuple[int, int]) -> None:
    page.paste(label, at)


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
