"""What a run reports while it goes on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from naiad.perf.plan import Load
from naiad.perf.result import Row


@dataclass(frozen=True, slots=True)
class Tick:
    """A load so far."""

    elapsed_s: float
    """Since the measurement began; 0 during the warm-up."""
    requests: int
    failures: int
    rate_per_s: float
    """Successes a second since the tick before."""
    p50_us: float
    """Of the successes since the tick before; 0 without any."""
    p99_us: float
    reason: str
    """Why the measurement goes on."""


class Progress(Protocol):
    """Gets called on the event loop; returns quickly."""

    def level_started(self, load: Load) -> None:
        """A load begins."""

    def tick(self, tick: Tick) -> None:
        """Some hundred ms have passed."""

    def level_done(self, rows: Sequence[Row]) -> None:
        """A load has been measured: a row for each model."""


class NoProgress:
    """Reports nothing."""

    def level_started(self, load: Load) -> None:
        """A load begins."""

    def tick(self, tick: Tick) -> None:
        """Some hundred ms have passed."""

    def level_done(self, rows: Sequence[Row]) -> None:
        """A load has been measured."""
