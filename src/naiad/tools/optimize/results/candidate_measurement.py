"""What is measured of a candidate whose answers are right: alone, and as naiad serves it. Times are in us."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from naiad.tools.measure.result import Interval


def figures_text(latency: Interval, throughput: Interval) -> str:
    """Return both figures for a line of progress."""
    return f"{latency.value / 1000:.3g} ms, {throughput.value:,.0f} samples/s"


@dataclass(frozen=True, slots=True)
class Runtime:
    """How a candidate is executed. Everything in it can be written to `config.pbtxt`."""

    name: str = "default"
    """`default`, `threads-1`, `tuned`, ...: unique among the runtimes of a candidate."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """`parameters` of the configuration: options of the backend."""
    instances: int = 1


@dataclass(frozen=True, slots=True)
class Profile:
    """A candidate under a runtime in a process of its own, called directly: no scheduler, no network."""

    runtime: Runtime
    latency: Interval
    """Median time of a call with one sample, in us, with its 95 % confidence interval."""
    throughput: Interval
    """Samples/s at `batch`, the batch size with the best throughput."""
    batch: int
    """1 for a model without a batch dimension."""
    load_s: float
    memory_mib: float
    """Resident memory that loading the model and the calls have added."""
    error: str = ""
    """Why there are no figures; they are 0 then."""


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of a finalist."""

    latency_us: float
    throughput: float
    cpu_us: float
    """Of the server, for an inference; 0 where it is not known."""
    other_cores: float
    """Cores that other programs have used meanwhile."""


@dataclass(frozen=True, slots=True)
class ServedMeasurement:
    """A finalist as a model of a running naiad, under load from `naiad perf`. The choice is by these figures."""

    runtime: Runtime
    latency: Interval
    """Median latency at one request after the other, in us."""
    latency_p99_us: float
    """At the load of `throughput`."""
    throughput: Interval
    """Inferences/s at `concurrency`."""
    concurrency: int
    max_batch_size: int
    """Of the configuration that was served."""
    memory_mib: float
    command: str
    """The `naiad perf` command that repeats the measurement of the throughput."""
    error: str = ""
    cpu: Interval = field(default_factory=lambda: Interval(0.0, 0.0, 0.0))
    """CPU time of the server for an inference at the load of `throughput`, in us; 0 where it is not known."""
    rounds: Sequence[Round] = ()
    """In order; rounds of the same place in two finalists were measured one after the other."""
