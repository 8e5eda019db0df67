"""Digests of files, which are read again only when the file has changed."""

import os
import time
from pathlib import Path

from naiad.files.digest import file_sha256

_SETTLED_NS = 2_000_000_000
"""A file that was changed less than this ago may change again within one tick of its times."""
_MOST_FILES = 10_000


class KnownDigests:
    """The SHA-256 digests of files. May be used by several threads."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], str] = {}

    def digest(self, path: Path) -> str:
        """Return the digest of a file's content. Raises OSError."""
        identity = _identity(path)
        found = self._known.get(identity)
        if found is not None:
            return found
        digest = file_sha256(path)
        if identity == _identity(path) and time.time_ns() - max(identity[-2:]) > _SETTLED_NS:
            if len(self._known) >= _MOST_FILES:
                self._known.clear()
            self._known[identity] = digest
        return digest


def _identity(path: Path) -> tuple[int, ...]:
    """Return what changes with the content of a file: its size and times, and which file it is."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
