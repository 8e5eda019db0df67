"""A source of a format that says how many rows it has, and in which some of them cannot be read.

A read that fails is repeated with a file that is opened again, since disks and networks fail in passing. Then it is
repeated with fewer rows, so that those before the damage come. The rows from there to the end of what is damaged, a
row group or the file, are failed rows with the reason. Which rows fail does not depend on how many are read at once.
"""

import errno
from collections.abc import Callable, Sequence
from typing import Protocol

from naiad.core.errors import InferError
from naiad.tools.predict.rows.chunk import FileRows
from naiad.tools.predict.rows.outage import is_outage
from naiad.tools.predict.sources.row_source import RowSource
from naiad.tools.predict.stores.object_path import FilePath, FolderPath

MAX_TRIES = 3


class CountedSource(RowSource, Protocol):
    """A source that knows its rows."""

    rows: int

    def be_careful(self) -> None:
        """Have no row fail because of rows that are behind its unit, such as a row group."""

    def damage_end(self, row: int) -> int:
        """Return the first row behind the damage, if a row cannot be read."""


class SteadySource:
    """Rows of one file, those that cannot be read as failed ones."""

    def __init__(self, open_file: Callable[[], CountedSource], keys: Sequence[str]) -> None:
        """Open the file. Raises what that raises."""
        self._open_file = open_file
        self._keys = keys
        self._source = open_file()
        self._row = 0
        self._damage_end = 0
        """Rows before this one, from the present one on, cannot be read."""
        self._reason = ""
        self.total_bytes = self._source.total_bytes
        self.note = self._source.note

    @property
    def path(self) -> FilePath | FolderPath:
        """What is read."""
        return self._source.path

    @property
    def done_bytes(self) -> int:
        """How much of `total_bytes` is read."""
        rows = self._source.rows
        return self.total_bytes * self._row // rows if rows else self.total_bytes

    @property
    def position(self) -> int:
        """Number of the next row."""
        return self._row

    def seek(self, position: int, row: int) -> None:
        """Go to a row of a source from which nothing is read yet."""
        self.skip(row)

    def skip(self, count: int) -> int:
        """Pass over rows, which are not read."""
        count = min(count, self._source.rows - self._row)
        self._row += count
        if self._row >= self._damage_end:
            self._source.skip(self._row - self._source.position)
        return count

    def read(self, max_rows: int, max_bytes: int) -> FileRows | None:
        """Return the next rows; None at the end. Raises InferError and OSError for what is no damage of rows."""
        if self._row >= self._source.rows:
            return None
        if self._row >= self._damage_end:
            rows = self._readable(max_rows, max_bytes)
            if rows is not None:
                self._row += rows.count
                return rows
        return self._damaged(min(max_rows, self._damage_end - self._row))

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def _readable(self, max_rows: int, max_bytes: int) -> FileRows | None:
        """Return rows, fewer if some cannot be read; None if the first one cannot."""
        tries, count = 0, max_rows
        while True:
            try:
                rows = self._source.read(count, max_bytes)
            except (InferError, OSError) as error:
                if _ends_the_job(error):
                    raise
                tries += 1
                if tries == MAX_TRIES:
                    tries, count = 0, count // 2
                if not count:
                    self._note_damage(error)
                    return None
                self._reopen()
                continue
            if rows is None:
                raise OSError(errno.EIO, "the file ends too early", str(self.path))
            return rows

    def _note_damage(self, error: InferError | OSError) -> None:
        text = getattr(error, "message", "") or str(error)
        self._damage_end = min(self._source.rows, max(self._row + 1, self._source.damage_end(self._row)))
        where = f"rows to {self._damage_end - 1} of {self.path.name}"
        self._reason = f"{where}: {text.removeprefix(f'{self.path}: ')}; set aside after {MAX_TRIES} tries"
        self._reopen(self._damage_end)

    def _reopen(self, row: int = -1) -> None:
        self._source.close()
        self._source = self._open_file()
        self._source.be_careful()
        self._source.skip(self._row if row < 0 else row)

    def _damaged(self, count: int) -> FileRows:
        first = self._row
        self._row += count
        failures = dict.fromkeys(range(count), self._reason)
        return FileRows(self.path.name, first, count, {}, {key: [None] * count for key in self._keys}, failures)


def _ends_the_job(error: InferError | OSError) -> bool:
    """Return whether an error says nothing about rows: an outage, or a file that is not there any more."""
    return is_outage(error) or (isinstance(error, OSError) and error.errno == errno.ENOENT)
