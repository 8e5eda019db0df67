"""Models in protobuf: ONNX, SavedModel, frozen graphs; field numbers come from their .proto files."""

import math
import mmap
from collections.abc import Iterator
from pathlib import Path

from naiad.backend.onnx.protobuf_fields import BYTES, VARINT, Field, read_fields, read_varint
from naiad.cli.inspect.file_report import Inspection, TensorRow

_ONNX_TYPES = (
    "", "FP32", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "BYTES", "BOOL", "FP16", "FP64", "UINT32",
    "UINT64", "complex64", "complex128", "BF16",
)  # fmt: skip
_TF_TYPES = {
    1: "FP32", 2: "FP64", 3: "INT32", 4: "UINT8", 5: "INT16", 6: "INT8", 7: "BYTES", 9: "INT64", 10: "BOOL",
    14: "BF16", 17: "UINT16", 19: "FP16", 22: "UINT32", 23: "UINT64",
}  # fmt: skip
_EXTERNAL = 1


class Message:
    """One message in a file that is mapped into memory."""

    def __init__(self, data: bytes | mmap.mmap, start: int = 0, end: int | None = None) -> None:
        self._data = data
        self._fields: dict[int, list[Field]] = {}
        for each in read_fields(data, start, end):
            self._fields.setdefault(each.number, []).append(each)

    def messages(self, *path: int) -> Iterator["Message"]:
        """Yield the messages at a path of field numbers."""
        for each in self._fields.get(path[0], ()):
            inner = Message(self._data, each.value_start, each.end)
            yield from inner.messages(*path[1:]) if len(path) > 1 else (inner,)

    def texts(self, number: int) -> list[str]:
        """Return the strings of a field."""
        found = self._fields.get(number, ())
        return [bytes(self._data[each.value_start : each.end]).decode(errors="replace") for each in found]

    def text(self, number: int) -> str:
        """Return a string, empty if it is not there."""
        return next(iter(self.texts(number)), "")

    def numbers(self, number: int) -> list[int]:
        """Return the integers of a field, packed or not."""
        values: list[int] = []
        for each in self._fields.get(number, ()):
            position = each.value_start
            while each.wire_type in (VARINT, BYTES) and position < each.end:
                value, position = read_varint(self._data, position, each.end)
                values.append(value - (1 << 64) if value >> 63 else value)
        return values

    def number(self, number: int) -> int:
        """Return an integer, 0 if it is not there."""
        return next(iter(self.numbers(number)), 0)


def read_onnx(path: Path, found: Inspection) -> None:
    """Read an ONNX model. Raises OSError, ValueError."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        model = Message(data)
        opsets = [f"{each.text(1) or 'ai.onnx'} {each.number(2)}" for each in model.messages(8)]
        found.producer = " ".join(filter(None, (model.text(2), model.text(3))))
        found.details |= {"IR version": str(model.number(1)), "opsets": ", ".join(dict.fromkeys(opsets))}
        for graph in model.messages(7):
            initializers = list(graph.messages(5))
            names = {each.text(8) for each in initializers}
            found.parameter_count = sum(math.prod(each.numbers(1)) for each in initializers)
            found.inputs = [row for each in graph.messages(11) if (row := _onnx_tensor(each)).name not in names]
            found.outputs = [_onnx_tensor(each) for each in graph.messages(12)]
            found.operators.update(each.text(4) for each in graph.messages(1))
            external = {
                entry.text(2)
                for each in initializers
                if each.number(14) == _EXTERNAL
                for entry in each.messages(13)
                if entry.text(1) == "location"
            }
            for name in sorted(external):
                if not (path.parent / name).is_file():
                    found.problems.append(f"the weights are in {name}, which is not beside the file; copy it there")


def _onnx_tensor(value: Message) -> TensorRow:
    for tensor in value.messages(2, 1):
        number = tensor.number(1)
        dims = [dim.text(2) or (dim.number(1) or -1) for shape in tensor.messages(2) for dim in shape.messages(1)]
        kind = _ONNX_TYPES[number] if number < len(_ONNX_TYPES) else f"type {number}"
        return TensorRow(value.text(1), kind, dims)
    return TensorRow(value.text(1), "a sequence or map", None)


def read_saved_model(path: Path, found: Inspection) -> None:
    """Read the directory of a SavedModel. Raises OSError, ValueError."""
    model = Message((path / "saved_model.pb").read_bytes())
    for graph in model.messages(2):
        for info in graph.messages(1):
            found.producer = f"TensorFlow {info.text(5)}"
            found.details["tags"] = ", ".join(info.texts(4))
        found.operators.update(node.text(2) for node in graph.messages(2, 1))
        found.operators.update(node.text(2) for node in graph.messages(2, 2, 1, 3))
        signatures = {each.text(1): each for each in graph.messages(5)}
        found.details["signatures"] = ", ".join(sorted(signatures))
        chosen = signatures.get("serving_default") or next(iter(signatures.values()), None)
        if chosen is not None:
            found.inputs = [_tf_tensor(each) for each in chosen.messages(2, 1)]
            found.outputs = [_tf_tensor(each) for each in chosen.messages(2, 2)]
    if not (path / "variables" / "variables.index").is_file() and found.operators["VarHandleOp"]:
        found.problems.append("the directory has no variables; copy all of it")


def _tf_tensor(entry: Message) -> TensorRow:
    info = next(entry.messages(2))
    shape = next(info.messages(3), None)
    dims = None if shape is None or shape.number(3) else [dim.number(1) for dim in shape.messages(2)]
    return TensorRow(entry.text(1), _TF_TYPES.get(info.number(2), f"type {info.number(2)}"), dims)


def read_graph_def(path: Path, found: Inspection) -> None:
    """Read a frozen graph. Raises OSError, ValueError."""
    graph = Message(path.read_bytes())
    found.operators.update(node.text(2) for node in graph.messages(1))
    placeholders = [node.text(1) for node in graph.messages(1) if node.text(2) == "Placeholder"]
    found.details["placeholders"] = ", ".join(placeholders)
    found.unread.append("outputs: a frozen graph does not name them; write 'input' and 'output' in config.pbtxt")
