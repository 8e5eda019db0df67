"""The file of --log-file, which logrotate may rename, remove or truncate at any time."""

import contextlib
import os
import time
from pathlib import Path
from typing import TextIO

_CHECK_NS = 1_000_000_000
"""Interval of checks whether the path still names the open file."""


class LogFile:
    """A file that is opened again when its path names another file or none; written by one thread."""

    def __init__(self, path: str) -> None:
        """Open the file to append. Raises OSError."""
        self._path = Path(path)
        self._file = self._open()
        self._check_ns = 0

    def write(self, text: str) -> object:
        """Append text. Raises OSError."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._check_ns:
            self._check_ns = now_ns + _CHECK_NS
            self._reopen()
        return self._file.write(text)

    def flush(self) -> None:
        """Pass what was written to the system. Raises OSError."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _open(self) -> TextIO:
        # In append mode, writes after a truncation begin at the new end.
        return self._path.open("a", encoding="utf-8", errors="backslashreplace")

    def _reopen(self) -> None:
        try:
            is_current = os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            is_current = False
        if is_current:
            return
        # The directory may have become read-only: then the lines stay in the file that is open.
        with contextlib.suppress(OSError):
            file = self._open()
            self._file.close()
            self._file = file
