"""One log line for every failed request, unless they come in floods."""

import logging
import threading
import time
from collections.abc import Sequence

from naiad.core.errors import InferError
from naiad.telemetry.flood import FloodGate, Suppressed

_SUMMARY_AFTER_S = 1.0
MAX_ID_CHARACTERS = 256
"""Of a client's id in log lines and headers: clients take headers of some KiB, percent-encoded."""


class FailureLog:
    """Writes failures of requests to a logger; thread-safe."""

    def __init__(self, logger: logging.Logger, gate: FloodGate | None = None) -> None:
        self._logger = logger
        self._gate = gate or FloodGate()
        self._lock = threading.Lock()
        self._summary: threading.Timer | None = None

    def log(self, *, protocol: str, request_id: str, model: str, version: str, error: InferError, level: int) -> None:
        """Log one failure, or count it when there are too many of its kind."""
        if not self._logger.isEnabledFor(level) or not self._is_admitted((protocol, model, version, error.code.name)):
            return
        message = error.message
        for prefix in (f"[request id: {request_id}] ", "[request id: <id_unknown>] "):
            message = message.removeprefix(prefix)
        self._logger.log(
            level,
            "[request id: %s] %s request for model '%s' version %s failed: %s: %s%s",
            request_id[:MAX_ID_CHARACTERS],
            protocol,
            model,
            version or "newest",
            error.code.name,
            message,
            f"\n{error.detail}" if error.detail else "",
            stacklevel=3,
        )

    def flush(self) -> None:
        """Log how many failures have been held back since the last time."""
        with self._lock:
            if self._summary is not None:
                self._summary.cancel()
                self._summary = None
            held_back = self._gate.restart(time.monotonic_ns())
        self._sum_up(held_back)

    def _is_admitted(self, kind: tuple[str, ...]) -> bool:
        now_ns = time.monotonic_ns()
        held_back: Sequence[Suppressed] = ()
        with self._lock:
            if self._gate.is_over(now_ns):
                held_back = self._gate.restart(now_ns)
            is_admitted = self._gate.admit(kind)
            if not is_admitted and self._summary is None:
                # The flood may end before its window does, and then no other failure would sum it up.
                self._summary = threading.Timer(_SUMMARY_AFTER_S, self.flush)
                self._summary.daemon = True
                self._summary.start()
        self._sum_up(held_back)
        return is_admitted

    def _sum_up(self, held_back: Sequence[Suppressed]) -> None:
        for kind, count in held_back:
            self._logger.warning("%d more failed requests of the kind %s were not logged one by one", count, kind)
