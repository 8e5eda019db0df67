"""Cuts the lines of text out of a picture, in the input shapes of PP-OCR's two other networks."""

import math

import boxes
import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

HEIGHT = 48
SHORTEST_WIDTH = 320
LONGEST_WIDTH = 3200
BEGINNING_WIDTH = 192
TALL = 1.5


def cut(image: Image.Image, corners: np.ndarray) -> Image.Image:
    """Return the part of a picture in a rotated box, upright."""
    width = max(1, round(float(np.linalg.norm(corners[1] - corners[0]))))
    height = max(1, round(float(np.linalg.norm(corners[3] - corners[0]))))
    across, down = (corners[1] - corners[0]) / width, (corners[3] - corners[0]) / height
    (x, y), (ax, ay), (dx, dy) = corners[0], across, down
    line = image.transform((width, height), Image.Transform.AFFINE, (ax, dx, x, ay, dy, y), Image.Resampling.BICUBIC)
    return line.transpose(Image.Transpose.ROTATE_90) if height / width >= TALL else line


def scale(line: Image.Image, longest: int) -> np.ndarray:
    """Return FP32[3,48,w] from -1 to 1, blue first, at most `longest` wide."""
    width = max(1, min(longest, math.ceil(HEIGHT * line.width / line.height)))
    pixels = np.asarray(line.resize((width, HEIGHT), Image.Resampling.BILINEAR), np.float32)
    return pixels[..., ::-1].transpose(2, 0, 1) / 127.5 - 1.0


def side_by_side(lines: list[np.ndarray], width: int) -> np.ndarray:
    """Return FP32[n,3,48,width], padded with zeros."""
    filled = np.zeros((len(lines), 3, HEIGHT, width), np.float32)
    for row, line in zip(filled, lines, strict=True):
        row[:, :, : line.shape[2]] = line
    return filled


class TritonPythonModel:
    """Converts a picture and its map of text to boxes and lines."""

    def execute(self, requests):
        """Return boxes and lines for every request; none for a picture without text."""
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """Find, cut out and scale the lines of one picture."""
        pixels = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
        text_map = pb_utils.get_input_tensor_by_name(request, "MAP").as_numpy()[0, 0]
        found = boxes.find(text_map, pixels.shape[1], pixels.shape[0])
        image = Image.fromarray(pixels)
        cuts = [cut(image, corners) for corners in found]
        lines = [scale(line, LONGEST_WIDTH) for line in cuts]
        widths = np.array([line.shape[2] for line in lines], np.int32)
        beginnings = [scale(line, BEGINNING_WIDTH) for line in cuts]
        outputs = {
            "BOXES": found,
            "LINES": side_by_side(lines, max([SHORTEST_WIDTH, *widths.tolist()])),
            "WIDTHS": widths,
            "BEGINNINGS": side_by_side(beginnings, BEGINNING_WIDTH),
            "HAS_TEXT": np.array([len(found) > 0]),
        }
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in outputs.items()])
