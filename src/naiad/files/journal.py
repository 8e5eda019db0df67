"""A journal: JSON documents, one on a line, of which a later process continues what an earlier one has begun.

Each line is on the disk before `append` returns. A process that is killed may leave a last line without its end, a
torn one; reading removes it, so that the last whole line is true and the next one begins a line of its own.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from naiad.files.held import is_still, try_lock


class Journal:
    """An open journal file."""

    def __init__(self, path: Path) -> None:
        """Open a file, which is created where there is none. Raises OSError."""
        self._path = path
        self._file = path.open("ab+")

    def lock(self) -> bool:
        """Return whether this process has the file for itself, and its path still names it. Raises OSError."""
        return try_lock(self._file.fileno()) and is_still(self._path, self._file.fileno())

    def lines(self) -> list[bytes]:
        """Return all whole lines; a torn last one is removed. Raises OSError."""
        self._file.seek(0)
        text = self._file.read()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            self._file.truncate(len(whole))
        return whole.splitlines()

    def append(self, document: Mapping[str, Any]) -> None:
        """Write a line to the disk. Raises OSError."""
        self._file.write(json.dumps(document).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def clear(self) -> None:
        """Remove all lines. Raises OSError."""
        self._file.truncate(0)

    def close(self) -> None:
        """Close the file, which also releases it for other processes. May be called again."""
        self._file.close()
