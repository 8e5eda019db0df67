"""Samples on disk: a folder of npz files that is read sample by sample. It needs numpy alone, as converters do."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Arrays: TypeAlias = Mapping[str, np.ndarray[Any, np.dtype[Any]]]

CHUNK_BYTES = 32 << 20
"""A chunk is written when it has grown to this size; memory holds one chunk at a time."""
_INDEX = "index.json"


class ChunkedSamples:
    """The samples of a folder that `write_chunks` has finished."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._counts: list[int] = json.loads((folder / _INDEX).read_text(encoding="utf-8"))

    def __len__(self) -> int:
        return sum(self._counts)

    def __iter__(self) -> Iterator[Arrays]:
        for number, count in enumerate(self._counts):
            with np.load(_chunk(self.folder, number), allow_pickle=False) as chunk:
                names = sorted({key.split("/", 1)[1] for key in chunk.files})
                for position in range(count):
                    yield {name: chunk[f"{position}/{name}"] for name in names}


def write_chunks(samples: Iterable[Arrays], folder: Path, limit: int | None = None) -> ChunkedSamples:
    """Write at most `limit` samples and return them; a folder that is already complete is not written again.

    The index is written last, so that a folder whose writing was interrupted is not taken for complete.
    Strings (datatype `object`) are stored as arrays of bytes of a fixed length.
    """
    if (folder / _INDEX).exists():
        return ChunkedSamples(folder)
    folder.mkdir(parents=True, exist_ok=True)
    counts: list[int] = []
    chunk: dict[str, Any] = {}
    count = size = 0
    for total, sample in enumerate(samples):
        if limit is not None and total >= limit:
            break
        for name, array in sample.items():
            stored = array.astype(np.bytes_) if array.dtype == object else array
            chunk[f"{count}/{name}"] = stored
            size += stored.nbytes
        count += 1
        if size >= CHUNK_BYTES:
            np.savez(_chunk(folder, len(counts)), **chunk)
            counts.append(count)
            chunk, count, size = {}, 0, 0
    if count:
        np.savez(_chunk(folder, len(counts)), **chunk)
        counts.append(count)
    unfinished = folder / f"{_INDEX}.{os.getpid()}"
    unfinished.write_text(json.dumps(counts), encoding="utf-8")
    unfinished.replace(folder / _INDEX)
    return ChunkedSamples(folder)


def _chunk(folder: Path, number: int) -> Path:
    return folder / f"{number:06}.npz"
