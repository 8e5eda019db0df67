"""What all formats of the output have in common: files that only grow, so that a checkpoint is a list of sizes."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from naiad.core.errors import internal, invalid_argument
from naiad.tools.predict.rows.row_outputs import OutputBlock
from naiad.tools.values.tensor import ModelTensor


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of the output: the row number, keys, outputs of the model."""

    keys: Sequence[str]
    outputs: Mapping[str, ModelTensor]

    @property
    def row_name(self) -> str:
        """Name of the column with the row number: `row`, or with underscores before it where that is taken."""
        name = "row"
        while name in self.keys or name in self.outputs:
            name = f"_{name}"
        return name


def check_names(names: Sequence[str]) -> None:
    """Raise InferError(INVALID_ARG) if two columns of the output would have one name: readers keep one of them."""
    for name, count in Counter(names).items():
        if count > 1:
            raise invalid_argument(
                f"the output would have {count} columns with the name '{name}'; choose others with --key "
                "and --outputs"
            )


def is_single(tensor: ModelTensor) -> bool:
    """Return whether each row has one element, which is written as a value, not as a list."""
    return tensor.dims in ((), (1,))


class Sink(Protocol):
    """Writes rows in order. All methods raise OSError.

    What is written for rows does not depend on how they are divided into blocks.
    """

    @property
    def parts(self) -> "Sequence[PartFile]":
        """The files that grow with each block, after their heads."""

    def problems(self, block: OutputBlock) -> dict[int, str]:
        """Return offset -> reason for rows that the format cannot hold; they become failed rows."""

    def append(self, block: OutputBlock) -> None:
        """Write rows, not yet for certain to the disk."""

    def sync(self) -> dict[str, int]:
        """Write everything to the disk; return the size of each file by name."""

    def finish(self) -> Path:
        """Return the complete file, in the folder; its rows are synced."""

    def close(self) -> None:
        """Close the files."""


class PartFile:
    """A file that grows."""

    def __init__(self, folder: Path, name: str, sizes: Mapping[str, int]) -> None:
        """Open a file with the size that `sizes` records, 0 without a record: what was written later is removed.

        Raises OSError, and InferError(INTERNAL) if the file is shorter.
        """
        self.name = name
        self.path = folder / name
        size = sizes.get(name, 0)
        self._file: IO[bytes] = self.path.open("ab")
        found = self._file.tell()
        if found < size:
            self._file.close()
            raise internal(f"{self.path} has {found} bytes, and {size} were finished; add --restart to begin again")
        if found > size:
            self._file.truncate(size)
        self.size = size

    def write(self, data: bytes) -> None:
        """Append. Raises OSError with the name of the file."""
        with self._named():
            self._file.write(data)
        self.size += len(data)

    def sync(self) -> None:
        """Write to the disk. Raises OSError with the name of the file."""
        with self._named():
            self._file.flush()
            os.fsync(self._file.fileno())

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Name the file in errors of an open one: a full disk or a limit says nothing of it."""
        try:
            yield
        except OSError as error:
            error.filename = error.filename or str(self.path)
            raise

    def content_from(self, offset: int) -> bytes:
        """Return what was written from a byte on."""
        self._file.flush()
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.read()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TextSink:
    """A format whose file only grows: the finished part is the file."""

    def __init__(self, folder: Path, name: str, sizes: Mapping[str, int]) -> None:
        self.part = PartFile(folder, name, sizes)

    @property
    def parts(self) -> Sequence[PartFile]:
        """The file."""
        return [self.part]

    def problems(self, block: OutputBlock) -> dict[int, str]:
        """Return nothing: text can hold all rows."""
        return {}

    def sync(self) -> dict[str, int]:
        """Write everything to the disk."""
        self.part.sync()
        return {self.part.name: self.part.size}

    def finish(self) -> Path:
        """Return the file."""
        self.part.close()
        return self.part.path

    def close(self) -> None:
        """Close the file."""
        self.part.close()
