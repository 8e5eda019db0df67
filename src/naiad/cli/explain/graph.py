"""`naiad graph`: draw the pipeline of an ensemble with the characters of a terminal, or as a Mermaid flowchart."""

import argparse
import asyncio
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from naiad.cli.explain.layout import IF, Box, Pipeline, Wire, lay_out
from naiad.cli.parser import Parser, fail
from naiad.cli.sources import NoModelError, NoResponseError, add_source_arguments, ask, find_models, reject_path
from naiad.client import Client
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError

_DESCRIPTION = """\
Draw the pipeline of the ensemble MODEL in the terminal, or as a Mermaid flowchart. The configuration comes from a
running server, or with --model-repository from a directory.
The exit status is 1 if there is nothing to draw, 2 for an invalid command line.
"""


def run(argv: Sequence[str]) -> int:
    """Draw the given model and return the exit status."""
    parser = make_parser()
    options = parser.parse_args(argv)
    try:
        if options.model_repository is None:
            reject_path("graph", options.model)
            config, members = _ask(options.url, options.model, options.header)
        else:
            config, members = _read(options.model_repository, options.model)
        pipeline = lay_out(config, members)
    except (NoResponseError, NoModelError) as error:
        return fail("naiad graph", error)
    except InferError as error:
        return fail("naiad graph", error.message)
    is_terminal = options.output is None and sys.stdout.isatty()
    columns = shutil.get_terminal_size().columns if is_terminal else 0
    drawing = draw_mermaid(pipeline) if options.mermaid else picture(pipeline, columns)
    if options.output is None:
        print(drawing)
        return 0
    try:
        options.output.write_text(drawing + "\n", encoding="utf-8")
    except OSError as error:
        return fail("naiad graph", f"{options.output} cannot be written: {error.strerror}")
    print(f"written to {options.output}")
    return 0


def picture(pipeline: Pipeline, columns: int) -> str:
    """Return the drawing; a list if the terminal has fewer `columns` than it needs. 0 columns: no limit."""
    if columns and pipeline.width > columns:
        note = f"the picture needs {pipeline.width} columns, this terminal has {columns}; try --mermaid"
        return f"{list_steps(pipeline)}\n({note})"
    return draw_text(pipeline)


def _ask(url: str, model: str, headers: Sequence[str]) -> tuple[ModelConfig, Mapping[str, ModelConfig]]:
    """Return the configurations of a model and its members on a server. Raises NoResponseError."""

    async def configs(client: Client) -> tuple[ModelConfig, Mapping[str, ModelConfig]]:
        config = await client.model_config(model)
        names = sorted({step.model_name for step in config.ensemble_scheduling.step})
        members = await asyncio.gather(*[client.model_config(name) for name in names])
        return config, dict(zip(names, members, strict=True))

    return ask(url, headers, configs)


def _read(repository: Path, model: str) -> tuple[ModelConfig, Mapping[str, ModelConfig]]:
    """Return the configurations of a model and of all other models in a repository. Raises NoModelError."""
    reports = find_models(repository, model)
    return reports[model].config, {name: report.config for name, report in reports.items()}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(
        prog="naiad graph", description=_DESCRIPTION, epilog="example: naiad graph pipeline --model-repository models"
    )
    parser.add_argument("model", metavar="MODEL", help="the ensemble's name")
    parser.add_argument("--mermaid", action="store_true", help="print a Mermaid flowchart, for Markdown pages")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to a file instead of standard output")
    add_source_arguments(parser, "draw")
    return parser


_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
# --- drawing -------------------------------------------------------------------------------------------------------

_LINES = {
    _UP: "│", _DOWN: "│", _UP | _DOWN: "│",
    _LEFT: "─", _RIGHT: "─", _LEFT | _RIGHT: "─",
    _DOWN | _RIGHT: "┌", _DOWN | _LEFT: "┐", _UP | _RIGHT: "└", _UP | _LEFT: "┘",
    _UP | _DOWN | _RIGHT: "├", _UP | _DOWN | _LEFT: "┤",
    _DOWN | _LEFT | _RIGHT: "┬", _UP | _LEFT | _RIGHT: "┴",
    _UP | _DOWN | _LEFT | _RIGHT: "┼",
}  # fmt: skip


class _Canvas:
    def __init__(self, width: int, height: int) -> None:
        self.cells = [[" "] * width for _ in range(height + 1)]
        self._lines: dict[tuple[int, int], tuple[str, int]] = {}
        """Position to the tensor there and its directions."""

    def write(self, x: int, y: int, text: str) -> None:
        for offset, character in enumerate(text):
            self.cells[y][x + offset] = character

    def line(self, tensor: str, x: int, y: int, to_x: int, to_y: int) -> None:
        """Draw a tensor along a row or a column."""
        ahead, behind = (_RIGHT, _LEFT) if y == to_y else (_DOWN, _UP)
        places = [(i, y) for i in _span(x, to_x)] if y == to_y else [(x, i) for i in _span(y, to_y)]
        for place in places:
            directions = (ahead if place != places[-1] else 0) | (behind if place != places[0] else 0)
            self._mark(tensor, place, directions)

    def _mark(self, tensor: str, place: tuple[int, int], directions: int) -> None:
        other, before = self._lines.get(place, (tensor, 0))
        if other != tensor:
            # Two tensors cross: the vertical one is drawn over the other.
            directions, tensor = max((before, other), (directions, tensor), key=lambda item: bool(item[0] & _UP))
        else:
            directions |= before
        self._lines[place] = tensor, directions
        self.cells[place[1]][place[0]] = _LINES.get(directions, " ")

    def text(self) -> str:
        rows = ["".join(row).rstrip() for row in self.cells]
        return "\n".join(rows).strip("\n")


