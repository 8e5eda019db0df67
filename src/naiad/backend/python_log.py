"""What workers say, in the server's log: each line with the model and the ids of the requests it is about."""

import logging

from naiad.core.errors import excerpt

_log = logging.getLogger("naiad.model")


def log_line(model: str, level: int, file: str, line: int, text: str, request_ids: str) -> None:
    """Log a line that a model has logged or printed at a place in its code.

    `request_ids` are the ids of the batch that executed, with NUL between them.
    """
    if not _log.isEnabledFor(level):
        return
    opening = f"[request id: {', '.join(map(excerpt, request_ids.split(chr(0))))}] " if request_ids else ""
    record = _log.makeRecord(_log.name, level, file, line, "%s", (f"{opening}model '{model}': {text}",), None)
    _log.handle(record)


class LineSplitter:
    """Makes lines of what native code writes to standard output and standard error."""

    _LONGEST = 65536

    def __init__(self) -> None:
        self._begun = b""

    def split(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes."""
        *lines, self._begun = (self._begun + data).split(b"\n")
        if len(self._begun) > self._LONGEST:
            lines, self._begun = [*lines, self._begun], b""
        return [line.decode("utf-8", "replace") for line in lines if line.strip()]

    def rest(self) -> list[str]:
        """Return the last line, which nothing has completed."""
        return self.split(b"\n")
