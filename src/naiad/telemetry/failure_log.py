"""One log line for every failed request, unless they come in floods; and a limit on other lines that repeat."""

import logging
from collections.abc import Hashable

from naiad.core.errors import InferError, excerpt
from naiad.telemetry.flood import FloodGate, LineLimiter


class FailureLog:
    """Writes failures of requests to a logger; thread-safe."""

    def __init__(self, logger: logging.Logger, gate: FloodGate | None = None) -> None:
        self._logger = logger
        self._limiter = LineLimiter(self._sum_up, gate)

    def log(self, *, protocol: str, request_id: str, model: str, version: str, error: InferError, level: int) -> None:
        """Log one failure, or count it when there are too many of its kind."""
        if not self._logger.isEnabledFor(level):
            return
        model, version = excerpt(model), excerpt(version)
        if not self._limiter.admit((protocol, model, version, error.code.name)):
            return
        shown_id = excerpt(request_id)
        message = error.message
        for prefix in (f"[request id: {shown_id}] ", "[request id: <id_unknown>] "):
            message = message.removeprefix(prefix)
        self._logger.log(
            level,
            "[request id: %s] %s request for model '%s' version %s failed: %s: %s%s",
            shown_id,
            protocol,
            model,
            version or "newest",
            error.code.name,
            message,
            f"\n{error.detail}" if error.detail else "",
            stacklevel=3,
        )

    def flush(self) -> None:
        """Log how many failures have been suppressed since the last time."""
        self._limiter.flush()

    def _sum_up(self, kind: Hashable, count: int) -> None:
        self._logger.warning("%d more failed requests of the kind %s were not logged one by one", count, kind)


class RepeatFilter(logging.Filter):
    """Lets so many equal lines a second pass of those that clients cause, and sums up the rest.

    Lines are equal when they have one format and come from one logger. Failures of requests have their own limit.
    """

    def __init__(self, logger: logging.Logger, prefixes: tuple[str, ...], gate: FloodGate | None = None) -> None:
        """`prefixes` are those of the loggers that are limited; `logger`, which is none of them, gets the sums."""
        super().__init__()
        self._logger = logger
        self._prefixes = prefixes
        self._limiter = LineLimiter(self._sum_up, gate)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written."""
        if record.levelno < logging.INFO or not record.name.startswith(self._prefixes):
            return True
        return self._limiter.admit((record.name, record.msg))

    def flush(self) -> None:
        """Log how many lines have been suppressed since the last time."""
        self._limiter.flush()

    def _sum_up(self, kind: Hashable, count: int) -> None:
        name, text = kind if isinstance(kind, tuple) else ("other loggers", "lines of several kinds")
        self._logger.warning("%d more lines of %s were not logged: %s", count, name, excerpt(str(text)))
