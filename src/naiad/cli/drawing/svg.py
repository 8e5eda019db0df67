"""A pipeline drawn as SVG: one self-contained file, no script, no font to fetch."""

from collections.abc import Iterator
from xml.sax.saxutils import escape

from naiad.cli.drawing.layout import Box, Pipeline, Point, Wire

_CELL_WIDTH, _CELL_HEIGHT = 8.4, 17.0
"""Of a character of the grid, in pixels."""
_MARGIN = 24.0
_HEAD = 15.0
"""By how much a step rises above its row, for its title."""
_RADIUS = 6.0
_FILLS = {"step": "#e0f2f1", "input": "#e3f2fd", "output": "#fff3e0"}
_STYLE = """\
text { font: 12px ui-monospace, Menlo, Consolas, monospace; fill: #263238; }
.title { font-weight: bold; text-anchor: middle; }
.note { fill: #607d8b; font-size: 11px; text-anchor: middle; }
.right { text-anchor: end; }
.tensor { fill: #00695c; font-size: 11px; }
.box { stroke: #546e7a; stroke-width: 1.2; }
.wire { fill: none; stroke: #00897b; stroke-width: 1.6; }"""
_ARROW = (
    '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" fill="#00897b"/></marker>'
)


def draw_svg(pipeline: Pipeline) -> str:
    """Return the picture as an SVG document."""
    width = pipeline.width * _CELL_WIDTH + 2 * _MARGIN
    height = (pipeline.height + 1) * _CELL_HEIGHT + 2 * _MARGIN
    title = f"Pipeline of ensemble {pipeline.name}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        f"<defs>{_ARROW}</defs>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
    ]
    lanes = {box.enter(0) for box in pipeline.boxes if box.kind == "lane"}
    for wire in pipeline.wires:
        lines += _wire(wire, lanes)
    for box in pipeline.boxes:
        lines += _lane(box) if box.kind == "lane" else _box(box)
    return "\n".join([*lines, "</svg>", ""])


def _pixels(point: Point) -> tuple[float, float]:
    return _MARGIN + (point[0] + 0.5) * _CELL_WIDTH, _MARGIN + (point[1] + 0.5) * _CELL_HEIGHT


def _wire(wire: Wire, lanes: set[Point]) -> Iterator[str]:
    yield f"<g><title>{escape(wire.tensor)}</title>"
    for end in wire.ends:
        path = _path([wire.start, (wire.track, wire.start[1]), (wire.track, end[1]), end])
        arrow = "" if end in lanes else ' marker-end="url(#arrow)"'
        yield f'<path class="wire" d="{path}"{arrow}/>'
    yield "</g>"


def _lane(box: Box) -> Iterator[str]:
    start, end = box.enter(0), box.leave(0)
    path = _path([start, (start[0] + 1, start[1]), (start[0] + 1, end[1]), end])
    yield f'<g><title>{escape(box.reads[0][1])}</title><path class="wire" d="{path}"/></g>'


def _path(points: list[Point]) -> str:
    """Return right-angled lines through the points, their corners rounded."""
    places = [_pixels(point) for point in points]
    parts = [f"M{places[0][0]:.1f},{places[0][1]:.1f}"]
    for before, corner, after in zip(places, places[1:], places[2:], strict=False):
        for toward, command in ((before, "L"), (after, f"Q{corner[0]:.1f},{corner[1]:.1f} ")):
            x, y = _near(corner, toward)
            parts.append(f"{command}{x:.1f},{y:.1f}")
    parts.append(f"L{places[-1][0]:.1f},{places[-1][1]:.1f}")
    return " ".join(parts)


def _near(corner: tuple[float, float], toward: tuple[float, float]) -> tuple[float, float]:
    """Return the point a radius from a corner, or half the way when that is less."""
    dx, dy = toward[0] - corner[0], toward[1] - corner[1]
    length = abs(dx) + abs(dy)
    share = min(_RADIUS, length / 2) / length if length else 0.0
    return corner[0] + dx * share, corner[1] + dy * share


def _box(box: Box) -> Iterator[str]:
    left, top = _pixels((box.x, box.y))
    right, bottom = _pixels((box.x + box.width - 1, box.y + box.height - 1))
    middle = (left + right) / 2
    is_step = box.kind == "step"
    rise = _HEAD if is_step else 0.0
    yield (
        f'<rect class="box" x="{left:.1f}" y="{top - rise:.1f}" width="{right - left:.1f}" '
        f'height="{bottom - top + rise:.1f}" rx="{4 if is_step else 14}" fill="{_FILLS[box.kind]}"/>'
    )
    title_y = top + 2 if is_step else (top + bottom) / 2 + 4
    yield f'<text class="title" x="{middle:.1f}" y="{title_y:.1f}">{escape(box.title)}</text>'
    if box.note:
        yield f'<text class="note" x="{middle:.1f}" y="{bottom + 14:.1f}">{escape(box.note)}</text>'
    if is_step:
        yield from _ports(box)


def _ports(box: Box) -> Iterator[str]:
    for port, (name, _) in enumerate(box.reads):
        x, y = _pixels(box.enter(port))
        yield f'<text x="{x + 9:.1f}" y="{y + 4:.1f}">{escape(name)}</text>'
    for port, (name, tensor) in enumerate(box.writes):
        x, y = _pixels(box.leave(port))
        yield f'<text class="right" x="{x - 7:.1f}" y="{y + 4:.1f}">{escape(name)}</text>'
        yield f'<text class="tensor" x="{x + 6:.1f}" y="{y - 4:.1f}">{escape(tensor)}</text>'
