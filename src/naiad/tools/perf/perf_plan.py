"""What a run sends and how it measures: the plan that the command line makes and the session carries out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from naiad.core.parameters import ParameterValue


class Protocol(Enum):
    """How requests reach the model."""

    HTTP = "http"
    GRPC = "grpc"
    IN_PROCESS = "in_process"


class Mode(Enum):
    """How a client waits, in perf_analyzer's terms."""

    UNARY = "unary"
    """A response to each request; `--sync` and `--async` are the same here, since nothing blocks."""
    STREAM = "stream"
    """gRPC `ModelStreamInfer`: one bidirectional stream a connection, for sequences and decoupled models."""


@dataclass(frozen=True, slots=True)
class Concurrency:
    """A closed loop: `value` requests are always outstanding (live sequences for sequence models)."""

    value: int


@dataclass(frozen=True, slots=True)
class PeriodicConcurrency:
    """Groups of requests, each sent once: the next group leaves when all of the last one have got some responses."""

    start: int
    """Size of the first group."""
    end: int
    """Requests in total."""
    step: int
    """Size of each further group."""
    responses: int
    """Responses that each request of a group gets before the next group leaves."""


@dataclass(frozen=True, slots=True)
class RequestRate:
    """An open loop: requests are due at a rate, whether or not earlier ones have been answered."""

    per_s: float
    is_poisson: bool = False
    """Exponential gaps instead of constant ones."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """An open loop with the gaps of a file, repeated."""

    gaps_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """An open loop with a moment for each request, played once: a fixed schedule, or recorded traffic."""

    offsets_ns: tuple[int, ...]
    """Ascending, from the start of the run; request number i sends template number i."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a ramp: the rate goes from `start_per_s` to `end_per_s` in a straight line."""

    duration_s: float
    start_per_s: float
    end_per_s: float


@dataclass(frozen=True, slots=True)
class Ramp:
    """An open loop whose rate changes: ramps, and spikes as short phases. Played once."""

    phases: tuple[Phase, ...]
    is_poisson: bool = False


Load: TypeAlias = Concurrency | PeriodicConcurrency | RequestRate | Intervals | Schedule | Ramp


class Stop(Enum):
    """What ends the measurement of a load."""

    CONFIDENCE = "confidence"
    """The 95 % intervals of throughput and of the judged latency are narrow enough, or the time limit is reached."""
    TIME_WINDOWS = "time_windows"
    """perf_analyzer's rule: the last three windows agree."""
    COUNT_WINDOWS = "count_windows"
    """The same, with windows of a number of requests."""
    REQUEST_COUNT = "request_count"
    """A single window of exactly N requests."""


@dataclass(frozen=True, slots=True)
class Measuring:
    """How long a load is measured and what is called stable."""

    stop: Stop = Stop.CONFIDENCE
    window_ms: int = 5000
    """Of TIME_WINDOWS; under CONFIDENCE the longest time of a load is `max_trials` windows."""
    window_requests: int = 50
    stability_percent: float = 10.0
    """Windows: the greatest ratio of the last three. CONFIDENCE: the widest interval, as a share of its value."""
    max_trials: int = 10
    duration_ms: int = 0
    """The longest time of a load; 0 for `max_trials` windows under CONFIDENCE, and no limit for others."""
    percentile: int | None = None
    """The latency that is judged; None for the mean."""
    latency_limit_us: float = 0.0
    """A sweep or search ends at a load whose judged latency reaches it; 0 for none."""
    warmup_requests: int = 0
    request_count: int = 0
    slo_us: float = 0.0
    """Responses within it count as goodput; 0 for every success."""


@dataclass(frozen=True, slots=True)
class Search:
    """The loads of a run: a sweep from `start` to `end` by `step`, or a binary search for the latency limit.

    Values are requests outstanding or requests/s. `end` of 0 sweeps until the latency limit is reached.
    """

    start: float = 1
    end: float = 1
    step: float = 1
    is_binary: bool = False
    is_rate: bool = False
    """The values are requests/s instead of requests outstanding."""
    is_poisson: bool = False


