"""The rows of all files, one chunk after the other."""

import logging
from collections.abc import Sequence

from naiad.batch.job import PredictJob
from naiad.batch.rows.chunk import Chunk
from naiad.batch.rows.tensors import to_chunk
from naiad.batch.signature import ModelSignature
from naiad.batch.sources.opening import InputFiles, open_source
from naiad.batch.sources.source import Source

_log = logging.getLogger(__name__)


class Reader:
    """Reads files in order, of which one is open at a time. The thread that calls may change from call to call."""

    def __init__(self, files: Sequence[InputFiles], job: PredictJob, signature: ModelSignature) -> None:
        """Check the heads of all files, so that the last one does not fail after hours.

        Raises InferError and OSError.
        """
        self._files = list(files)
        self._job = job
        self._signature = signature
        self._source: Source | None = None
        self._ended_bytes = self.total_bytes = 0
        has_note = False
        for each in files:
            source = open_source(each, job, signature)
            if source.note and not has_note:
                has_note = True
                _log.warning("%s", source.note)
            source.close()
            self.total_bytes += source.total_bytes

    def skip(self, count: int) -> int:
        """Pass over rows of an earlier run; return how many there were. Raises OSError and InferError."""
        done = 0
        while done < count and (source := self._current()) is not None:
            done += source.skip(count - done)
            if done < count:
                self._end(source)
        return done

    def read(self, max_rows: int, max_bytes: int) -> Chunk | None:
        """Return the next rows, all of one file; None at the end. Raises OSError and InferError."""
        while (source := self._current()) is not None:
            rows = source.read(max_rows, max_bytes)
            if rows is not None:
                chunk = to_chunk(rows, self._signature.inputs)
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

    def _current(self) -> Source | None:
        if self._source is None and self._files:
            self._source = open_source(self._files[0], self._job, self._signature)
        return self._source

    def _end(self, source: Source) -> None:
        self.close()
        del self._files[0]
        self._ended_bytes += source.total_bytes
