"""What is known of one model file, and how it is printed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_TOP_OPERATORS = 8


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One input or output."""

    name: str
    datatype: str
    shape: Sequence[int | str] | None
    """With the batch dimension; -1 or a name for a free one. None if the file does not say."""

    def __str__(self) -> str:
        shape = "of any shape" if self.shape is None else f"[{', '.join(map(str, self.shape))}]"
        return f"{self.name}  {self.datatype} {shape}"


@dataclass(slots=True)
class Inspection:
    """The findings about one file or directory."""

    path: str
    format: str = ""
    producer: str = ""
    size_bytes: int = 0
    inputs: list[TensorRow] = field(default_factory=list)
    outputs: list[TensorRow] = field(default_factory=list)
    batching: str = ""
    parameter_count: int | None = None
    operators: Counter[str] = field(default_factory=Counter)
    details: dict[str, str] = field(default_factory=dict)
    """Further facts by their names."""
    backend: str = ""
    served: str = ""
    """Whether the installed packages can serve it, otherwise the command that installs them."""
    unread: list[str] = field(default_factory=list)
    """What could not be read, with the reason."""
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the findings for JSON."""
        tensors = {
            kind: [{"name": row.name, "datatype": row.datatype, "shape": row.shape} for row in rows]
            for kind, rows in (("inputs", self.inputs), ("outputs", self.outputs))
        }
        names = (
            "path", "format", "producer", "size_bytes", "batching", "parameter_count", "details", "backend", "served",
            "unread", "problems",
        )  # fmt: skip
        return {**{name: getattr(self, name) for name in names}, **tensors, "operators": dict(self.operators)}

    def as_text(self) -> str:
        """Return the findings as lines."""
        rows = [("format", self.format), ("producer", self.producer), ("size", f"{self.size_bytes:,} bytes")]
        if self.parameter_count is not None:
            rows.append(("parameters", f"{self.parameter_count:,}"))
        rows += self.details.items()
        rows += [("input", str(row)) for row in self.inputs] + [("output", str(row)) for row in self.outputs]
        rows += [("batching", self.batching), ("operators", self._operators()), ("backend", self.backend)]
        rows += [("served", self.served)]
        rows += [("not read", text) for text in self.unread] + [("problem", text) for text in self.problems]
        return "\n".join([self.path, *(f"  {name:<13}{text}" for name, text in rows if text)])

    def _operators(self) -> str:
        if not self.operators:
            return ""
        top = ", ".join(f"{name} {count}" for name, count in self.operators.most_common(_TOP_OPERATORS))
        rest = len(self.operators) - _TOP_OPERATORS
        return f"{self.operators.total()}: {top}" + (f", and {rest} more kinds" if rest > 0 else "")
