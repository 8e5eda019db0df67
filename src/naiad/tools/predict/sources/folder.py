"""Files that are rows themselves, such as pictures: the bytes of each are the value of the only input."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.errors import invalid_argument
from naiad.tools.predict.job_signature import RowSignature
from naiad.tools.predict.prediction_job import PredictJob
from naiad.tools.predict.rows.chunk import ABSENT, FileRows
from naiad.tools.predict.rows.outage import is_outage_of_file
from naiad.tools.predict.sources.row_source import single_input
from naiad.tools.predict.stores.object_path import FilePath, FolderPath

MAX_FILE_BYTES = 256 << 20
"""A larger file is a failed row."""
FILE_KEY = "file"
"""Column of the output with the name of the file."""


class FolderSource:
    """Files with a row each, in the given order."""

    def __init__(self, path: FolderPath, files: Sequence[FilePath], job: PredictJob, signature: RowSignature) -> None:
        """Raises InferError if the model has several inputs, or one of numbers, or for keys."""
        self.note = ""
        self.path = path
        self._files = files
        tensor = single_input(signature, path, "a folder")
        is_picture = signature.pictures is not None and signature.pictures.name == tensor.name
        self._is_bytes = is_picture or tensor.datatype is DataType.BYTES
        if not self._is_bytes and (tensor.datatype is not DataType.UINT8 or len(tensor.dims) != 1):
            raise invalid_argument(
                f"{path}: files as rows need an input of BYTES, or of UINT8 with one dimension; input "
                f"'{tensor.name}' of model '{signature.model}' is {tensor.datatype.value} {list(tensor.dims)}; put "
                "the values into an .npz file, or, for pictures, set its parameter pictures"
            )
        for key in job.keys:
            if key != FILE_KEY:
                raise invalid_argument(f"{path}: files as rows have no column '{key}', only '{FILE_KEY}'")
        self._name = tensor.name
        self.total_bytes = sum(map(_size, files))
        self._row = self._done = 0

    @property
    def done_bytes(self) -> int:
        """How much of the files is read."""
        return self._done

    @property
    def position(self) -> int:
        """Number of the next row: it is found without reading those before."""
        return self._row

    def seek(self, position: int, row: int) -> None:
        """Go to a row of a source from which nothing is read yet."""
        self.skip(row)

    def skip(self, count: int) -> int:
        """Pass over files."""
        count = min(count, len(self._files) - self._row)
        self._done += sum(map(_size, self._files[self._row : self._row + count]))
        self._row += count
        return count

    def read(self, max_rows: int, max_bytes: int) -> FileRows | None:
        """Return the next files; None at the end. A file that cannot be read is a failed row.

        Raises OSError and InferError for one that cannot be read now.
        """
        first, start = self._row, self._done
        values: list[Any] = []
        failures: dict[int, str] = {}
        while self._row < len(self._files) and len(values) < max_rows and self._done - start < max_bytes:
            file = self._files[self._row]
            self._row += 1
            try:
                values.append(self._content(file))
            except (OSError, ValueError) as error:
                if is_outage_of_file(error):
                    raise
                failures[len(values)] = f"{file}: {getattr(error, 'strerror', None) or error}"
                values.append(ABSENT)
        if not values:
            return None
        names = [file.name for file in self._files[first : self._row]]
        return FileRows(str(self.path), first, len(values), {self._name: values}, {FILE_KEY: names}, failures, True)

    def close(self) -> None:
        """No file stays open."""

    def _content(self, file: FilePath) -> Any:
        size = file.stat().st_size
        self._done += size
        if size > MAX_FILE_BYTES:
            raise ValueError(f"the file has {size >> 20} MiB; at most {MAX_FILE_BYTES >> 20} MiB are read")
        content = file.read_bytes()
        return content if self._is_bytes else np.frombuffer(content, np.uint8).tolist()


def _size(file: FilePath) -> int:
    """Return the size of a file, 0 of one that is gone: it will be a failed row."""
    try:
        return file.stat().st_size
    except OSError as error:
        if is_outage_of_file(error):
            raise
        return 0
