"""One publication of a model at a time, also of several processes: a locked file in the repository."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from naiad.files.held import is_still, try_lock


class LockedError(ValueError):
    """Another process publishes the same model."""


@contextlib.contextmanager
def publishing(repository: Path, model: str) -> Iterator[None]:
    """Hold the lock of a model. The system releases it when a process ends, however that happens.

    Raises LockedError at once if another process holds it.
    """
    path = repository / f".{model}.publishing"
    descriptor = _acquire(path, model)
    try:
        yield
    finally:
        # Removed while it is locked: `_acquire` notices a file that has lost its name.
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path, model: str) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not try_lock(descriptor):
            os.close(descriptor)
            raise LockedError(
                f"another process publishes model '{model}' in {path.parent}; try again when it is done"
            )
        if is_still(path, descriptor):
            return descriptor
        os.close(descriptor)  # Removed by the process that held it, between both calls.
