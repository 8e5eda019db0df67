"""Digests of files and folders: whether what a result was made from is still the same.

There are two of folders, because both are in files that users have: `content_digest` names conversions in a
workspace, `add_files` is in the checkpoints of searches. Compiled Python does not count.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from naiad.files.below import files_below

_CHUNK_BYTES = 1 << 20


class Digest(Protocol):
    """A hash that grows."""

    def update(self, data: bytes, /) -> None:
        """Add bytes."""


def file_sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file's content, as `sha256sum` prints it. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def content_digest(path: Path, beside: Sequence[Path] = ()) -> str:
    """Return a digest of a folder, or of a file and those `beside` it that belong to it: names and contents."""
    sha = hashlib.sha256()
    folder = path if path.is_dir() else path.parent
    for file in files_below(path) if path.is_dir() else [path, *beside]:
        sha.update(f"{file.relative_to(folder)} {file.stat().st_size};".encode())
        sha.update(bytes.fromhex(file_sha256(file)))
    return sha.hexdigest()


def add_files(digest: Digest, root: Path) -> None:
    """Add the files of a folder, or a file, to a digest: names, sizes and contents. Raises OSError."""
    for path in files_below(root):
        name = str(path.relative_to(root))
        digest.update(f"{len(name)}:{name}:{path.stat().st_size}:".encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
