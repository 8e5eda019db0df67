"""Fingerprints of models on disk: whether a load would find changes."""

import hashlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from naiad.config.rollout.rollout_declaration import FILE_NAME as ROLLOUT_FILE
from naiad.files.below import COMPILED_DIR
from naiad.repository.stores.store import CONFIG_FILE, ModelEntry

_CHUNK_BYTES = 1 << 20


def fingerprint(entry: ModelEntry) -> bytes:
    """Return a value that is equal while no file of the model is added, removed, replaced or written to.

    It covers names, sizes and times, not contents, and no compiled Python. Symbolic links, which deployments switch,
    are followed.
    """
    if entry.fingerprint:
        return entry.fingerprint
    return _digest(_files(entry))


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of a model's files, part by part. Equal to another while no file is written to."""

    config: bytes
    """The configuration and the declaration of a rollout."""
    versions: Mapping[int, bytes]
    rest: bytes
    """Files shared by all versions: labels, environments, data for the warm-up."""

    def unchanged_versions(self, before: "FileState") -> set[int]:
        """Return the versions with the files and shared files of `before`, for any configuration."""
        if self.rest != before.rest:
            return set()
        return {number for number, digest in self.versions.items() if before.versions.get(number) == digest}


def file_state(entry: ModelEntry) -> FileState:
    """Return the state of a model's files as for `fingerprint`, each version and the configuration separately."""
    if entry.fingerprint:
        # A stored state must not keep objects of the previous one alive.
        return FileState(b"", dict.fromkeys(entry.version_dirs, entry.fingerprint), entry.fingerprint)
    if entry.preset.default_model_filename:
        return FileState(b"", {number: fingerprint(entry) for number in entry.version_dirs}, b"")
    # Each version separately: two of them may be links to the same files.
    versions = {number: [str(path), *_walk(path, set())] for number, path in entry.version_dirs.items()}
    config = {str(entry.model_dir / name) for name in (CONFIG_FILE, ROLLOUT_FILE, "configs")}
    elsewhere = {*map(str, entry.version_dirs.values()), *config}
    return FileState(
        _digest([*config, *_walk(entry.model_dir / "configs", set())]),
        {number: _digest(paths) for number, paths in versions.items()},
        _digest(_walk(entry.model_dir, set(), elsewhere)),
    )


def _digest(paths: Iterable[str]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(paths):
        try:
            status = os.stat(path)
        except OSError:
            continue  # a dangling link, or deleted meanwhile: the next fingerprint differs
        facts = f"{path}\0{status.st_ino}\0"
        if not stat.S_ISDIR(status.st_mode):
            # The times and the size of a directory follow its entries, also those that are skipped.
            facts += f"{status.st_size}\0{status.st_mtime_ns}\0{status.st_ctime_ns}\0"
        digest.update(facts.encode(errors="replace"))
    return digest.digest()


def content_digest(entry: ModelEntry) -> bytes:
    """Return a value that is equal while the model's files have the same names and contents.

    Reads every file, unless the store knows the value. Raises OSError for an unreadable file.
    """
    if entry.fingerprint:
        return entry.fingerprint
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(_files(entry)):
        if not os.path.isfile(path):
            digest.update(f"{path}\0".encode(errors="replace"))
            continue
        digest.update(f"{path}\0{os.path.getsize(path)}\0".encode(errors="replace"))
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.digest()


def _files(entry: ModelEntry) -> Iterator[str]:
    if entry.preset.default_model_filename:
        # A bare file: other files in its directory are not part of the model.
        yield str(entry.model_dir / entry.preset.default_model_filename)
    else:
        yield from _walk(entry.model_dir, set())


def _walk(directory: Path, seen: set[tuple[int, int]], skipped: Collection[str] = ()) -> Iterator[str]:
    """Yield files and directories below one, except `skipped` and compiled Python; `seen` ends cycles of links."""
    try:
        status = directory.stat()
        children = list(os.scandir(directory))
    except OSError:
        return
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    for child in children:
        if child.path in skipped or child.name == COMPILED_DIR:
            continue
        yield child.path
        if os.path.isdir(child):
            yield from _walk(Path(child.path), seen)
