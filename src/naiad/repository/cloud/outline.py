"""The outline of a repository in an object store: its directories, names and sizes, and the configurations alone."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from naiad.repository.cloud.objects import ObjectStore, StoredObject
from naiad.repository.cloud.store import split_directories

_TEXTS = (".pbtxt", ".pbtext", ".prototxt", ".textproto", ".pbtx")
_MAX_TEXT_BYTES = 4 << 20
_THREADS = 16


def write_outline(objects: ObjectStore, directory: Path) -> None:
    """Write what `naiad check` looks at to an empty directory; other files are holes of the right size.

    Raises InferError when the store cannot be read and for names that cannot be paths.
    """
    models: dict[str, list[StoredObject]] = {}
    for item in objects.list_objects():
        name, slash, _ = item.key.partition("/")
        if slash and not name.startswith("."):
            models.setdefault(name, []).append(item)
        elif not slash and item.size_bytes:
            models.setdefault("", []).append(StoredObject(f"/{item.key}", item.size_bytes, item.identity))
    texts: list[tuple[StoredObject, Path]] = []
    for name, items in models.items():
        texts += _write_model(directory / name, *split_directories(name, items))
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="outline") as pool:
        list(pool.map(lambda each: objects.fetch(*each), texts))


def _write_model(
    directory: Path, directories: Sequence[str], files: Sequence[StoredObject]
) -> list[tuple[StoredObject, Path]]:
    """Write all but the configurations; return those with their places."""
    for name in ("", *directories):
        (directory / name).mkdir(parents=True, exist_ok=True)
    texts: list[tuple[StoredObject, Path]] = []
    for item in files:
        path = directory / item.key.partition("/")[2]
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name.endswith(_TEXTS) and item.size_bytes <= _MAX_TEXT_BYTES:
            texts.append((StoredObject(item.key.lstrip("/"), item.size_bytes, item.identity), path))
        else:
            path.touch()
            os.truncate(path, item.size_bytes)
    return texts
