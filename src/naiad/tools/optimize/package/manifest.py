"""The manifest of a package: size and SHA-256 of every file."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from naiad.core.errors import InferError
from naiad.files.digest import file_sha256
from naiad.repository.stores.store import check_model_name

MANIFEST = "manifest.json"
_FORMAT = 1


class NoPackageError(ValueError):
    """The path is not a package."""


class DamagedPackageError(ValueError):
    """The content is not what the manifest says; the package is refused."""

    def __init__(self, path: Path, problems: Sequence[str]) -> None:
        super().__init__(f"{path} is refused: {'; '.join(problems)}")
        self.problems = problems


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file as it was packaged."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a package contains."""

    model: str
    candidate: str
    created: str
    """ISO 8601, UTC."""
    files: Mapping[str, FileEntry]
    """By path in the package."""

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the manifest's own content, which stands for the whole package."""
        return hashlib.sha256(json.dumps(self._content(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        """Return the text of the file."""
        return json.dumps({**self._content(), "digest": self.digest}, indent=1, sort_keys=True)

    def _content(self) -> dict[str, Any]:
        files = {name: {"bytes": each.size_bytes, "sha256": each.sha256} for name, each in self.files.items()}
        return {
            "format": _FORMAT,
            "model": self.model,
            "candidate": self.candidate,
            "created": self.created,
            "files": files,
        }


def manifest_of(folder: Path, model: str, candidate: str, created: str) -> Manifest:
    """Return the manifest of the files below a folder."""
    files = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            files[file.relative_to(folder).as_posix()] = FileEntry(file.stat().st_size, file_sha256(file))
    return Manifest(model, candidate, created, files)


def read_manifest(text: bytes, path: Path) -> Manifest:
    """Return the manifest in a file. Raises DamagedPackageError; `path` is the package's."""
    try:
        values = json.loads(text)
        if values["format"] != _FORMAT:
            raise DamagedPackageError(path, [f"{MANIFEST} has format {values['format']}, expected {_FORMAT}"])
        files = {name: FileEntry(int(each["bytes"]), str(each["sha256"])) for name, each in values["files"].items()}
        manifest = Manifest(str(values["model"]), str(values["candidate"]), str(values["created"]), files)
        has_changed = values["digest"] != manifest.digest
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, DamagedPackageError):
            raise
        raise DamagedPackageError(path, [f"{MANIFEST} is not readable: {error!r}"]) from error
    if has_changed:
        raise DamagedPackageError(path, [f"{MANIFEST} has changed"])
    unsafe = [name for name in files if not is_inside(name)]
    if unsafe:
        raise DamagedPackageError(path, [f"{name!r} leads out of the package" for name in unsafe])
    try:
        check_model_name(manifest.model)
    except InferError as error:
        raise DamagedPackageError(path, [error.message]) from error
    return manifest


def is_inside(name: str) -> bool:
    """Return whether a path in a package stays below its folder on every system."""
    path = PurePosixPath(name)
    is_plain = not any(character in name for character in "\\:\0")
    return is_plain and bool(path.parts) and not path.is_absolute() and ".." not in path.parts and str(path) == name
