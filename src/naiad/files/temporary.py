"""Temporary directories of a server or a job, which the next start removes if their process was killed.

Each is held (`held`) by its process from before it has its name; so one that no process holds is abandoned. The
system gives the lock back when a process ends, also after SIGKILL, and nothing has to be written down.
"""

import contextlib
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from naiad.files.held import HeldDirectory, removing

_log = logging.getLogger(__name__)

_PREFIX = "naiad-held-"
_UNNAMED = "naiad-unheld-"
"""Prefix of a directory until it is held."""


class OwnDirectory:
    """A new directory in the temporary directory of the system, for this process alone."""

    def __init__(self, kind: str, parent: str | None = None) -> None:
        """`kind` is a word for its name. Raises OSError."""
        unnamed = Path(tempfile.mkdtemp(prefix=_UNNAMED, dir=parent))
        try:
            self._held = HeldDirectory(unnamed)
            self.path = unnamed.with_name(f"{_PREFIX}{kind}-{unnamed.name.removeprefix(_UNNAMED)}")
            unnamed.rename(self.path)
        except OSError:
            shutil.rmtree(unnamed, ignore_errors=True)
            raise

    def remove(self) -> None:
        """Remove it with its files; what cannot be removed stays. May be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._held.release()


@contextlib.contextmanager
def own_directory(kind: str) -> Iterator[Path]:
    """Make a directory for the block. Raises OSError."""
    directory = OwnDirectory(kind)
    try:
        yield directory.path
    finally:
        directory.remove()


def remove_abandoned(parent: Path | None = None) -> list[Path]:
    """Remove the directories of processes that were killed, and return them; directories of other users stay."""
    removed: list[Path] = []
    try:
        found = [Path(entry.path) for entry in os.scandir(parent or tempfile.gettempdir()) if _is_ours(entry)]
    except OSError as error:
        _log.debug("the temporary directory cannot be listed: %s", error)
        return []
    for path in found:
        try:
            with removing(path) as is_free:
                if is_free:
                    shutil.rmtree(path, ignore_errors=True)
                    removed.append(path)
        except OSError as error:  # it became something else
            _log.debug("%s cannot be removed: %s", path, error)
    if removed:
        _log.warning(
            "removed %d temporary directories of processes that were killed: %s",
            len(removed),
            ", ".join(path.name for path in removed[:5]) + (", ..." if len(removed) > 5 else ""),
        )
    return removed


def _is_ours(entry: "os.DirEntry[str]") -> bool:
    if not entry.name.startswith(_PREFIX):
        return False
    with contextlib.suppress(OSError):  # it is gone
        status = entry.stat(follow_symlinks=False)
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return False
