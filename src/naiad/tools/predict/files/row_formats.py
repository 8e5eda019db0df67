"""The formats of files with rows: what reads each, what writes it, and how to look at it."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from naiad.core.errors import invalid_argument
from naiad.tools.predict.job_signature import RowSignature
from naiad.tools.predict.prediction_job import PredictJob
from naiad.tools.predict.sinks.csv_files import CsvSink
from naiad.tools.predict.sinks.json_lines import JsonLinesSink
from naiad.tools.predict.sinks.npz import NpzSink
from naiad.tools.predict.sinks.parquet import ParquetSink
from naiad.tools.predict.sinks.sink import Layout, Sink
from naiad.tools.predict.sources.csv_files import CsvSource
from naiad.tools.predict.sources.json_lines import JsonLinesSource
from naiad.tools.predict.sources.numpy_files import NumpySource
from naiad.tools.predict.sources.parquet import ParquetSource
from naiad.tools.predict.sources.row_source import RowSource
from naiad.tools.predict.sources.steady_source import CountedSource, SteadySource
from naiad.tools.predict.stores.object_path import FilePath

OpenSource: TypeAlias = Callable[[FilePath, PredictJob, RowSignature], RowSource]
OpenSink: TypeAlias = Callable[[Path, Mapping[str, int], Layout], Sink]


@dataclass(frozen=True, slots=True)
class RowFormat:
    """One format, which can be read, written, or both."""

    source: OpenSource | None = None
    sink: OpenSink | None = None
    look: str = ""
    """A Python statement that shows the file `{path}`; empty for lines of text."""


FORMATS: Mapping[str, RowFormat] = {
    ".npy": RowFormat(NumpySource),
    ".jsonl": RowFormat(JsonLinesSource, JsonLinesSink),
    ".csv": RowFormat(CsvSource, CsvSink),
    ".npz": RowFormat(NumpySource, NpzSink, "import numpy; print(dict(numpy.load({path!r})))"),
    ".parquet": RowFormat(ParquetSource, ParquetSink, "import pyarrow.parquet as p; print(p.read_table({path!r}))"),
}
"""By the suffix of the file's name."""

_SOURCES = {suffix: each.source for suffix, each in FORMATS.items() if each.source is not None}
_SINKS = {suffix: each.sink for suffix, each in FORMATS.items() if each.sink is not None}
_COUNTED: Mapping[str, Callable[[FilePath, PredictJob, RowSignature], CountedSource]] = {
    ".npy": NumpySource,
    ".npz": NumpySource,
    ".parquet": ParquetSource,
}
"""Those that say how many rows they have."""
INPUT_SUFFIXES, OUTPUT_SUFFIXES = tuple(_SOURCES), tuple(_SINKS)


def has_rows(file: FilePath) -> bool:
    """Return whether the name of an input says that it has rows; other files are a row each."""
    return file.suffix.lower() in _SOURCES


def open_row_file(path: FilePath, job: PredictJob, signature: RowSignature) -> RowSource:
    """Return the source of a file that has rows, its head checked. Raises InferError and OSError."""
    suffix = path.suffix.lower()
    if suffix in _COUNTED:
        return SteadySource(functools.partial(_COUNTED[suffix], path, job, signature), job.keys)
    return _SOURCES[suffix](path, job, signature)


def check_suffix(output: str) -> None:
    """Raise InferError unless the name of the output says its format."""
    suffix = Path(output).suffix.lower()
    if suffix not in _SINKS:
        raise invalid_argument(f"--output {output} has the suffix '{suffix}'; expected {', '.join(_SINKS)}")


def open_sink(output: str, folder: Path, sizes: Mapping[str, int], layout: Layout) -> Sink:
    """Return the sink with the rows that `sizes` records. Raises OSError and InferError."""
    return _SINKS[Path(output).suffix.lower()](folder, sizes, layout)


def python_to_look(output: str) -> str:
    """Return a Python statement that shows an output; empty for lines of text."""
    return FORMATS[Path(output).suffix.lower()].look.format(path=output)
