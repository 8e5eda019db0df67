"""What a measurement of a point gives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from naiad.analyze.space import Point
from naiad.perf.result import Interval, Row


@dataclass(frozen=True, slots=True)
class Measured:
    """A point with its figures, or the reason why there are none."""

    point: Point
    rows: Mapping[str, Row] = field(default_factory=dict)
    """By model under load."""
    metrics: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)
    """By model, then by Model Analyzer's name of the metric."""
    error: str = ""
    """The variant did not load, ran out of memory, or the server died; "" for success."""
    duration_s: float = 0.0
    repeats: int = 1
    """Measurements of the point that are combined here."""
    foreign_cores: float = 0.0
    """Cores of the server's machine that other programs used meanwhile; 0 where that is not known."""
    loop_cores: float = 0.0
    """Cores that the main thread of the server used, which runs naiad's event loop; 0 where that is not known."""


class Instrument(Protocol):
    """Measures points on a server; variants are applied live. One at a time."""

    async def measure(self, point: Point, seconds: float) -> Measured:
        """Apply the point's variants, send its load for about `seconds`, and return the figures.

        A variant that fails is a `Measured` with `error`. Raises ServerLostError when the server has died.
        """

    async def restore(self) -> None:
        """Apply the configurations that the models had at the beginning."""


class ServerLostError(Exception):
    """The server cannot be reached any more; measurements so far are kept."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the fitted model expects of a point."""

    point: Point
    throughput: float
    """Requests/s."""
    latency_us: Mapping[int, float]
    """Percentile to latency."""
    cpu_cores: float = 0.0
    error_share: float = 0.0
    """The expected relative error of the throughput; larger where the model extrapolates."""
    doubts: Sequence[str] = ()
    """What was assumed because no measurement shows it, in sentences."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate in the result of a search: its best measured point."""

    measured: Measured
    gain_percent: float
    """Over the configuration of the repository."""
    meets_constraints: bool
    misses: str = ""
    """Which constraint is missed, and by how much."""
    is_tie: bool = False
    """Its difference from the winner is within the uncertainty."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The result of a search."""

    winner: Ranked | None
    candidates: Sequence[Ranked]
    """Best first."""
    baseline: Measured | None
    """The configuration of the repository."""
    measurements: Sequence[Measured]
    predictions: Sequence[Prediction] = ()
    pareto: Sequence[Measured] = ()
    reason: str = ""
    """Why the winner won, or why there is none, in sentences."""
    is_interrupted: bool = False
    """The user has stopped the search."""
