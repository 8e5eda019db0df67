"""The last lines of the log, kept only while a page shows them."""

import logging

from naiad.telemetry.live.live_answer import LogEntry
from naiad.telemetry.live.tail import Tail
from naiad.telemetry.logs.log import is_written
from naiad.telemetry.logs.log_output import level_name, text_of

MAX_LINES = 200
_MAX_CHARACTERS = 4096


class LogTail(logging.Handler):
    """A handler of the root logger, which keeps what the log has as well."""

    def __init__(self) -> None:
        super().__init__()
        self.tail: Tail[LogEntry] = Tail(MAX_LINES)
        self.addFilter(is_written)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        try:
            text = getattr(record, "table", "") or text_of(record)
            entry = LogEntry(int(record.created * 1000), level_name(record.levelno), text[:_MAX_CHARACTERS])
            self.tail.add(entry)
        except Exception:
            self.handleError(record)

    def attach(self) -> None:
        """Begin to keep lines."""
        logging.getLogger().addHandler(self)

    def detach(self) -> None:
        """Keep no more lines."""
        logging.getLogger().removeHandler(self)
