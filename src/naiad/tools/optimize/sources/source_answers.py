"""The source's answers on disk: many candidates are compared with the same ones."""

import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from naiad.core.datatype import BY_NAME, DataType, conversion_hint, from_numpy
from naiad.core.tensor import Array, TensorSpec, to_array, to_buffer
from naiad.tools.optimize.correctness.runners.model_runner import Arrays, Runner, RunnerError
from naiad.tools.optimize.samples.sample_reader import digest

MAX_BYTES = 4 << 30
"""Size of the file; answers beyond it are computed each time."""
_FILE = "answers"
_LENGTH = struct.Struct("<I")


class CachedAnswers(Runner):
    """A runner that asks the source once for each request and keeps the answers in a file.

    The file is a sequence of records: the length of a JSON text, the text with the digest of the request and the
    outputs, then the data of the outputs. A record that was cut off by the end of a process is removed when the file
    is opened. Memory holds the digests alone.
    """

    def __init__(self, open_runner: Callable[[], Runner], folder: Path, max_bytes: int = MAX_BYTES) -> None:
        """Use the answers in `folder`. `open_runner` is called for the first request that has none."""
        self._open_runner = open_runner
        self._runner: Runner | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = (folder / _FILE).open("a+b", buffering=0)
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._places: dict[str, int] = {}
        """Digest of a request to the start of its record."""
        for key, start, end in _records(self._file):
            self._places[key] = start
            self._size_bytes = end
        self._file.truncate(self._size_bytes)

    def infer(self, inputs: Arrays) -> Arrays:
        """Return the answer to a request. Raises RunnerError if the source fails."""
        key = digest([inputs])
        if key in self._places:
            return self._read(self._places[key])
        answer = self._source().infer(inputs)
        self._write(key, answer)
        return answer

    def close(self) -> None:
        """Close the file and the source."""
        self._file.close()
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _source(self) -> Runner:
        if self._runner is None:
            self._runner = self._open_runner()
        return self._runner

    def _write(self, key: str, answer: Arrays) -> None:
        parts = [(name, _datatype(name, array), array.shape, to_buffer(array)) for name, array in answer.items()]
        rows = [[name, datatype.value, shape, len(data)] for name, datatype, shape, data in parts]
        text = json.dumps({"key": key, "outputs": rows}).encode()
        record = b"".join([_LENGTH.pack(len(text)), text, *(data for *_, data in parts)])
        if self._size_bytes + len(record) > self._max_bytes:
            return
        # One write to a file that is opened for appending: another process may append, too.
        self._file.write(record)
        end = self._file.tell()
        self._places[key] = end - len(record)
        self._size_bytes = end

    def _read(self, start: int) -> Arrays:
        self._file.seek(start)
        rows = _header(self._file)["outputs"]
        return {
            name: to_array(TensorSpec(name, BY_NAME[datatype], tuple(shape)), self._file.read(size)).copy()
            for name, datatype, shape, size in rows
        }


def _records(file: BinaryIO) -> Iterator[tuple[str, int, int]]:
    """Yield the digest, the start and the end of each record that is complete."""
    size, start = file.seek(0, os.SEEK_END), 0
    while start < size:
        file.seek(start)
        try:
            header = _header(file)
            end = file.tell() + sum(length for *_, length in header["outputs"])
        except (ValueError, struct.error):
            return
        if end > size:
            return
        yield header["key"], start, end
        start = end


def _header(file: BinaryIO) -> Any:
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
    return json.loads(file.read(length))


def _datatype(name: str, array: Array) -> DataType:
    found = from_numpy(array.dtype)
    if found is None:
        hint = conversion_hint(array.dtype)
        raise RunnerError(f"output '{name}' has dtype {array.dtype}, which no tensor of a server has: {hint}")
    return found
