"""The files of a recording: `PATH` and, before it, `PATH.1`, each with up to half of the size.

A file consists of lines of JSON. Its first line, and one for every start of a server that continues it, relates the
monotonic clock of the lines that follow to the wall clock.
"""

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable
from typing import IO

from naiad.core.tensor import Buffer

FORMAT_VERSION = 1
_OPENING = b'{"naiad_traffic":%d,' % FORMAT_VERSION
_BUFFER_BYTES = 1 << 18


class RingFile:
    """The two files; used by one thread at a time. A process continues the files of an earlier one."""

    def __init__(self, path: str, size_bytes: int) -> None:
        """Open the files. Raises OSError if that is not possible, if one is not a recording, or if it is in use."""
        self._path = path
        wall_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
        self._opening = _OPENING + b'"wall_ns":%d,"monotonic_ns":%d}\n' % (wall_ns, monotonic_ns)
        self._half_bytes = size_bytes // 2
        _check(self._older_path)
        self._file = self._open()

    @property
    def _older_path(self) -> str:
        return f"{self._path}.1"

    @property
    def max_line_bytes(self) -> int:
        """A longer line does not fit into a file."""
        return self._half_bytes - len(self._opening)

    def _open(self) -> IO[bytes]:
        _check(self._path)
        # Other users must not read what clients send.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        file = os.fdopen(descriptor, "ab", buffering=_BUFFER_BYTES)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise OSError(errno.EBUSY, "another server records in it", self._path) from None
        size_bytes = file.tell()
        if size_bytes and os.pread(descriptor, 1, size_bytes - 1) != b"\n":
            file.write(b"\n")  # ends the incomplete line of a process that was killed
            size_bytes += 1
        file.write(self._opening)
        self._size_bytes = size_bytes + len(self._opening)
        file.flush()
        return file

    def append(self, parts: Iterable[Buffer], size_bytes: int) -> None:
        """Write a line of `size_bytes`, which may stay in a buffer until `flush`. Raises OSError."""
        if self._size_bytes + size_bytes > self._half_bytes:
            self._file.close()
            os.replace(self._path, self._older_path)
            self._file = self._open()
        self._file.writelines(parts)
        self._size_bytes += size_bytes

    def flush(self) -> None:
        """Write what is in the buffer. Raises OSError."""
        self._file.flush()

    def close(self) -> None:
        """Close the file. Raises OSError if what is in its buffer cannot be written."""
        self._file.close()


def _check(path: str) -> None:
    """Raise OSError for a file that must not be replaced: one that exists, is not empty and not a recording."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        with open(path, "rb") as file:
            opening = file.read(len(_OPENING))
        if opening not in (b"", _OPENING):
            raise OSError(errno.EEXIST, "exists and is not a recording of this version", path)
