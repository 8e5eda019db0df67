"""The result of an optimization: every candidate with its verdict and figures, and the one that was chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from naiad.tools.optimize.candidate import Candidate, Conversion, Status
from naiad.tools.optimize.optimize_source import Source
from naiad.tools.optimize.results.candidate_measurement import Profile, ServedMeasurement
from naiad.tools.optimize.results.verdict import Verdict

SOURCE = "source"
"""Name of the candidate that is the source as it is."""


class Strategy(Enum):
    """What the best candidate is best at; the names are Model Navigator's in lower case."""

    MIN_LATENCY = "min-latency"
    MAX_THROUGHPUT = "max-throughput"
    MAX_THROUGHPUT_AND_MIN_LATENCY = "max-throughput-and-min-latency"
    """The greatest geometric mean of both gains over the source."""
    MAX_THROUGHPUT_WITHIN_LATENCY = "max-throughput-within-latency"
    """Needs a latency budget."""
    MIN_MEMORY = "min-memory"


@dataclass(frozen=True, slots=True)
class Objective:
    """How the winner is chosen among candidates whose answers are right."""

    strategy: Strategy = Strategy.MAX_THROUGHPUT_AND_MIN_LATENCY
    latency_budget_us: float | None = None
    """Limit of the p99 latency under load."""
    memory_budget_mib: float | None = None


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A step of the sensitivity search: how much stays in higher precision, what that costs and gains."""

    kept: Sequence[str]
    """Nodes of the graph in higher precision."""
    share: float
    """Of the nodes that could be quantised, those in lower precision."""
    error: float
    """Worst relative difference over the outputs, or the drop of the user's metric."""
    is_accepted: bool
    latency_us: float
    """Median time of a call with one sample; 0 if it was not measured."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A candidate and what became of it."""

    candidate: Candidate
    status: Status
    reason: str = ""
    """Of a status other than PASSED, in a sentence."""
    conversion: Conversion | None = None
    verdict: Verdict | None = None
    profiles: Sequence[Profile] = ()
    served: ServedMeasurement | None = None
    """Of finalists."""
    curve: Sequence[CurvePoint] = ()
    """Of a candidate that the sensitivity search has made."""

    @property
    def can_win(self) -> bool:
        """Whether it may be chosen, packaged and served."""
        return self.status is Status.PASSED


def baseline_of(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the source as it is, or the first candidate that passed where naiad does not serve the source's format.

    None if nothing passed. The first candidate of a PyTorch module is its plainest conversion, TorchScript.
    """
    source = next((each for each in outcomes if each.candidate.name == SOURCE), None)
    return source or next((each for each in outcomes if each.can_win), None)


@dataclass(frozen=True, slots=True)
class OptimizationResult:
    """A finished optimization."""

    source: Source
    objective: Objective
    outcomes: Sequence[Outcome]
    """In the order of the plan; the source as it is comes first where naiad serves its format."""
    winner: str
    """Name of a candidate; "" if none passed."""
    why: str
    """Why it won, or why nothing did, in a sentence with the figures."""
    samples: int
    samples_digest: str
    source_digest: str
    started: str
    """ISO 8601, UTC."""
    duration_s: float
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Processor, cores, memory, operating system, versions of Python, naiad and the packages of the candidates."""

    @property
    def baseline(self) -> Outcome | None:
        """Return what gains are measured against."""
        return baseline_of(self.outcomes)

    @property
    def chosen(self) -> Outcome | None:
        """Return the winner."""
        return next((each for each in self.outcomes if each.candidate.name == self.winner), None)

    def outcome(self, name: str) -> Outcome:
        """Return the outcome of a candidate. Raises KeyError."""
        for each in self.outcomes:
            if each.candidate.name == name:
                return each
        raise KeyError(name)
