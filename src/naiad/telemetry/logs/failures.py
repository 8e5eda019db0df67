"""One log line for every failed request, with rate limits for floods of equal lines."""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence

from naiad.core.errors import UNKNOWN_ID, InferError, excerpt

_WINDOW_NS = 1_000_000_000
_SUMMARY_AFTER_S = 1.0
_OVERFLOW = "others"


Suppressed = tuple[Hashable, int]
"""A kind of line and the number of suppressed lines."""


class FloodGate:
    """Admits a number of lines of a kind per second, and of all kinds, and counts the rest.

    Not thread-safe; time is an argument. The number of kinds per second is bounded, because clients choose some of
    them.
    """

    def __init__(
        self, *, lines_per_second: int = 100, all_lines_per_second: int = 1000, kind_limit: int = 256
    ) -> None:
        self._lines_per_second = lines_per_second
        self._all_lines_per_second = all_lines_per_second
        self._kind_limit = kind_limit
        self._window_start_ns = 0
        self._admitted_count = 0
        self._counts: dict[Hashable, tuple[int, int]] = {}
        """Kind to the numbers of admitted and suppressed lines."""

    def admit(self, key: Hashable) -> bool:
        """Return whether a line of kind `key` may be written in this window."""
        if key not in self._counts and len(self._counts) >= self._kind_limit:
            key = _OVERFLOW
        admitted, suppressed = self._counts.get(key, (0, 0))
        is_admitted = admitted < self._lines_per_second and self._admitted_count < self._all_lines_per_second
        self._counts[key] = (admitted + 1, suppressed) if is_admitted else (admitted, suppressed + 1)
        self._admitted_count += is_admitted
        return is_admitted

    def is_over(self, now_ns: int) -> bool:
        """Return whether the window of a second has ended."""
        return now_ns - self._window_start_ns >= _WINDOW_NS

    def restart(self, now_ns: int) -> list[Suppressed]:
        """Start a new window and return the suppressed lines of the old one."""
        suppressed = [(key, count) for key, (_, count) in self._counts.items() if count]
        self._counts.clear()
        self._admitted_count = 0
        self._window_start_ns = now_ns
        return suppressed


class LineLimiter:
    """A thread-safe flood gate; it reports suppressed lines within about a second."""

    def __init__(self, report: Callable[[Hashable, int], object], gate: FloodGate | None = None) -> None:
        """`report` is called, on any thread, with each kind and the number of its suppressed lines."""
        self._report = report
        self._gate = gate or FloodGate()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def admit(self, kind: Hashable) -> bool:
        """Return whether a line may be written."""
        now_ns = time.monotonic_ns()
        suppressed: Sequence[Suppressed] = ()
        with self._lock:
            if self._gate.is_over(now_ns):
                suppressed = self._gate.restart(now_ns)
            is_admitted = self._gate.admit(kind)
            if not is_admitted and self._timer is None:
                # The flood may end before its window does, and then no other line would report it.
                self._timer = threading.Timer(_SUMMARY_AFTER_S, self.flush)
                self._timer.daemon = True
                self._timer.start()
        self._sum_up(suppressed)
        return is_admitted

    def flush(self) -> None:
        """Report the lines that were suppressed since the last report."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            suppressed = self._gate.restart(time.monotonic_ns())
        self._sum_up(suppressed)

    def _sum_up(self, suppressed: Sequence[Suppressed]) -> None:
        for kind, count in suppressed:
            self._report(kind, count)


ObserveFailure = Callable[[str, str, str, str, str], object]
"""Gets a failed request: its id, model, version, code and message."""


class FailureLog:
    """Writes failures of requests to a logger; thread-safe."""

    def __init__(self, logger: logging.Logger, gate: FloodGate | None = None) -> None:
        self._logger = logger
        self._limiter = LineLimiter(self._sum_up, gate)
        self.observers: tuple[ObserveFailure, ...] = ()
        """Get every failed request, also those that are not logged."""

    def log(
        self,
        *,
        protocol: str,
        request_id: str,
        model: str,
        version: str,
        error: InferError,
        level: int,
        key: str = "",
    ) -> None:
        """Log a failed request in one line: id, model, version, protocol, code, message, and the detail if any.

        `level` is one of the standard module's, `key` is the name of the client's API key, for the format `json`.
        Above 100 failures of one kind (protocol, model, version and code) per second, further ones are counted and
        reported in a line of their own.
        """
        observers = self.observers
        if not (observers or self._logger.isEnabledFor(level)):
            return
        model, version = excerpt(model), excerpt(version)
        shown_id = excerpt(request_id)
        message = _without_id(error.message, shown_id)
        for observe in observers:
            observe(shown_id, model, version, error.code.name, message)
        if not self._logger.isEnabledFor(level):
            return
        if not self._limiter.admit((protocol, model, version, error.code.name)):
            return
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
            extra={
                "fields": {
                    "request_id": shown_id,
                    "model": model,
                    "version": version,
                    "protocol": protocol,
                    "error": error.code.name,
                    **({"key": key} if key else {}),
                }
            },
            stacklevel=2,
        )

    def flush(self) -> None:
        """Log the number of failures suppressed since the last report."""
        self._limiter.flush()

    def _sum_up(self, kind: Hashable, count: int) -> None:
        self._logger.warning("%d more failed requests of the kind %s were not logged one by one", count, kind)


def _without_id(message: str, shown_id: str) -> str:
    for prefix in (f"[request id: {shown_id}] ", f"[request id: {UNKNOWN_ID}] "):
        message = message.removeprefix(prefix)
    return message


class RepeatFilter(logging.Filter):
    """Limits equal lines caused by clients, and reports the number of suppressed ones.

    Lines are equal if they have the same format and logger. Failures of requests have their own limit.
    """

    def __init__(self, logger: logging.Logger, prefixes: tuple[str, ...], gate: FloodGate | None = None) -> None:
        """`prefixes` select the limited loggers; `logger`, which is not one of them, writes the reports."""
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
        """Log the number of lines suppressed since the last report."""
        self._limiter.flush()

    def _sum_up(self, kind: Hashable, count: int) -> None:
        name, text = kind if isinstance(kind, tuple) else ("other loggers", "lines of several kinds")
        self._logger.warning("%d more lines of %s were not logged: %s", count, name, excerpt(str(text)))
