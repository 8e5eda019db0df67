"""Draws the README's chart, CPU time per request of naiad and Triton, from the recorded results.

python -m bench.chart        writes docs/cpu-per-request.svg and docs/cpu-per-request-dark.svg
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bench.peers import HERE
from bench.report import Row, middle

RESULTS = HERE / "results" / "results.json"
DOCS = HERE.parent / "docs"

# Case, model of naiad and Triton, protocol, connections: the label.
_GROUPS: Mapping[tuple[str, str, str, str], str] = {
    ("onnx", "add_sub", "HTTP binary", "32"): "ONNX model, HTTP",
    ("onnx", "add_sub", "gRPC", "8 x 4"): "ONNX model, gRPC",
    ("onnx", "add_sub", "HTTP JSON", "32"): "ONNX model, JSON",
    ("python", "add_sub_py", "HTTP binary", "32"): "Python model, HTTP",
    ("python", "add_sub_py", "gRPC", "8 x 4"): "Python model, gRPC",
    ("bls", "bls_py", "HTTP binary", "32"): "Model that calls a model, HTTP",
    ("bls", "bls_py", "gRPC", "8 x 4"): "Model that calls a model, gRPC",
}
_SERVERS = {"naiad": "naiad", "triton": "Triton"}
_WIDTH, _BAR_LEFT, _BAR_RIGHT, _BAR_HEIGHT, _GROUP_HEIGHT, _TOP = 720, 232, 660, 17, 50, 64


# Colours of texts, of the caption, and of the bars, for a light and a dark page.
FILES = {
    "cpu-per-request.svg": ("#1f2328", "#59636e", {"naiad": "#0f766e", "triton": "#a8b1ba"}),
    "cpu-per-request-dark.svg": ("#e6edf3", "#9198a1", {"naiad": "#2dd4bf", "triton": "#656f7a"}),
}
Palette = tuple[str, str, Mapping[str, str]]


def draw(results: Mapping[str, Any], palette: Palette) -> str:
    """Return an SVG with a transparent background. Raises StopIteration if a row is missing."""
    ink, muted, bars = palette
    groups = [(label, _cpu_us(results["rows"], group)) for group, label in _GROUPS.items()]
    scale = (_BAR_RIGHT - _BAR_LEFT) / max(value for _, values in groups for value in values.values())
    parts = [
        _text(0, 16, "CPU time per request in microseconds, less is better", ink, size=16, weight=600),
        *_legend(ink, bars),
    ]
    for number, (label, values) in enumerate(groups):
        top = _TOP + number * _GROUP_HEIGHT
        parts.append(_text(_BAR_LEFT - 12, top + _BAR_HEIGHT + 5, label, ink, anchor="end"))
        for row, (server, value) in enumerate(values.items()):
            y = top + row * (_BAR_HEIGHT + 2)
            width = round(value * scale, 1)
            parts.append(_bar(_BAR_LEFT, y, width, bars[server]))
            parts.append(_text(_BAR_LEFT + width + 6, y + 13, f"{value:.0f}", ink, size=13))
    height = _TOP + len(groups) * _GROUP_HEIGHT + 18
    parts.append(_text(0, height - 6, _caption(results["facts"]), muted, size=12))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        "role=\"img\" font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\">\n"
        "<title>CPU time per request of naiad and Triton</title>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _cpu_us(rows: Sequence[Row], group: tuple[str, str, str, str]) -> dict[str, float]:
    return {server: middle(_row(rows, group, server), "cpu_us") for server in _SERVERS}


def _row(rows: Sequence[Row], group: tuple[str, str, str, str], server: str) -> Row:
    keys = ("case", "model", "transport", "load")
    return next(row for row in rows if row["server"] == server and tuple(row.get(key) for key in keys) == group)


def _legend(ink: str, bars: Mapping[str, str]) -> list[str]:
    parts = []
    for number, (server, name) in enumerate(_SERVERS.items()):
        left = _BAR_LEFT + number * 90
        parts += [
            _bar(left, 32, 14, bars[server], height=14),
            _text(left + 20, 44, name, ink, size=13),
        ]
    return parts


def _caption(facts: Mapping[str, Any]) -> str:
    triton = f"Triton of nvidia-pytriton {facts['versions']['nvidia-pytriton']}"
    return f"{facts['date'][:10]}, {facts['cores']} cores, 32 requests in flight, add/sub of FP32[16]; {triton}"


def _bar(x: float, y: float, width: float, colour: str, height: float = _BAR_HEIGHT) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="2" fill="{colour}"/>'


def _text(
    x: float, y: float, text: str, colour: str, *, size: int = 14, weight: int = 400, anchor: str = "start"
) -> str:
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x}" y="{y}" fill="{colour}" {style}>{escape(text)}</text>'


def write(docs: Path = DOCS) -> None:
    """Draw both files from the recorded results."""
    results = json.loads(RESULTS.read_text())
    for name, palette in FILES.items():
        (docs / name).write_text(draw(results, palette), encoding="utf-8")


if __name__ == "__main__":
    write()
