"""Rows of `.jsonl` files: an object on each line, with a member for each input."""

from collections.abc import Mapping
from typing import Any

from naiad.core.errors import InferError
from naiad.tools.predict.job_signature import RowSignature
from naiad.tools.predict.prediction_job import PredictJob
from naiad.tools.predict.rows.chunk import FileRows
from naiad.tools.predict.sources.bounded_lines import MAX_LINE_BYTES
from naiad.tools.predict.sources.record_columns import RecordColumns, parse_record
from naiad.tools.predict.stores.object_path import FilePath
from naiad.tools.values.tensor import InputError


class JsonLinesSource:
    """One file. Members that no input and no key needs are ignored; empty lines are no rows."""

    def __init__(self, path: FilePath, job: PredictJob, signature: RowSignature) -> None:
        """Raises OSError, and InferError of an object store."""
        self.path = path
        self._records = RecordColumns(job, signature)
        self.note = ""
        file = path.open("rb")
        try:
            file.read(1)  # an object is not asked for before it is read
            file.seek(0)
        except BaseException:
            file.close()
            raise
        self._file = file
        self.total_bytes = path.stat().st_size
        self._done = 0
        self._row = 0

    @property
    def done_bytes(self) -> int:
        """How much of the file is read."""
        return self._done

    @property
    def position(self) -> int:
        """Byte of the file at which the next line begins."""
        return self._done

    def seek(self, position: int, row: int) -> None:
        """Go to the line that begins at a byte."""
        self._file.seek(position)
        self._done, self._row = position, row

    def skip(self, count: int) -> int:
        """Pass over rows; return how many there were."""
        for done in range(count):
            if self._line() is None:
                return done
            self._row += 1
        return count

    def read(self, max_rows: int, max_bytes: int) -> FileRows | None:
        """Return the next rows; None at the end."""
        first, start = self._row, self._done
        members: list[Mapping[str, Any]] = []
        failures: dict[int, str] = {}
        while len(members) < max_rows and self._done - start < max_bytes:
            line = self._line()
            if line is None:
                break
            try:
                members.append(self._records.row(_parse(line), "the line"))
            except (InputError, InferError) as error:
                failures[len(members)] = error.message if isinstance(error, InferError) else str(error)
                members.append({})
        if not members:
            return None
        self._row += len(members)
        return self._records.rows(self.path.name, first, members, failures)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _line(self) -> bytes | None:
        """Return the next line that is not empty, at most a little more than the limit; None at the end.

        A line that is longer is a failed row, and memory never holds more of it.
        """
        while True:
            line = self._file.readline(MAX_LINE_BYTES + 1)
            self._done += len(line)
            if not line:
                return None
            piece = line
            while len(piece) > MAX_LINE_BYTES and not piece.endswith(b"\n"):
                piece = self._file.readline(MAX_LINE_BYTES + 1)
                self._done += len(piece)
            if not line.isspace():
                return line


def _parse(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise InputError(f"the line is longer than {MAX_LINE_BYTES >> 20} MiB; split it, or use .npz")
    return parse_record(line.removeprefix(b"\xef\xbb\xbf"), "the line")
