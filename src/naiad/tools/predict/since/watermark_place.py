"""Where a watermark is kept: a file, or an object of a store."""

from pathlib import Path
from typing import IO, Protocol

from naiad.core.errors import ErrorCode, InferError, invalid_argument, unavailable
from naiad.files.held import try_lock
from naiad.files.replacement import replace_file
from naiad.repository.cloud.objects.stored_object import ObjectChangedError, Version
from naiad.tools.predict.stores.store_place import StorePlace, is_store_url, split_url

MAX_BYTES = 256 << 20
"""About two million files."""
STATE = "--state"


class WatermarkTakenError(InferError):
    """Another process has replaced the record."""

    def __init__(self, where: str) -> None:
        super().__init__(
            ErrorCode.UNAVAILABLE,
            f"another process predicts with the state {where}, and has these files now; this one ends",
        )


class WatermarkPlace(Protocol):
    """Where one watermark is. Methods raise InferError and OSError."""

    def read(self) -> bytes | None:
        """Return what is there; None without it."""

    def write(self, content: bytes) -> None:
        """Replace what was read or written last, at once.

        Raises WatermarkTakenError if another process has done so.
        """

    def close(self) -> None:
        """Let other processes use it."""


def open_place(where: str, patience_s: float) -> WatermarkPlace:
    """Return the place at a path or URL. Raises InferError and OSError."""
    return StoredWatermark(where, patience_s) if is_store_url(where) else FileWatermark(Path(where))


class FileWatermark:
    """A file, which one process has at a time: a lock beside it ends with the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: IO[bytes] = path.with_name(f".{path.name}.lock").open("ab")
        if not try_lock(self._lock.fileno()):
            self._lock.close()
            raise unavailable(f"another process predicts with the state {path}; wait for its end")

    def read(self) -> bytes | None:
        """Return the content of the file."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        _check_size(len(content), str(self._path))
        return content

    def write(self, content: bytes) -> None:
        """Replace the file."""
        _check_size(len(content), str(self._path))
        replace_file(self._path, content)

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()


class StoredWatermark:
    """An object, replaced on the condition that it is as it was read."""

    def __init__(self, url: str, patience_s: float) -> None:
        above, self._name = split_url(url, STATE)
        self._objects = StorePlace(above, patience_s, STATE).objects
        self._url = url
        self._version: Version | None = None

    def read(self) -> bytes | None:
        """Return the content of the object."""
        found = self._objects.read(self._name, MAX_BYTES + 1)
        if found is None:
            self._version = None
            return None
        _check_size(len(found[0]), self._url)
        self._version = found[1]
        return found[0]

    def write(self, content: bytes) -> None:
        """Replace the object."""
        _check_size(len(content), self._url)
        try:
            self._version = self._objects.write(self._name, content, self._version)
        except ObjectChangedError:
            raise WatermarkTakenError(self._url) from None

    def close(self) -> None:
        """Nothing is open."""


def _check_size(size: int, where: str) -> None:
    if size > MAX_BYTES:
        raise invalid_argument(
            f"state {where} has more than {MAX_BYTES >> 20} MiB, about two million files; move files that are "
            "predicted away, and begin with another --state"
        )
