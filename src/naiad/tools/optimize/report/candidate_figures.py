"""The figures of a candidate, as all reports show them."""

from collections.abc import Sequence
from dataclasses import dataclass

from naiad.tools.measure.result import Interval
from naiad.tools.optimize.optimize_result import OptimizationResult, Outcome
from naiad.tools.optimize.results.candidate_measurement import Profile, ServedMeasurement


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a candidate; None where nothing was measured."""

    outcome: Outcome
    fastest: Profile | None
    """The profile with the lowest latency."""
    busiest: Profile | None
    """The profile with the highest throughput."""
    served: ServedMeasurement | None
    latency_gain: float | None
    """The source's latency divided by this one's: served if both were, otherwise of the profiles."""
    throughput_gain: float | None

    @property
    def measured(self) -> str:
        """Return how latency and throughput were measured: the two kinds cannot be compared."""
        return "served" if self.served else "directly" if self.fastest else ""

    @property
    def latency(self) -> Interval | None:
        """Return the served latency, or that of a direct call, in us."""
        best = self.served or self.fastest
        return best.latency if best else None

    @property
    def throughput(self) -> Interval | None:
        """Return the served throughput, or that of direct calls, in samples/s."""
        best = self.served or self.busiest
        return best.throughput if best else None

    @property
    def memory_mib(self) -> float | None:
        """Return the memory of the model alone, where it was measured."""
        best = self.busiest or self.served
        return best.memory_mib if best else None


def figures_of(result: OptimizationResult) -> Sequence[Figures]:
    """Return the figures of all candidates in the order of the plan."""
    baseline = _measured(result.baseline) if result.baseline is not None else (None, None, None)
    return [_figures(outcome, baseline) for outcome in result.outcomes]


_Measured = tuple[Profile | None, Profile | None, ServedMeasurement | None]


def _measured(outcome: Outcome) -> _Measured:
    profiles = [each for each in outcome.profiles if not each.error]
    served = outcome.served if outcome.served is not None and not outcome.served.error else None
    return (
        min(profiles, key=lambda each: each.latency.value, default=None),
        max(profiles, key=lambda each: each.throughput.value, default=None),
        served,
    )


def _figures(outcome: Outcome, baseline: _Measured) -> Figures:
    own = _measured(outcome)
    are_served = own[2] is not None and baseline[2] is not None
    latencies = (baseline[2], own[2]) if are_served else (baseline[0], own[0])
    throughputs = (own[2], baseline[2]) if are_served else (own[1], baseline[1])
    return Figures(
        outcome,
        *own,
        _ratio(*(each.latency.value if each else 0.0 for each in latencies)),
        _ratio(*(each.throughput.value if each else 0.0 for each in throughputs)),
    )


def _ratio(first: float, second: float) -> float | None:
    return first / second if first and second else None
