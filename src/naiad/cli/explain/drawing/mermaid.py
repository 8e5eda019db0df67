"""A pipeline as a Mermaid flowchart, for Markdown pages."""

from collections.abc import Iterator

from naiad.cli.explain.drawing.layout import IF, Box, Pipeline

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
