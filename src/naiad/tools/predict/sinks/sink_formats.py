"""The class that writes each format."""

from collections.abc import Callable, Mapping
from pathlib import Path

from naiad.core.errors import invalid_argument
from naiad.tools.predict.sinks.csv_files import CsvSink
from naiad.tools.predict.sinks.json_lines import JsonLinesSink
from naiad.tools.predict.sinks.npz import NpzSink
from naiad.tools.predict.sinks.parquet import ParquetSink
from naiad.tools.predict.sinks.sink import Layout, Sink

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
