"""What a measurement of a point gives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from naiad.tools.analyze.space import Point
from naiad.tools.measure.result import Interval, Row


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
    turn: str = ""
    """The turn of a comparison that this is a part of; "" for measurements that look for candidates."""


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
    """A configuration in the result of a search: its figures in the comparison, or its best measured point."""

    measured: Measured
    gain_percent: Interval | None
    """Over the configuration of the repository, in turns under the same load; None for what was not compared."""
    meets_constraints: bool
    misses: str = ""
    """Which constraint is missed, and by how much."""
    is_tie: bool = False
    """Its difference from the winner is within the uncertainty."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The result of a search."""

    winner: Ranked | None
    """The best of the comparison that meets the constraints. Without a comparison there is none, except for the
    configuration of the repository where no other one exists."""
    candidates: Sequence[Ranked]
    """What was compared, best first, with the configuration of the repository; all under one load. May be empty."""
    baseline: Measured | None
    """The configuration of the repository: in the comparison if there was one, otherwise its best measured point."""
    measurements: Sequence[Measured]
    predictions: Sequence[Prediction] = ()
    pareto: Sequence[Measured] = ()
    reason: str = ""
    """Why the winner won, or why there is none, in sentences."""
    is_interrupted: bool = False
    """The user has stopped the search."""
    is_compared: bool = False
    """The candidates and the configuration of the repository were measured in turns under the same load."""
    turns: int = 0
    """Turns of the comparison."""
    others: Sequence[Ranked] = ()
    """The best measured points of the configurations that were not compared; their loads may differ."""
