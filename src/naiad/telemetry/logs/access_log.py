"""The access log: a line for each request, or for a share of them; and the audit lines of the server's log.

Refused requests and control calls are audited: they are always in the access log, and, whether there is one or not,
in the server's log. Their number per second is limited there, because clients cause them. Neither log has the value
of a key, a query, a header field or the content of a tensor.
"""

import logging
import random
import re
import sys
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final

from naiad.core.errors import excerpt
from naiad.options.options import AccessLogOptions
from naiad.telemetry.logs.failures import FloodGate, LineLimiter
from naiad.telemetry.logs.log_output import BackgroundHandler, LogFile, escaped_json, utc_time

CONSOLE: Final = "stderr"
_GATHER_S = 0.02
"""To wake the writing thread for each line costs the event loop more than the line."""
_PLAIN = re.compile(r"[A-Za-z0-9./:_,\[\]@-]+")


@dataclass(slots=True, kw_only=True)
class AccessEntry:
    """A request as the access log shows it."""

    protocol: str
    """HTTP or gRPC."""
    path: str
    """Without the query."""
    status: int | str
    """The HTTP status, or the name of the gRPC status."""
    method: str = ""
    client: str = ""
    """The client's address."""
    key: str = ""
    """The name of its API key."""
    model: str = ""
    version: str = ""
    request_id: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    duration_ns: int = 0
    error: str = ""
    """Why a refused request was refused."""

    def fields(self) -> Mapping[str, object]:
        """Return the fields that have a value; texts of clients are cut and escaped."""
        shown: dict[str, object] = {"protocol": self.protocol}
        for name in ("client", "key", "method", "path", "model", "version", "request_id"):
            text: str = getattr(self, name)
            if text:
                shown[name] = excerpt(text)
        shown["status"] = self.status
        shown["bytes_in"] = self.bytes_in
        shown["bytes_out"] = self.bytes_out
        shown["duration_ms"] = round(self.duration_ns / 1e6, 3)
        if self.error:
            shown["error"] = excerpt(self.error)
        return shown


class _AccessFormatter(logging.Formatter):
    """Formats an entry as JSON, or as `name=value` with quotes where a value needs them."""

    def __init__(self, *, is_json: bool) -> None:
        super().__init__()
        self._is_json = is_json

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, without a final newline."""
        moment = utc_time(record.created)
        entry = getattr(record, "entry", None)
        if not isinstance(entry, AccessEntry):  # the number of lost lines
            note = record.getMessage()
            return escaped_json({"time": moment, "message": note}) if self._is_json else f"{moment} {note}"
        if self._is_json:
            return escaped_json({"time": moment, **entry.fields()})
        return " ".join([moment, *(f"{name}={_shown(value)}" for name, value in entry.fields().items())])


def _shown(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else escaped_json(text)


class AccessLog:
    """Writes entries in a thread of its own; its queue is bounded, and lines that do not fit are counted."""

    def __init__(self, options: AccessLogOptions, log_format: str) -> None:
        """`log_format` is the value of --log-format. Raises OSError if the file cannot be opened."""
        self._sample = options.sample
        if options.file == CONSOLE:
            self._handler = BackgroundHandler(sys.stderr, gather_s=_GATHER_S)
        else:
            self._handler = BackgroundHandler(LogFile(options.file), closes_stream=True, gather_s=_GATHER_S)
        self._handler.setFormatter(_AccessFormatter(is_json=log_format == "json"))

    @property
    def lost_count(self) -> int:
        """Number of lines that were lost."""
        return self._handler.lost_total

    def takes(self) -> bool:
        """Return whether the next ordinary request is one of the share that is logged."""
        return self._sample >= 1 or random.random() < self._sample

    def write(self, entry: AccessEntry) -> None:
        """Queue the line of an entry."""
        self._handler.handle(logging.makeLogRecord({"entry": entry, "created": time.time()}))

    def close(self) -> None:
        """Write what waits, and end."""
        self._handler.close()


class Audit:
    """Logs refused requests and control calls; thread-safe."""

    def __init__(self, logger: logging.Logger, gate: FloodGate | None = None) -> None:
        self._logger = logger
        self._limiter = LineLimiter(self._sum_up, gate or FloodGate(lines_per_second=10, all_lines_per_second=50))

    def refused(self, entry: AccessEntry) -> None:
        """Log a refused request in one line.

        Above 10 lines of one kind (protocol and status) per second, further ones are counted and reported in a line
        of their own.
        """
        if self._limiter.admit(("refused", entry.protocol, entry.status)):
            level = logging.WARNING if entry.status in _WARNED else logging.INFO
            self._write(level, "refused", entry)

    def controlled(self, entry: AccessEntry) -> None:
        """Log a control call, such as a load, in one line, with the same limit."""
        if self._limiter.admit(("control", entry.protocol, entry.status)):
            self._write(logging.INFO, "control", entry)

    def flush(self) -> None:
        """Log the number of lines suppressed since the last report."""
        self._limiter.flush()

    def _write(self, level: int, event: str, entry: AccessEntry) -> None:
        fields = entry.fields()
        by = f" with key '{fields['key']}'" if entry.key else ""
        what = " ".join(str(fields[name]) for name in ("protocol", "method", "path") if name in fields)
        on = f" of '{excerpt(entry.model)}'" if entry.model and entry.model not in what else ""
        why = f": {fields['error']}" if entry.error else ""
        self._logger.log(
            level,
            "%s: %s%s from %s%s: %s%s",
            event,
            what,
            on,
            fields.get("client", "an unknown address"),
            by,
            entry.status,
            why,
            extra={"fields": {"event": event, **fields}},
        )

    def _sum_up(self, kind: Hashable, count: int) -> None:
        shown = " ".join(map(str, kind)) if isinstance(kind, tuple) else str(kind)
        self._logger.warning("%d more audit lines of the kind '%s' were not logged one by one", count, shown)


_WARNED = frozenset((401, 403, 429, "UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"))
"""Statuses that an operator should look at: a client tries what is not allowed."""
audit = Audit(logging.getLogger("naiad.audit"))
