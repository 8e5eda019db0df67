"""Bytes of a file of text, whose lines have a limit: a line is in memory as a whole."""

import io
from typing import Any

from naiad.core.errors import invalid_argument

MAX_LINE_BYTES = 64 << 20


class BoundedLines(io.BufferedReader):
    """A file that is read in order, in pieces. A read raises InferError within a line that is too long."""

    def __init__(self, raw: Any, name: str) -> None:
        """`name` is that of the file, for the error."""
        super().__init__(raw)
        self._name = name
        self._line_bytes = 0
        """Of the last line, as far as it is read."""

    def read1(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        data = super().read1(size)
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._line_bytes = len(data) - end if end else self._line_bytes + len(data)
        if self._line_bytes > MAX_LINE_BYTES:
            raise invalid_argument(
                f"{self._name}: a line is longer than {MAX_LINE_BYTES >> 20} MiB; expected a line for each row, or "
                "write .npz or .parquet"
            )
        return data
