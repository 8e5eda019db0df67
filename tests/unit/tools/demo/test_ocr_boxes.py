"""From a map of probabilities to boxes: connected regions, the smallest rectangle, reading order."""

import importlib.util
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import naiad.tools.demo

_SOURCE = Path(naiad.tools.demo.__file__).parent / "models" / "ocr_lines" / "1" / "boxes.py"
_SPEC = importlib.util.spec_from_file_location("ocr_boxes", _SOURCE)
boxes = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(boxes)


def flooded(mask):
    """Connected regions, found the slow way."""
    left = {(int(y), int(x)) for y, x in np.argwhere(mask)}
    regions = set()
    while left:
        region, queue = set(), deque([left.pop()])
        while queue:
            y, x = queue.popleft()
            region.add((y, x))
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= near
            queue.extend(near)
        regions.add(frozenset(region))
    return regions


@given(arrays.arrays(bool, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.booleans()))
def test_components_are_what_a_flood_finds(mask) -> None:
    found = {
        frozenset((int(row), x) for row, begin, end in zip(*region, strict=True) for x in range(int(begin), int(end)))
        for region in boxes.components(mask)
    }
    assert found == flooded(mask)


@pytest.mark.parametrize("angle", [0, 5, -12, 30, -40])
def test_slanted_bar_gets_slanted_rectangle(angle) -> None:
    radians = np.radians(angle)
    y, x = np.mgrid[0:200, 0:300]
    along = (x - 150) * np.cos(radians) + (y - 100) * np.sin(radians)
    across = -(x - 150) * np.sin(radians) + (y - 100) * np.cos(radians)
    bar = ((abs(along) < 80) & (abs(across) < 6)).astype(np.float32)
    (corners,) = boxes.find(bar, 300, 200)
    top = corners[1] - corners[0]
    assert np.degrees(np.arctan2(top[1], top[0])) == pytest.approx(angle, abs=1.5)
    grown = 160 * 12 * boxes.UNCLIP_RATIO / (2 * (160 + 12))
    assert np.linalg.norm(top) == pytest.approx(160 + 2 * grown, abs=6)
    assert np.linalg.norm(corners[3] - corners[0]) == pytest.approx(12 + 2 * grown, abs=6)
    assert corners.mean(0) == pytest.approx([150, 100], abs=1)


def test_boxes_are_inside_the_picture() -> None:
    text_map = np.zeros((32, 64), np.float32)
    text_map[0:6, 0:60] = 1
    (corners,) = boxes.find(text_map, 640, 160)
    assert corners.min() == 0
    assert corners.max(0) == pytest.approx([640, 50], abs=15)


def test_boxes_come_in_the_order_of_reading() -> None:
    text_map = np.zeros((100, 200), np.float32)
    for top, left in ((60, 10), (22, 120), (20, 10)):
        text_map[top : top + 8, left : left + 50] = 1
    starts = [(round(float(box[:, 1].mean())), float(box[:, 0].min())) for box in boxes.find(text_map, 200, 100)]
    assert [top for top, _ in starts] == [24, 26, 64]
    assert starts[0][1] < starts[1][1]


def test_specks_and_faint_regions_are_no_text() -> None:
    text_map = np.zeros((50, 50), np.float32)
    text_map[5:7, 5:7] = 1
    text_map[20:30, 5:40] = 0.4
    assert boxes.find(text_map, 50, 50).shape == (0, 4, 2)


def test_an_empty_map_has_no_boxes() -> None:
    assert boxes.find(np.zeros((32, 32), np.float32), 32, 32).shape == (0, 4, 2)
