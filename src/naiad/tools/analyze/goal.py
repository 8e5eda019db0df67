"""Objectives and constraints: which of two measurements is better, and which are acceptable.

Metrics have Model Analyzer's names: `perf_throughput`, `perf_latency_avg`, `perf_latency_p50` to `p99` (ms),
`cpu_utilization` (cores), `cpu_used_ram` (MB), `gpu_used_memory` (MB), `gpu_utilization` (%).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

LOWER_IS_BETTER = frozenset(
    {
        "perf_latency_avg",
        "perf_latency_p50",
        "perf_latency_p90",
        "perf_latency_p95",
        "perf_latency_p99",
        "cpu_used_ram",
        "cpu_utilization",
        "gpu_used_memory",
        "gpu_utilization",
        "gpu_power_usage",
    }
)


@dataclass(frozen=True, slots=True)
class Bound:
    """The limits of a metric; None for none."""

    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True, slots=True)
class Goal:
    """What is wanted of a model."""

    objectives: Mapping[str, float] = field(default_factory=lambda: {"perf_throughput": 1.0})
    """Metric to weight."""
    constraints: Mapping[str, Bound] = field(default_factory=dict)
    weighting: float = 1.0
    """Of the model among several."""
