"""Log lines in Triton's forms, and its tables."""

import json
import logging
import time
from collections.abc import Sequence

FORMATS = ("default", "ISO8601")
"""What `--log-format` accepts."""


class TritonFormatter(logging.Formatter):
    """Formats records as Triton does: level, time (UTC), process, place, and the message as a JSON string.

    `default`: `I0520 20:03:25.829575 3355 file.py:12] "text"`
    `ISO8601`: `2024-05-20T20:03:25Z I 3355 file.py:12] "text"`
    A record with an attribute `table` shows that as it is, on lines of its own.
    """

    def __init__(self, form: str = "default", *, escapes: bool = True) -> None:
        """`escapes` False writes messages as they are (Triton: TRITON_SERVER_ESCAPE_LOG_MESSAGES=0)."""
        super().__init__()
        if form not in FORMATS:
            raise ValueError(f"log format '{form}' is not known; known are {', '.join(FORMATS)}")
        self._is_iso = form == "ISO8601"
        self._escapes = escapes

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, without a newline at its end."""
        opening = f"{self._stamp(record)} {record.process} {record.filename}:{record.lineno}] "
        table = getattr(record, "table", "")
        if table:
            return f"{opening}{record.getMessage()}\n{table}\n"
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        if record.stack_info:
            text += "\n" + record.stack_info
        return opening + (json.dumps(text, ensure_ascii=False) if self._escapes else text)

    def _stamp(self, record: logging.LogRecord) -> str:
        letter = "E" if record.levelno >= logging.ERROR else "W" if record.levelno >= logging.WARNING else "I"
        # One rounding for both parts: 1.9999996 s is second 2, not second 1 with 1000000 us.
        seconds, microseconds = divmod(round(record.created * 1_000_000), 1_000_000)
        moment = time.gmtime(seconds)
        if self._is_iso:
            return f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', moment)} {letter}"
        return f"{letter}{time.strftime('%m%d %H:%M:%S', moment)}.{microseconds:06d}"


def format_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table drawn with +, - and |; a cell with newlines takes several lines."""
    cells = [[str(cell).splitlines() or [""] for cell in row] for row in [list(headings), *rows]]
    widths = [max(len(line) for cell in column for line in cell) for column in zip(*cells, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    drawn = [_table_row(row, widths) for row in cells]
    return "\n".join([rule, drawn[0], rule, *drawn[1:], rule])


def _table_row(cells: Sequence[Sequence[str]], widths: Sequence[int]) -> str:
    lines = []
    for position in range(max(len(cell) for cell in cells)):
        texts = [cell[position] if position < len(cell) else "" for cell in cells]
        lines.append("| " + " | ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)) + " |")
    return "\n".join(lines)
