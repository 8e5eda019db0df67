"""Rows on their way from a file to requests: as the file has them, and as tensors."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from naiad.core.tensor import Array


class Absent(Enum):
    """The type of `ABSENT`."""

    VALUE = "absent"


ABSENT = Absent.VALUE
"""Value of a column in a row that does not have it."""

Column: TypeAlias = Array | Sequence[Any]
"""A value per row: an array, rows along its first axis, or values as in JSON, `bytes` for strings, and ABSENT."""


@dataclass(slots=True)
class FileRows:
    """Consecutive rows of a file, not converted."""

    file: str
    first: int
    """Number of the first one in its file, from 0."""
    count: int
    columns: Mapping[str, Column]
    """By input."""
    keys: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Columns that the output repeats."""
    failures: dict[int, str] = field(default_factory=dict)
    """Offset in these rows -> why the row cannot be read."""
    files_are_rows: bool = False
    """`file` is a folder, and the key `file` has the name of each row's file."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows whose tensors have equal shapes, so that they may share a request."""

    offsets: Sequence[int]
    arrays: Mapping[str, Array]
    """By input, a row along the first axis."""

    def without(self, offsets: Container[int]) -> "Group":
        """Return the group without some rows."""
        kept = [place for place, offset in enumerate(self.offsets) if offset not in offsets]
        return Group(
            [self.offsets[place] for place in kept], {name: each[kept] for name, each in self.arrays.items()}
        )


@dataclass(slots=True)
class Chunk:
    """Consecutive rows of a file as tensors; each row is in one group, or failed."""

    file: str
    first: int
    count: int
    keys: Mapping[str, Sequence[Any]]
    groups: Sequence[Group]
    failures: dict[int, str]
    done_bytes: int = 0
    """Bytes of the input up to the end of these rows."""
    files_are_rows: bool = False
    results: list["ChunkResult"] = field(default_factory=list)
    """Filled while requests end, in any order."""

    @property
    def input_bytes(self) -> int:
        """Size of the tensors, without the text of strings."""
        return sum(array.nbytes for group in self.groups for array in group.arrays.values())


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """Outputs of some rows of a chunk."""

    offsets: Sequence[int]
    outputs: Mapping[str, Array]
    """By output, a row along the first axis."""
