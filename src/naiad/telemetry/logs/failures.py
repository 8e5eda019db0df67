"""One log line for every failed request, unless they come in floods; and a limit on other lines that repeat.

Keep a flood of equal lines from flooding the log.
"""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence

from naiad.core.errors import InferError, excerpt

_WINDOW_NS = 1_000_000_000
_SUMMARY_AFTER_S = 1.0
_OVERFLOW = "others"


Suppressed = tuple[Hashable, int]
"""A kind of line and how many of them were not written."""


class FloodGate:
    """Admits so many lines of a kind a second, and of all kinds, and counts the rest.

    Not thread-safe; time is an argument. The kinds of a second are bounded, because clients choose some of them.
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
        """Kind to the lines that were admitted and those that were not."""

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
        """Start a new window and return what the old one suppressed."""
        suppressed = [(key, count) for key, (_, count) in self._counts.items() if count]
        self._counts.clear()
        self._admitted_count = 0
        self._window_start_ns = now_ns
        return suppressed


class LineLimiter:
    """A flood gate that several threads use; what it suppresses is summed up within about a second."""

    def __init__(self, report: Callable[[Hashable, int], object], gate: FloodGate | None = None) -> None:
        """`report` is called, on any thread, with each kind and how many of its lines were not written."""
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
                # The flood may end before its window does, and then no other line would sum it up.
                self._timer = threading.Timer(_SUMMARY_AFTER_S, self.flush)
                self._timer.daemon = True
                self._timer.start()
        self._sum_up(suppressed)
        return is_admitted

    def flush(self) -> None:
        """Report what has been suppressed since the last time."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            suppressed = self._gate.restart(time.monotonic_ns())
        self._sum_up(suppressed)

    def _sum_up(self, suppressed: Sequence[Suppressed]) -> None:
        for kind, count in suppressed:
            self._report(kind, count)


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
