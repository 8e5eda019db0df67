"""Locks of directories and files (flock(2)): they end with the process that holds them, however it ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class HeldDirectory:
    """A directory that is in use: `removing` does not allow its removal until `release`."""

    def __init__(self, path: Path) -> None:
        """Make it if need be and hold it together with others. Raises OSError."""
        self.path = path
        self._descriptor = _hold(path)

    def release(self) -> None:
        """Hold it no more; may be called again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _hold(path: Path) -> int:
    while True:
        path.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # removed in between
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if is_still(path, descriptor):
            return descriptor
        os.close(descriptor)


def is_still(path: Path, descriptor: int) -> bool:
    """Return whether a path names the open file or directory: another process may have removed or replaced it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def try_lock(descriptor: int) -> bool:
    """Lock an open file or directory unless another process holds it; return whether it is locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def removing(path: Path) -> Iterator[bool]:
    """Whether a directory is not in use; the directory stays locked within the block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        yield False
        return
    try:
        yield try_lock(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait for the lock of a path; it is held within the block. The file stays."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
