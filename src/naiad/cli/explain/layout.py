"""Layout of an ensemble on a grid of characters: positions of steps and routes of tensors.

Steps stand in columns, each to the right of all steps it reads from. A tensor that passes a column has a lane in it.
Tensors enter on even rows and leave on odd ones, so that two of them never share a row between columns.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from naiad.config.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelOutput
from naiad.config.validate.ensemble import condition_of
from naiad.core.errors import invalid_argument

_SWEEPS = 6
"""Number of passes that improve the order within columns."""
_GAP_ROWS = 2
"""Rows between two boxes of a column; even, so that a tensor's rows keep their parity."""
IF = "if"
"""The port of a step's condition."""

Point = tuple[int, int]
"""Column and row of a character."""


@dataclass(slots=True)
class Box:
    """A step, an input or an output of the ensemble, or a lane for a tensor that passes by."""

    kind: str
    """step, input, output or lane."""
    title: str
    reads: Sequence[tuple[str, str]]
    """Name inside the box and ensemble tensor, by port from the top."""
    writes: Sequence[tuple[str, str]]
    note: str = ""
    layer: int = 0
    x: int = 0
    y: int = 0
    """The upper left corner."""
    width: int = 0
    height: int = 0

    def enter(self, port: int) -> Point:
        """Return the position at which the tensor of an input port enters."""
        return self.x, self.y + 1 + 2 * port

    def leave(self, port: int) -> Point:
        """Return the position at which the tensor of an output port leaves."""
        return self.x + self.width - 1, self.y + 2 + 2 * port


@dataclass(frozen=True, slots=True)
class Wire:
    """A tensor between two columns: from one port to others, along one vertical track."""

    tensor: str
    start: Point
    track: int
    """Column of the vertical part."""
    ends: Sequence[Point]


@dataclass(slots=True)
class Pipeline:
    """An ensemble with its layout. `x` grows to the right, `y` downwards."""

    boxes: list[Box]
    wires: list[Wire] = field(default_factory=list)
    width: int = 0
    height: int = 0


def lay_out(config: ModelConfig, members: Mapping[str, ModelConfig] | None = None) -> Pipeline:
    """Return the layout of a valid ensemble; `members` by name, as far as they are known.

    Raises InferError(INVALID_ARG) for a model that is not an ensemble, and for steps that form a cycle.
    """
    if not config.HasField("ensemble_scheduling"):
        raise invalid_argument(f"model '{config.name}' is not an ensemble, so there is no graph to draw")
    boxes = _boxes(config, members or {})
    _assign_layers(config.name, boxes)
    columns = _columns(boxes)
    _order(columns)
    _place_rows(columns)
    pipeline = Pipeline([box for column in columns for box in column])
    _place_columns(pipeline, columns)
    return pipeline


# --- boxes ----------------------------------------------------------------------------------------------------------


def _boxes(config: ModelConfig, members: Mapping[str, ModelConfig]) -> list[Box]:
    boxes = [Box("input", _signature(tensor), (), [("", tensor.name)]) for tensor in config.input]
    for step in config.ensemble_scheduling.step:
        condition = condition_of(config, step)
        reads = sorted(step.input_map.items()) + ([(IF, condition)] if condition else [])
        version = "" if step.model_version < 0 else f" v{step.model_version}"
        note = _kind_of(members.get(step.model_name))
        boxes.append(Box("step", step.model_name + version, reads, sorted(step.output_map.items()), note))
    boxes += [Box("output", _signature(tensor), [("", tensor.name)], ()) for tensor in config.output]
    return boxes


def _signature(tensor: ModelInput | ModelOutput) -> str:
    dims = ",".join("?" if dim < 0 else str(dim) for dim in tensor.dims)
    optional = " optional" if isinstance(tensor, ModelInput) and tensor.optional else ""
    return f"{tensor.name} {DataType.Name(tensor.data_type).removeprefix('TYPE_')}[{dims}]{optional}"


def _kind_of(member: ModelConfig | None) -> str:
    if member is None:
        return ""
    if member.HasField("ensemble_scheduling"):
        return "ensemble"
    decoupled = ", decoupled" if member.model_transaction_policy.decoupled else ""
    return (member.backend or member.platform) + decoupled


def _tensors(ports: Iterable[tuple[str, str]]) -> list[str]:
    return [tensor for _, tensor in ports]


# --- columns --------------------------------------------------------------------------------------------------------


