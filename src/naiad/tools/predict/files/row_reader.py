"""The rows of all files, one chunk after the other."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from naiad.core.errors import InferError
from naiad.tools.predict.files.input_files import InputFiles, open_source
from naiad.tools.predict.job_signature import RowSignature
from naiad.tools.predict.prediction_job import PredictJob
from naiad.tools.predict.rows.chunk import Chunk
from naiad.tools.predict.rows.outage import is_outage_of_file
from naiad.tools.predict.rows.row_tensors import to_chunk
from naiad.tools.predict.sources.row_source import RowSource

if TYPE_CHECKING:
    from naiad.tools.predict.stores.object_path import FilePath

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileSpan:
    """Consecutive rows of one file, as their place in it. Picklable."""

    files: InputFiles
    """For files that are rows only the files of these rows."""
    first: int
    """Number of the first row in its file, from 0."""
    position: int
    """Where that row begins, as `RowSource.seek` takes it."""
    count: int
    file_bytes: int
    """Size of the file, by which another machine sees that its file is the same; of files that are rows, of all."""
    done_bytes: int
    """Bytes of all input files up to the end of these rows."""


class Reader:
    """Reads files in order, of which one is open at a time. The thread that calls may change from call to call."""

    def __init__(self, files: Sequence[InputFiles], job: PredictJob, signature: RowSignature) -> None:
        """Check the heads of all files, so that the last one does not fail after hours.

        Files among several that cannot be read are set aside, unless the job limits its failed rows. Raises
        InferError and OSError if no file can be read, or one cannot be read now.
        """
        self._files: list[InputFiles] = []
        self.set_aside: dict[str, str] = {}
        """Files that cannot be read, and folders of such, with the reasons."""
        self.unread: list[FilePath] = []
        """All of these files, also the files of the folders."""
        self._job = job
        self._signature = signature
        self._source: RowSource | None = None
        self._row = 0
        """Number of the next row in its file."""
        self._ended_bytes = self.total_bytes = 0
        has_note = False
        for each in files:
            try:
                source = open_source(each, job, signature)
            except (InferError, OSError) as error:
                self._set_aside(each, error, is_last=each is files[-1])
                continue
            self._files.append(each)
            if source.note and not has_note:
                has_note = True
                _log.warning("%s", source.note)
            source.close()
            self.total_bytes += source.total_bytes

    def _set_aside(self, file: InputFiles, error: InferError | OSError, *, is_last: bool) -> None:
        """Remember why a file cannot be read; raise the error if that ends the job."""
        if is_outage_of_file(error) or self._job.max_failed_rows is not None or (is_last and not self._files):
            raise error
        reason = getattr(error, "message", "").strip() or str(error)
        reason = reason.removeprefix(f"{file.path}: ")  # The file is named in front of it.
        self.set_aside[str(file.path)] = reason
        self.unread += file.all
        _log.warning("%s is set aside: %s", file.path, reason)

    def skip(self, count: int) -> int:
        """Pass over rows of an earlier run; return how many there were. Raises OSError and InferError."""
        done = 0
        while done < count and (source := self._current()) is not None:
            skipped = source.skip(count - done)
            done += skipped
            self._row += skipped
            if done < count:
                self._end(source)
        return done

    def pass_over(self, max_rows: int) -> FileSpan | None:
        """Pass over the next rows, all of one file, and return where they are; None at the end.

        Raises OSError and InferError.
        """
        while (source := self._current()) is not None:
            files, first, position = self._files[0], self._row, source.position
            count = source.skip(max_rows)
            if count:
                self._row += count
                if files.rows:
                    files = InputFiles(files.path, files.rows[first : first + count])
                return FileSpan(files, first, position, count, source.total_bytes, self.done_bytes)
            self._end(source)
        return None

    def read(self, max_rows: int, max_bytes: int) -> Chunk | None:
        """Return the next rows, all of one file; None at the end. Raises OSError and InferError."""
        while (source := self._current()) is not None:
            rows = source.read(max_rows, max_bytes)
            if rows is not None:
                self._row += rows.count
                chunk = to_chunk(rows, self._signature.inputs, self._signature.pictures, source.path.parent)
                chunk.done_bytes = self.done_bytes
                return chunk
            self._end(source)
        return None

    @property
    def done_bytes(self) -> int:
        """How much of `total_bytes` is read."""
        return self._ended_bytes + (self._source.done_bytes if self._source is not None else 0)

    def close(self) -> None:
        """Close the open file."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def _current(self) -> RowSource | None:
        if self._source is None and self._files:
            self._source = open_source(self._files[0], self._job, self._signature)
        return self._source

    def _end(self, source: RowSource) -> None:
        self.close()
        self._row = 0
        del self._files[0]
        self._ended_bytes += source.total_bytes