def _span(start: int, end: int) -> Sequence[int]:
    return range(min(start, end), max(start, end) + 1)


def draw_text(pipeline: Pipeline) -> str:
    """Return the picture, one line per row."""
    canvas = _Canvas(pipeline.width, pipeline.height)
    for wire in pipeline.wires:
        _draw_wire(canvas, wire)
    for box in pipeline.boxes:
        if box.kind == "lane":
            _draw_lane(canvas, box)
        else:
            _draw_box(canvas, box)
    for box in pipeline.boxes:
        if box.kind == "step":
            for port, (_, tensor) in enumerate(box.writes):
                x, y = box.leave(port)
                canvas.write(x + 2, y, f" {tensor} ")
    return canvas.text()


def _draw_wire(canvas: _Canvas, wire: Wire) -> None:
    x, y = wire.start
    canvas.line(wire.tensor, x + 1, y, wire.track, y)
    for end_x, end_y in wire.ends:
        canvas.line(wire.tensor, wire.track, y, wire.track, end_y)
        canvas.line(wire.tensor, wire.track, end_y, end_x - 1, end_y)
    for end_x, end_y in wire.ends:
        canvas.write(end_x - 1, end_y, "▶" if end_x else "")


def _draw_lane(canvas: _Canvas, box: Box) -> None:
    (x, y), (end_x, end_y) = box.enter(0), box.leave(0)
    tensor = box.reads[0][1]
    canvas.line(tensor, x - 1, y, x + 1, y)
    canvas.line(tensor, x + 1, y, x + 1, end_y)
    canvas.line(tensor, x + 1, end_y, end_x, end_y)
    canvas.write(x - 1, y, "─")


def _draw_box(canvas: _Canvas, box: Box) -> None:
    inner = box.width - 2
    title, note = f" {box.title} ", f" {box.note} " if box.note else ""
    canvas.write(box.x, box.y, f"┌{title:─^{inner}}┐")
    for row in range(box.y + 1, box.y + box.height - 1):
        canvas.write(box.x, row, f"│{'':{inner}}│")
    canvas.write(box.x, box.y + box.height - 1, f"└{note:─^{inner}}┘")
    for port, (name, _) in enumerate(box.reads):
        x, y = box.enter(port)
        canvas.write(x + 2, y, name)
    for port, (name, _) in enumerate(box.writes):
        x, y = box.leave(port)
        canvas.write(x - 1 - len(name), y, name)
        canvas.write(x, y, "├")


def list_steps(pipeline: Pipeline) -> str:
    """Return the steps as a list, for terminals that are too narrow for the picture."""
    return "\n".join(_lines(pipeline))


def _lines(pipeline: Pipeline) -> Iterator[str]:
    titles = {"input": "in   ", "output": "out  "}
    steps = [box for box in pipeline.boxes if box.kind != "lane"]
    for box in steps:
        if box.kind in titles:
            yield f"{titles[box.kind]}{box.title}"
            continue
        yield f"step {box.title}" + (f" ({box.note})" if box.note else "")
        yield from (f"       {name} <- {tensor}" for name, tensor in box.reads)
        yield from (f"       {name} -> {tensor}" for name, tensor in box.writes)


_ESCAPES = {'"': "#quot;", "#": "#35;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;"}
_FRAMES = {"step": ('["', '"]'), "input": ('(["', '"])'), "output": ('(["', '"])')}


def draw_mermaid(pipeline: Pipeline) -> str:
    """Return the flowchart without a final newline; edges have the names of the ensemble's tensors."""
    boxes = [box for box in pipeline.boxes if box.kind != "lane"]
    return "\n".join(["flowchart LR", *_nodes(boxes), *_edges(boxes)])


def _nodes(boxes: list[Box]) -> Iterator[str]:
    for number, box in enumerate(boxes):
        before, after = _FRAMES[box.kind]
        note = f"<br/>{_escaped(box.note)}" if box.note else ""
        yield f"    n{number}{before}{_escaped(box.title)}{note}{after}"


def _edges(boxes: list[Box]) -> Iterator[str]:
    writers = {tensor: number for number, box in enumerate(boxes) for _, tensor in box.writes}
    for number, box in enumerate(boxes):
        for port, tensor in box.reads:
            label = _escaped(tensor)
            if port == IF:
                yield f'    n{writers[tensor]} -. "if {label}" .-> n{number}'
            else:
                yield f'    n{writers[tensor]} -- "{label}" --> n{number}'


def _escaped(text: str) -> str:
    """Return a name as text within quotes: Mermaid has entities that begin with #."""
    return "".join(_ESCAPES.get(character, character if character.isprintable() else " ") for character in text)
