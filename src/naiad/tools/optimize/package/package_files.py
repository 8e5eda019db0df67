"""The files of a package, in a folder or a zip archive: checked against the manifest, and copied."""

import hashlib
import lzma
import os
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from naiad.tools.optimize.package.manifest import (
    MANIFEST,
    DamagedPackageError,
    FileEntry,
    Manifest,
    NoPackageError,
    is_inside,
    read_manifest,
)

EVIDENCE = "evidence"
"""Folder of the evidence in a package."""
TOLERANCES = "tolerances.json"
ARCHIVE_SUFFIX = ".zip"
MAX_BYTES = 64 << 30
_MAX_FILES = 10_000
_MAX_MANIFEST_BYTES = 8 << 20
_BLOCK_BYTES = 1 << 20
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, lzma.LZMAError)
"""What a reader of archives raises for changed bytes: of a header, of compressed data, of the method."""


class _Files(Protocol):
    def sizes(self) -> Mapping[str, int]:
        """Return the sizes of all files by path. Raises DamagedPackageError for links and paths that lead out."""

    def open(self, name: str) -> BinaryIO:
        """Open a file."""


class Contents:
    """The files of one package."""

    def __init__(self, path: Path, files: _Files, max_bytes: int = MAX_BYTES) -> None:
        """Read the manifest and compare names and sizes. Raises DamagedPackageError."""
        self.path = path
        self._files = files
        sizes = dict(files.sizes())
        self.size_bytes = sum(sizes.values())
        if self.size_bytes > max_bytes or len(sizes) > _MAX_FILES:
            found = f"{len(sizes)} files with {self.size_bytes} bytes, the most is {_MAX_FILES} with {max_bytes}"
            raise DamagedPackageError(path, [f"it has {found}"])
        if sizes.pop(MANIFEST, _MAX_MANIFEST_BYTES) >= _MAX_MANIFEST_BYTES:
            raise DamagedPackageError(path, [f"{MANIFEST} is missing, or it has {_MAX_MANIFEST_BYTES} bytes or more"])
        try:
            with files.open(MANIFEST) as stream:
                self.manifest = read_manifest(stream.read(), path)
        except _UNREADABLE as error:
            raise DamagedPackageError(path, [f"{MANIFEST} has changed: {error}"]) from error
        problems = _problems(sizes, self.manifest)
        if problems:
            raise DamagedPackageError(path, problems)

    def check(self) -> None:
        """Compare every byte with the manifest. Raises DamagedPackageError that names all files that differ."""
        self._read(None)

    def copy(self, target: Path) -> None:
        """Write the files below a folder, and check them. Raises DamagedPackageError, OSError without enough room."""
        target.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(target).free
        if self.size_bytes > free_bytes:
            raise OSError(f"{target}: {self.path} needs {self.size_bytes} bytes, {free_bytes} are free")
        self._read(target)
        (target / MANIFEST).write_text(self.manifest.to_json(), encoding="utf-8")

    def _read(self, target: Path | None) -> None:
        changed = [name for name, entry in self.manifest.files.items() if self._sha256(name, target) != entry.sha256]
        if changed:
            raise DamagedPackageError(self.path, [f"{name} has changed" for name in changed])

    def _sha256(self, name: str, target: Path | None) -> str:
        sha = hashlib.sha256()
        file = os.devnull if target is None else target / name
        if target is not None:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._files.open(name) as stream, open(file, "wb") as copy:
                while block := stream.read(_BLOCK_BYTES):
                    sha.update(block)
                    copy.write(block)
        except _UNREADABLE:
            return ""
        return sha.hexdigest()


@contextmanager
def opened(path: Path, max_bytes: int = MAX_BYTES) -> Iterator[Contents]:
    """Open a package. Raises NoPackageError, DamagedPackageError."""
    is_archive = path.is_file() and (path.suffix == ARCHIVE_SUFFIX or zipfile.is_zipfile(path))
    if not is_archive and not (path / MANIFEST).exists() and not (path / EVIDENCE).exists():
        reason = f"it has no {MANIFEST}" if path.exists() else "no such file or folder"
        raise NoPackageError(f"{path} is no package of naiad optimize: {reason}")
    if not is_archive:
        yield Contents(path, _Folder(path), max_bytes)
        return
    try:
        archive = zipfile.ZipFile(path)
    except (*_UNREADABLE, ValueError) as error:
        raise DamagedPackageError(path, [f"it is not readable as a zip archive: {error}"]) from error
    with archive:
        yield Contents(path, _Archive(path, archive), max_bytes)


def is_package(path: Path) -> bool:
    """Return whether a path is a package, however damaged: a folder, or a zip archive with a manifest."""
    if path.is_dir():
        evidence = path / EVIDENCE
        return evidence.is_dir() and ((path / MANIFEST).exists() or (evidence / TOLERANCES).exists())
    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return MANIFEST in archive.namelist()
    except _UNREADABLE:
        return False


def write_archive(folder: Path, target: Path) -> None:
    """Write a folder as a zip archive."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder).as_posix())


class _Folder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def sizes(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        problems: list[str] = []
        waiting = [self._root]
        while waiting:
            with os.scandir(waiting.pop()) as children:
                for child in children:
                    name = Path(child.path).relative_to(self._root).as_posix()
                    if child.is_dir(follow_symlinks=False):
                        waiting.append(Path(child.path))
                    elif child.is_file(follow_symlinks=False):
                        found[name] = child.stat(follow_symlinks=False).st_size
                    else:
                        problems.append(f"{name} is a link or a special file")
        if problems:
            raise DamagedPackageError(self._root, problems)
        return found

    def open(self, name: str) -> BinaryIO:
        return (self._root / name).open("rb")


class _Archive:
    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._path = path
        self._archive = archive

    def sizes(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        problems: list[str] = []
        for info in self._archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if not is_inside(info.filename.removesuffix("/")):
                problems.append(f"{info.filename!r} leads out of the package")
            elif kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                problems.append(f"{info.filename} is a link or a special file")
            elif info.filename in found:
                problems.append(f"{info.filename} is there twice")
            elif info.flag_bits & 1:
                problems.append(f"{info.filename} is encrypted")
            elif not info.is_dir():
                found[info.filename] = info.file_size
        if problems:
            raise DamagedPackageError(self._path, problems)
        return found

    def open(self, name: str) -> BinaryIO:
        try:
            return self._archive.open(name)  # type: ignore[return-value] # a reader of bytes
        except (OSError, ValueError, RuntimeError, struct.error) as error:  # a wrong place or flag in a header
            raise zipfile.BadZipFile(str(error)) from error


def _problems(sizes: Mapping[str, int], manifest: Manifest) -> list[str]:
    expected: Mapping[str, FileEntry] = manifest.files
    problems = [f"{name} is missing" for name in expected if name not in sizes]
    problems += [f"{name} was added" for name in sorted(sizes) if name not in expected]
    return problems + [
        f"{name} has changed: it has {sizes[name]} bytes, expected {entry.size_bytes}"
        for name, entry in expected.items()
        if sizes.get(name, entry.size_bytes) != entry.size_bytes
    ]
