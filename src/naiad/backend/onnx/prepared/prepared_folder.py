"""The folder of prepared forms: bounded in bytes, verified before use, shared by processes.

    <key>/model.onnx, weights.bin   a form; the key names what it was made from, with what, and for which processor
    <key>/manifest.json             the digests of its files and notes about it; written last
    incoming/<random>/              a form that is being written or removed

A form is never changed: it comes and goes by a rename, so a process that is killed leaves no part of one, and what a
session has mapped stays there when the form is removed.
"""

import json
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naiad.backend.onnx.prepared.known_digests import KnownDigests
from naiad.files.held import HeldDirectory, alone, removing
from naiad.files.private_folder import make_private_folder

_log = logging.getLogger(__name__)

_INCOMING = "incoming"
_LOCK = "lock"
_MANIFEST = "manifest.json"
_MOST_MANIFEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PreparedForm:
    """A form whose files are as they were written."""

    folder: Path
    notes: Any
    """What was noted about it."""


class PreparedFolder:
    """The prepared forms of all models of this user. May be used by several threads and processes."""

    def __init__(self, root: Path, most_bytes: int, digests: KnownDigests) -> None:
        """`most_bytes`: all forms together; the least recently used ones are removed."""
        self._root = root
        self._most_bytes = most_bytes
        self._digests = digests

    def find(self, key: str) -> PreparedForm | None:
        """Return a form if it is there and whole; what is damaged is removed."""
        folder = self._root / key
        try:
            make_private_folder(self._root)
        except OSError:
            return None  # `writing` reports it; what belongs to another user is not removed
        try:
            manifest = _read_manifest(folder)
            if manifest is None:
                return None
            notes = manifest["notes"]
            if all(self._digests.digest(folder / name) == digest for name, digest in manifest["files"].items()):
                with suppress(OSError):  # a folder of root, or of an image, may be one to read only
                    os.utime(folder / _MANIFEST)  # its last use
                return PreparedForm(folder, notes)
            _log.warning("the prepared model %s is damaged and is removed", folder)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            _log.warning("the prepared model %s cannot be used: %s", folder, error)
        self.remove(key)
        return None

    @contextmanager
    def writing(self) -> Iterator[Path]:
        """Yield a new folder to write a form into; without `keep` it is removed afterwards. Raises OSError."""
        make_private_folder(self._root)
        incoming = self._root / _INCOMING
        incoming.mkdir(mode=0o700, exist_ok=True)
        held = HeldDirectory(Path(tempfile.mkdtemp(dir=incoming)))
        try:
            yield held.path
        finally:
            shutil.rmtree(held.path, ignore_errors=True)
            held.release()

    def keep(self, key: str, written: Path, notes: Any) -> bool:
        """Put a form in place and remove old ones; False if it alone is larger than all may be. Raises OSError."""
        size_bytes = _size_bytes(written)
        if size_bytes > self._most_bytes:
            return False
        files = {file.name: self._digests.digest(file) for file in sorted(written.iterdir())}
        content = json.dumps({"files": files, "notes": notes})
        (written / _MANIFEST).write_text(content, encoding="utf-8")
        target = self._root / key
        with alone(self._root / _LOCK):
            self._sweep_incoming()
            self._make_room(size_bytes)
            if not (target / _MANIFEST).is_file():  # otherwise another process has put it there meanwhile
                self._discard(target)
                written.rename(target)
        return True

    def remove(self, key: str) -> None:
        """Remove a form."""
        self._discard(self._root / key)

    def _discard(self, path: Path) -> None:
        """Remove what may be a form, at once for other processes. What cannot be removed stays."""
        gone = self._root / _INCOMING / f"removed-{secrets.token_hex(8)}"
        with suppress(OSError):
            gone.parent.mkdir(mode=0o700, exist_ok=True)
            path.rename(gone)
            _erase(gone)

    def _make_room(self, size_bytes: int) -> None:
        """Remove the forms that were not used for the longest time; the lock is held."""
        forms: list[tuple[int, int, Path]] = []
        for folder in self._root.iterdir():
            with suppress(OSError):  # removed meanwhile, or no form
                forms.append(((folder / _MANIFEST).stat().st_mtime_ns, _size_bytes(folder), folder))
        used_bytes = sum(each_bytes for _, each_bytes, _ in forms)
        for _, each_bytes, folder in sorted(forms):
            if used_bytes + size_bytes <= self._most_bytes:
                return
            _log.info("removing the prepared model %s, which was not used lately", folder)
            self._discard(folder)
            used_bytes -= each_bytes

    def _sweep_incoming(self) -> None:
        """Remove what processes that were killed have left; the lock is held."""
        for path in (self._root / _INCOMING).iterdir():
            with suppress(OSError):  # also what is no folder, or cannot be removed
                if not path.is_dir():
                    path.unlink()
                    continue
                with removing(path) as is_free:
                    if is_free:
                        _erase(path)


def _read_manifest(folder: Path) -> Mapping[str, Any] | None:
    """Return the manifest of a form, None if there is no form. Raises OSError, ValueError."""
    try:
        with (folder / _MANIFEST).open("rb") as file:
            content = file.read(_MOST_MANIFEST_BYTES)
    except FileNotFoundError:
        return None
    found = json.loads(content)
    if not isinstance(found, dict) or set(found["files"]) != {file.name for file in folder.iterdir()} - {_MANIFEST}:
        raise ValueError("its manifest names other files than there are")
    return found


def _erase(path: Path) -> None:
    """Remove a file, a link, or a folder as far as possible. Raises OSError for a file that cannot be removed."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _size_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