def _assign_layers(name: str, boxes: Sequence[Box]) -> None:
    """Place every step to the right of the steps that write its inputs, and the outputs in the last column."""
    writer = {tensor: box for box in boxes for tensor in _tensors(box.writes)}
    left = [box for box in boxes if box.kind == "step"]
    placed = {id(box) for box in boxes if box.kind == "input"}
    while left:
        ready = [b for b in left if all(id(writer[t]) in placed for t in _tensors(b.reads) if t in writer)]
        if not ready:
            waiting = ", ".join(f"'{box.title}'" for box in left)
            raise invalid_argument(f"steps of ensemble '{name}' form a cycle: {waiting}")
        for box in ready:
            before = [writer[tensor].layer for tensor in _tensors(box.reads) if tensor in writer]
            box.layer = 1 + max(before, default=0)
        placed |= {id(box) for box in ready}
        left = [box for box in left if id(box) not in placed]
    last = 1 + max((box.layer for box in boxes), default=0)
    for box in boxes:
        if box.kind == "output":
            box.layer = last


def _columns(boxes: Sequence[Box]) -> list[list[Box]]:
    """Return the boxes by column, with lanes for the tensors that pass one by."""
    columns: list[list[Box]] = [[] for _ in range(1 + max(box.layer for box in boxes))]
    for box in boxes:
        columns[box.layer].append(box)
    for box in boxes:
        for tensor in _tensors(box.writes):
            farthest = max((b.layer for b in boxes if tensor in _tensors(b.reads)), default=0)
            for layer in range(box.layer + 1, farthest):
                columns[layer].append(Box("lane", "", [("", tensor)], [("", tensor)], layer=layer))
    return columns


def _order(columns: Sequence[list[Box]]) -> None:
    """Sort each column by the positions of connected boxes, so that few tensors cross."""
    for sweep in range(_SWEEPS):
        is_forward = sweep % 2 == 0
        pairs = list(pairwise(columns))
        for left, right in pairs if is_forward else reversed(pairs):
            fixed, moved = (left, right) if is_forward else (right, left)
            places: dict[str, list[int]] = {}
            for place, box in enumerate(fixed):
                for tensor in _tensors(box.writes if is_forward else box.reads):
                    places.setdefault(tensor, []).append(place)
            moved.sort(key=lambda box: _mean_place(box.reads if is_forward else box.writes, places))


def _mean_place(ports: Sequence[tuple[str, str]], places: Mapping[str, Sequence[int]]) -> float:
    found = [place for tensor in _tensors(ports) for place in places.get(tensor, ())]
    return sum(found) / len(found) if found else 0.0


# --- positions ----------------------------------------------------------------------------------------------------


def _place_rows(columns: Sequence[Sequence[Box]]) -> None:
    """Stack every column, the stacks centred."""
    heights = []
    for column in columns:
        y = 1
        for box in column:
            # A lane takes the two rows of one port and has no border.
            box.height = 4 if box.kind == "lane" else 2 + 2 * max(len(box.reads), len(box.writes), 1)
            box.y = y
            y += box.height + _GAP_ROWS
        heights.append(y)
    for column, height in zip(columns, heights, strict=True):
        down = (max(heights) - height) // 4 * 2
        for box in column:
            box.y += down


def _place_columns(pipeline: Pipeline, columns: Sequence[Sequence[Box]]) -> None:
    """Set the width of columns, and assign tracks between them."""
    x = 0
    for column, after in zip(columns, [*columns[1:], []], strict=True):
        width = max(_width(box) for box in column)
        for box in column:
            box.x, box.width = x, width
        x += width
        if not after:
            break
        labels = [tensor for box in column if box.kind == "step" for tensor in _tensors(box.writes)]
        track = x + 2 + max((len(label) + 2 for label in labels), default=0)
        x = track + 2 * sum(len(box.writes) for box in column) + 1
        for box in after:
            box.x = x
        for box in column:
            for port, tensor in enumerate(_tensors(box.writes)):
                ends = [
                    reader.enter(index)
                    for reader in after
                    for index, name in enumerate(_tensors(reader.reads))
                    if name == tensor
                ]
                pipeline.wires.append(Wire(tensor, box.leave(port), track, ends))
                track += 2
    pipeline.width = x
    pipeline.height = max(box.y + box.height for box in pipeline.boxes)


def _width(box: Box) -> int:
    if box.kind == "lane":
        return 3
    reads = max((len(name) for name, _ in box.reads), default=0)
    writes = max((len(name) for name, _ in box.writes), default=0)
    return 4 + max(len(box.title) + 2, len(box.note) + 2, reads + writes + 1)