@dataclass(frozen=True, slots=True)
class Sequences:
    """How sequences are made for a stateful model."""

    length: int = 20
    length_variation_percent: float = 20.0
    count: int = 4
    """Live sequences in an open loop; in a closed loop the concurrency."""
    first_id: int = 0
    """0: a range of the run's own."""
    last_id: int = (1 << 32) - 1
    are_serial: bool = False
    """At most one request of a sequence is outstanding."""
    has_length: bool = False
    """`length` was asked for, and replaces that of the data."""


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """The server, and how it is called."""

    url: str
    """`http://`, `grpc://`, their TLS forms and Unix sockets, as `naiad.client` reads them; or a repository."""
    protocol: Protocol
    mode: Mode = Mode.UNARY
    headers: Mapping[str, str] = field(default_factory=dict)
    compression: str = "none"
    """`none`, `gzip` or `deflate`: of request messages."""
    has_binary_inputs: bool = True
    has_binary_outputs: bool = True
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    verifies_peer: bool = True
    verifies_host: bool = True
    """Check that the certificate is for the name in the URL."""
    request_timeout_s: float = 60.0
    """A request without a response for so long counts as an error."""


@dataclass(frozen=True, slots=True)
class InputSettings:
    """Where the tensors of requests come from."""

    sources: tuple[str, ...] = ("random",)
    """`random`, `zero`, or paths: JSON files in perf_analyzer's format, directories, `.npy`, `.npz`, images."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Without the batch dimension, by input."""
    integer_bounds: Mapping[str, int] = field(default_factory=dict)
    """Random integers of an input are below it; by default below 128."""
    image_scale: float = 1 / 255
    """Pixels of pictures are multiplied by it for floating-point inputs."""
    string_data: str | None = None
    string_length: int = 128
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    shared_memory: str = "none"
    """`none`, `system` or `cuda`."""
    output_bytes: int = 102_400
    """Of each output's slot in shared memory, for outputs of variable size; times the batch size."""
    validation_tolerance: float = 0.0
    """Relative, for floating-point outputs; 0 for equal bytes."""
    seed: int = 0
    is_shared: bool = False
    """The settings apply to several models, and may name inputs that this model lacks."""


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """A model of the run. Several models share the load in proportion to `weight`."""

    name: str
    version: str = ""
    batch_size: int = 1
    inputs: InputSettings = field(default_factory=InputSettings)
    sequences: Sequences = field(default_factory=Sequences)
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run."""

    service: ServerTarget
    models: Sequence[ModelLoad]
    loads: Search | Load
    measuring: Measuring = field(default_factory=Measuring)
    processes: int = 0
    """Generator processes; 0 for one, and more when one is not enough."""
    metrics_url: str = ""
    metrics_interval_ms: int = 1000
    timing_share: float = 0.02
    """The share of requests that ask the server for its times (`x-naiad-timing`)."""
    replay_files: tuple[str, ...] = ()
    """Recorded traffic (`--record-traffic`) to send in place of `loads`."""
    replay_speed: float = 1.0
    """Recorded gaps are divided by it."""
    replay_service: ServerTarget | None = None
    """The server at another address, for requests recorded over the protocol that `service` does not have."""
    is_fixed_schedule: bool = False
    """Send each data entry at its `timestamp` in place of `loads`."""
    composing_models: tuple[str, ...] = ()
    """Called by a BLS model, as `NAME` or `NAME:VERSION`; their statistics are reported, too."""
    endpoint: str = ""
    """Written to the profile export, as perf_analyzer does."""
    keeps_requests: bool = False
    """Keep inputs and outputs of each request for the profile export."""
    repeat: int = 1
    """All loads are measured so often, in turn; a comparison then knows the variation between runs."""
