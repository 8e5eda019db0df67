"""Notes: small files of the server itself that lie beside the models of a repository, one for each model.

Theory of operation. Servers of one repository share its notes. A note is replaced as a whole and atomically: a reader
finds the old or the new content, also when a writer is killed. `exchange` reads, has the new content made, writes. In
a directory the writers take turns: each locks the file that it is about to rename; one that waits for a file that was
renamed meanwhile begins again, and the lock of a killed writer ends with it. Where locks do not exist, and in object
stores without conditional writes, a note may be lost to one that was written at the same time. So what notes contain
must be mergeable, and its owner looks again later.

A file in the repository's own directory is ignored by every server, Triton included, and is no file of a model.
"""

import abc
import contextlib
import errno
import hashlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path

from naiad.files.held import is_still, try_lock
from naiad.files.replacement import synchronize_folder

_log = logging.getLogger(__name__)

_MAX_NAME_BYTES = 200
_SUFFIX = ".rollout.json"
_NEW_SUFFIX = ".new"
_BAD_SUFFIX = ".unreadable"
_NAME = re.compile(r"\.(?P<model>.+)" + re.escape(_SUFFIX))
MAX_NOTE_BYTES = 1 << 20
"""Of a larger one only so much is read: it is not a note of this server."""

_LOCK_WAIT_S = 2.0
_LOCK_PAUSE_S = 0.005

Change = Callable[[bytes | None], bytes | None]
"""From the present content, None without a note, to the new one; None to leave it."""


def note_name(model: str) -> str:
    """Return the file name of a model's note; a long name is shortened to one that is still its own."""
    if len(model.encode()) > _MAX_NAME_BYTES:
        model = f"{model[:32]}-{hashlib.blake2b(model.encode(), digest_size=16).hexdigest()}"
    return f".{model}{_SUFFIX}"


def is_note(file_name: str) -> bool:
    """Return whether a file name is that of a note."""
    return _NAME.fullmatch(file_name) is not None


def unreadable_name(file_name: str) -> str:
    """Return the name that a note gets which cannot be used."""
    return file_name + _BAD_SUFFIX


class Notes(abc.ABC):
    """The notes of one repository. All methods block, and raise OSError or InferError."""

    look_s: float
    """Interval at which looking for changes costs little."""
    place: str
    """Path or URL of all of them."""

    @abc.abstractmethod
    def where(self, model: str) -> str:
        """Return the path or URL of a model's note."""

    @abc.abstractmethod
    def file_name(self, model: str) -> str:
        """Return the name of a model's note in `look`."""

    @abc.abstractmethod
    def read(self, model: str) -> bytes | None:
        """Return the content of a model's note; None without one."""

    @abc.abstractmethod
    def exchange(self, model: str, change: Change) -> None:
        """Replace a model's note by what `change` makes of it."""

    @abc.abstractmethod
    def set_aside(self, model: str) -> str:
        """Give a note that cannot be used another name, which is returned, so that nothing is lost."""

    @abc.abstractmethod
    def look(self) -> Mapping[str, Hashable]:
        """Return what changes whenever a note is written, by `file_name`."""


class DirectoryNotes(Notes):
    """Notes in a directory."""

    look_s = 1.0

    def __init__(self, directory: Path, prefix: str = "", *, is_made: bool = False) -> None:
        """`prefix` of the models' names distinguishes repositories that share a directory. `is_made`: on demand."""
        self._directory = directory
        self._opening = os.path.join(directory, "")
        self._prefix = prefix
        self._is_made = is_made
        self.place = str(directory)

    def _path(self, model: str) -> Path:
        return Path(self.where(model))

    def where(self, model: str) -> str:
        """Return the path of a model's note."""
        # Not with pathlib, which takes longer than to look whether there is a note.
        return self._opening + self.file_name(model)

    def read(self, model: str) -> bytes | None:
        """Return the content of a model's note; None without one. Raises OSError."""
        try:
            with open(self.where(model), "rb", opener=_open_at_once) as file:
                return file.read(MAX_NOTE_BYTES)
        except FileNotFoundError:
            return None

    def exchange(self, model: str, change: Change) -> None:
        """Replace a model's note by what `change` makes of it. Raises OSError."""
        if self._is_made:
            self._directory.mkdir(parents=True, exist_ok=True)
        path = self._path(model)
        with _locked(path.with_name(path.name + _NEW_SUFFIX)) as (descriptor, fresh):
            content = change(self.read(model))
            if content is None:
                fresh.unlink()
                return
            os.truncate(descriptor, 0)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            os.fsync(descriptor)
            fresh.rename(path)
        synchronize_folder(self._directory)

    def set_aside(self, model: str) -> str:
        """Rename a note that cannot be used. Raises OSError."""
        path = self._path(model)
        aside = path.with_name(unreadable_name(path.name))
        with contextlib.suppress(FileNotFoundError):  # another server has done so
            path.rename(aside)
        return aside.name

    def remove(self, model: str) -> None:
        """Remove a model's note, if it is there and may be removed."""
        try:
            self._path(model).unlink(missing_ok=True)
        except OSError as error:
            _log.debug("%s is not removed: %s", self._path(model), error)

    def look(self) -> Mapping[str, Hashable]:
        """Return inode, size and time of each note. Raises OSError."""
        found: dict[str, Hashable] = {}
        try:
            with os.scandir(self._directory) as children:
                for child in children:
                    if child.name[0] == "." and is_note(child.name):
                        with contextlib.suppress(FileNotFoundError):
                            status = child.stat()
                            found[child.name] = (status.st_ino, status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            return {}
        return found

    def file_name(self, model: str) -> str:
        """Return the name of a model's note in `look`."""
        return note_name(self._prefix + model)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting for the writer of a pipe that lies in its place."""
    return os.open(path, flags | os.O_NONBLOCK)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[tuple[int, Path]]:
    """Give the file that will be renamed, locked if that is possible; it is removed if the body fails."""
    deadline_s = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.ELOOP):
                break  # left by a server of another user, or a link
            raise
        try:
            if _lock(descriptor):
                if is_still(path, descriptor):
                    with _removed_on_failure(path):
                        yield descriptor, path
                    return
                continue
        finally:
            os.close(descriptor)
        if time.monotonic() > deadline_s:
            break
        time.sleep(_LOCK_PAUSE_S)
    # A file system without locks, a writer that has been stopped, or a file that is not for this server: one's own
    # is renamed just as well.
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}-", dir=path.parent)
    try:
        os.fchmod(descriptor, 0o644)
        with _removed_on_failure(Path(name)):
            yield descriptor, Path(name)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        return try_lock(descriptor)
    except OSError:
        return False  # a file system without locks


@contextlib.contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise
