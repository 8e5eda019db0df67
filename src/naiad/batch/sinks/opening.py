"""The class that writes each format."""

from collections.abc import Callable, Mapping
from pathlib import Path

from naiad.batch.sinks.csv_files import CsvSink
from naiad.batch.sinks.json_lines import JsonLinesSink
from naiad.batch.sinks.npz import NpzSink
from naiad.batch.sinks.parquet import ParquetSink
from naiad.batch.sinks.sink import Layout, Sink
from naiad.core.errors import invalid_argument

_FORMATS: dict[str, Callable[[Path, Mapping[str, int], Layout], Sink]] = {
    ".jsonl": JsonLinesSink,
    ".csv": CsvSink,
    ".npz": NpzSink,
    ".parquet": ParquetSink,
}
OUTPUT_SUFFIXES = tuple(_FORMATS)


def check_suffix(output: str) -> None:
    """Raise InferError unless the name of the output says its format."""
    suffix = Path(output).suffix.lower()
    if suffix not in _FORMATS:
        raise invalid_argument(f"--output {output} has the suffix '{suffix}'; expected {', '.join(_FORMATS)}")


def open_sink(output: str, folder: Path, sizes: Mapping[str, int], layout: Layout) -> Sink:
    """Return the sink with the rows that `sizes` records. Raises OSError and InferError."""
    return _FORMATS[Path(output).suffix.lower()](folder, sizes, layout)
