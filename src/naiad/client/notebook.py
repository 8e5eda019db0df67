"""What the client returns, as HTML for notebooks. A frame has a form of its own."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from naiad.core.errors import InferError
from naiad.core.tensor import Array, TensorSpec
from naiad.core.texts.html_table import html_table, shape_text

_SHOWN_VALUES = 6
_SUMMARIZED_ELEMENTS = 1 << 24
"""Larger tensors are shown by their first values alone, so that a cell of a notebook does not wait."""


class StatisticsRows(list[dict[str, Any]]):
    """Rows of statistics, one for each version, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        headings = (
            "model",
            "version",
            "requests",
            "failed",
            "executions",
            "rows",
            "mean request ms",
            "mean queue ms",
        )
        return html_table("Statistics", headings, map(_statistics_row, self))


def _statistics_row(row: dict[str, Any]) -> list[object]:
    counts = row.get("inference_stats", {})
    success, fail, queue = (counts.get(name, {}) for name in ("success", "fail", "queue"))
    return [
        row.get("name", ""),
        row.get("version", ""),
        int(success.get("count", 0)),
        int(fail.get("count", 0)),
        int(row.get("execution_count", 0)),
        int(row.get("inference_count", 0)),
        _mean_ms(success),
        _mean_ms(queue),
    ]


def _mean_ms(duration: dict[str, Any]) -> float:
    count = int(duration.get("count", 0))
    return int(duration.get("ns", 0)) / count / 1e6 if count else 0.0


def outputs_html(title: str, specs: Sequence[TensorSpec], arrays: Mapping[str, Array], note: str) -> str:
    """Return the outputs of a result: datatype, shape, first values, and the range of numbers."""
    headings = ("output", "datatype", "shape", "values", "min", "mean", "max")
    return html_table(title, headings, _outputs(specs, arrays), note)


def _outputs(specs: Sequence[TensorSpec], arrays: Mapping[str, Array]) -> Iterator[list[object]]:
    for spec in specs:
        start: list[object] = [spec.name, spec.datatype.value, shape_text(spec.shape)]
        try:
            array = arrays[spec.name]
        except InferError as error:  # in shared memory
            yield [*start, str(error), "", "", ""]
            continue
        yield [*start, _values(array), *_range(array)]


def _values(array: Array) -> str:
    flat = array.reshape(-1)[:_SHOWN_VALUES]
    shown = [value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value) for value in flat]
    return ", ".join(shown) + (", …" if array.size > _SHOWN_VALUES else "")


def _range(array: Array) -> list[object]:
    if array.dtype.kind not in "iuf" or not 0 < array.size <= _SUMMARIZED_ELEMENTS:
        return ["", "", ""]
    return [float(array.min()), float(array.mean()), float(array.max())]
