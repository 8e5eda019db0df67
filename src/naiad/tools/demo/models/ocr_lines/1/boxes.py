"""Differentiable binarisation, the step after the network: a map of probabilities to rotated boxes, in NumPy."""

import numpy as np

THRESHOLD = 0.3
"""Minimum probability of a text pixel."""
BOX_THRESHOLD = 0.5
"""Minimum mean over the pixels of a text box."""
UNCLIP_RATIO = 2.4
"""The network marks the inner part of a line; this is the growth of a box. PP-OCR's own 1.6 cuts lines so tightly
that the spaces between words are lost.
"""
SMALLEST_SIDE = 3.0
MOST_BOXES = 200


def find(text_map: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return FP32[n,4,2], corners clockwise from the top left, in a picture of that size, in reading order."""
    found = []
    for rows, begins, ends in components(text_map > THRESHOLD):
        values = [text_map[row, begin:end] for row, begin, end in zip(rows, begins, ends, strict=True)]
        if np.concatenate(values).mean() < BOX_THRESHOLD:
            continue
        box = smallest_rectangle(outline(rows, begins, ends))
        if box is not None:
            found.append(box)
    if not found:
        return np.zeros((0, 4, 2), np.float32)
    boxes = np.stack(found) * (width / text_map.shape[1], height / text_map.shape[0])
    return reading_order(boxes.clip((0, 0), (width, height)))[:MOST_BOXES].astype(np.float32)


def components(mask: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return the connected regions as runs: rows, first columns, columns after the last."""
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, begins = np.nonzero(edges == 1)
    ends = np.nonzero(edges == -1)[1]
    parent = list(range(len(rows)))

    def root(run: int) -> int:
        while parent[run] != run:
            parent[run] = parent[parent[run]]
            run = parent[run]
        return run

    first_of_row = np.searchsorted(rows, np.arange(mask.shape[0] + 1))
    for row in range(1, mask.shape[0]):
        above, here = first_of_row[row - 1], first_of_row[row]
        while above < first_of_row[row] and here < first_of_row[row + 1]:
            if begins[above] <= ends[here] and begins[here] <= ends[above]:  # diagonal neighbours touch
                parent[root(here)] = root(above)
            if ends[above] < ends[here]:
                above += 1
            else:
                here += 1
    roots = np.array([root(run) for run in range(len(rows))], int)
    order = np.argsort(roots, kind="stable")
    groups = np.split(order, np.nonzero(np.diff(roots[order]))[0] + 1) if len(order) else []
    return [(rows[group], begins[group], ends[group]) for group in groups]


def outline(rows: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the convex hull of a region, whose pixels are squares, as points (x, y)."""
    corners = [np.stack([columns, lines], 1) for columns in (begins, ends) for lines in (rows, rows + 1)]
    points = np.concatenate(corners)
    points = np.unique(points, axis=0)
    return np.array(_half_hull(points)[:-1] + _half_hull(points[::-1])[:-1], float)


def _half_hull(points: np.ndarray) -> list[np.ndarray]:
    hull: list[np.ndarray] = []
    for point in points:
        while len(hull) > 1:
            (ax, ay), (bx, by) = hull[-1] - hull[-2], point - hull[-2]
            if ax * by - ay * bx > 0:
                break
            hull.pop()
        hull.append(point)
    return hull


def smallest_rectangle(hull: np.ndarray) -> np.ndarray | None:
    """Return the corners of the smallest rectangle around a hull, enlarged to the size of the text; None if it is too
    thin.
    """
    sides = np.roll(hull, -1, axis=0) - hull
    angles = np.unique(np.round(np.arctan2(sides[:, 1], sides[:, 0]) % (np.pi / 2), 6))
    best: tuple[float, np.ndarray] | None = None
    for angle in angles:
        axes = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        along = hull @ axes.T
        low, high = along.min(0), along.max(0)
        width, height = high - low
        if best is not None and width * height >= best[0]:
            continue
        if min(width, height) < SMALLEST_SIDE:
            best = (width * height, np.zeros((0, 2)))
            continue
        grown = width * height * UNCLIP_RATIO / (2 * (width + height))
        low, high = low - grown, high + grown
        corners = np.array([[low[0], low[1]], [high[0], low[1]], [high[0], high[1]], [low[0], high[1]]])
        best = (width * height, corners @ axes)
    return clockwise(best[1]) if best is not None and len(best[1]) else None


def clockwise(corners: np.ndarray) -> np.ndarray:
    """Return corners from the top left one; an angle up to 45 degrees counts as upright."""
    start = int(np.argmin(corners.sum(1)))
    return np.roll(corners, -start, axis=0)


def reading_order(boxes: np.ndarray) -> np.ndarray:
    """Return boxes from top to bottom, and from left to right within a row."""
    left = sorted(boxes, key=lambda box: box[:, 1].mean())
    ordered: list[np.ndarray] = []
    while left:
        first = left[0]
        half = (first[:, 1].max() - first[:, 1].min()) / 2
        row = [box for box in left if abs(box[:, 1].mean() - first[:, 1].mean()) < half]
        left = left[len(row) :]
        ordered += sorted(row, key=lambda box: box[:, 0].min())
    return np.stack(ordered)
