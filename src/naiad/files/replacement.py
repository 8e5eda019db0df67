"""Replacement of a file at once: a reader finds the old content or the new one, also after a kill."""

import contextlib
import os
import secrets
from pathlib import Path


def replace_file(path: Path, content: bytes, *, is_durable: bool = True) -> None:
    """Write a file beside the path and rename it. With `is_durable` it is on the disk before this returns.

    Raises OSError with the name of the file, which that of a full disk lacks, and then leaves nothing behind.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise
    if is_durable:
        synchronize_folder(path.parent)


def synchronize_files(folder: Path) -> None:
    """Wait until the files below a folder are on the disk. Raises OSError."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())


def synchronize_folder(folder: Path) -> None:
    """Make the creation, renames and removals of files in a folder permanent, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
