"""What one process, or all processes of a server together, answer to the live stream: values only."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from naiad.telemetry.statistics.live_counts import LiveCounts, add_counts

VersionKey = tuple[str, str]
"""The key of a model and the number of its version."""
ModelVersionName = tuple[str, str]
"""A model and a version as a client names them; the version may be empty."""
RECENT_REQUESTS, SLOWEST_REQUESTS, MAX_BATCHES = 20, 10, 20
SUCCESS = "success"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LiveQuery:
    """What the open streams of a process want to know."""

    details: frozenset[ModelVersionName] = frozenset()
    """Models with last requests, batches and instances."""
    has_log: bool = False
    lease_s: float = 5.0
    """How long a process goes on to keep requests, failures and lines for the next query."""


class RequestTimes(NamedTuple):
    """Where the time of one request went. The parts follow each other, and their sum is its duration."""

    id: str
    time_ms: int
    """Unix time of its end."""
    outcome: str
    """`success`, or the reason of its failure."""
    batch_size: int
    queue_ns: int
    input_ns: int
    compute_ns: int
    output_ns: int
    response_ns: int

    @property
    def duration_ns(self) -> int:
        """The time from arrival to response."""
        return sum(self[4:])


class FailureEntry(NamedTuple):
    """A request that has failed."""

    time_ms: int
    """Unix time."""
    id: str
    model: str
    version: str
    code: str
    message: str


class LogEntry(NamedTuple):
    """A line of the log."""

    time_ms: int
    """Unix time."""
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class TailPart(Generic[_T]):
    """The last entries of one process, oldest first."""

    source: int
    """The process."""
    count: int
    """Entries so far: the number of the newest one."""
    entries: Sequence[_T]


class ReleasedBatch(NamedTuple):
    """A batch that was executed, and why it was released."""

    time_ms: int
    """Unix time of its end."""
    size: int
    request_count: int
    reason: str
    waited_us: int
    compute_us: int


class InstanceRow(NamedTuple):
    """An instance of a version."""

    name: str
    kind: str
    device: int | None
    busy: bool
    process: int | None = None
    """The number of the server process, from 1; None if the server has only one."""


class CallCounts(NamedTuple):
    """Calls to another model: totals."""

    success: int
    failure: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class GpuUse:
    """A GPU at this moment."""

    index: int
    utilization: float
    """0.0 to 1.0."""
    used_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class LiveDetail:
    """One version in detail."""

    version: str
    recent: Sequence[RequestTimes]
    """Newest first."""
    slowest: Sequence[RequestTimes]
    """Slowest first."""
    batches: Sequence[ReleasedBatch]
    """Newest first."""
    instances: Sequence[InstanceRow]
    calls: Mapping[str, CallCounts]


@dataclass(frozen=True, slots=True)
class LiveAnswer:
    """A server at one moment."""

    is_ready: bool
    cpu_s: float
    resident_bytes: int
    in_flight: int
    rows: Mapping[VersionKey, LiveCounts]
    """Versions that have served something; other rows would be zero."""
    gpus: Sequence[GpuUse] = ()
    details: Mapping[ModelVersionName, LiveDetail] = field(default_factory=dict)
    failures: Sequence[TailPart[FailureEntry]] = ()
    log: Sequence[TailPart[LogEntry]] = ()


def merge_answers(answers: Sequence[LiveAnswer], rows: Mapping[VersionKey, LiveCounts]) -> LiveAnswer:
    """Return the answer of all processes; `rows` are the sums of their counters. At least one has answered."""
    details: dict[ModelVersionName, LiveDetail] = {}
    for answer in answers:
        for key, detail in answer.details.items():
            known = details.get(key)
            details[key] = detail if known is None else _merged_detail(known, detail)
    return LiveAnswer(
        is_ready=all(answer.is_ready for answer in answers),
        cpu_s=sum(answer.cpu_s for answer in answers),
        resident_bytes=sum(answer.resident_bytes for answer in answers),
        in_flight=sum(answer.in_flight for answer in answers),
        rows=rows,
        # Every process sees the same GPUs, or one of them measures.
        gpus=max((answer.gpus for answer in answers), key=len),
        details=details,
        failures=[part for answer in answers for part in answer.failures],
        log=[part for answer in answers for part in answer.log],
    )


def with_process(answer: LiveAnswer, number: int) -> LiveAnswer:
    """Return the answer of one of several processes, with its number: their instances have equal names."""
    details = {
        key: replace(detail, instances=[row._replace(process=number) for row in detail.instances])
        for key, detail in answer.details.items()
    }
    return replace(answer, details=details)


def sum_rows(groups: Iterable[Mapping[VersionKey, LiveCounts]]) -> dict[VersionKey, LiveCounts]:
    """Return the sums of counters by version."""
    sums: dict[VersionKey, LiveCounts] = {}
    for group in groups:
        for key, row in group.items():
            known = sums.get(key)
            sums[key] = row if known is None else add_counts(known, row)
    return sums


def _merged_detail(one: LiveDetail, other: LiveDetail) -> LiveDetail:
    if one.version != other.version:  # a reload has not reached every process
        return max(one, other, key=lambda detail: int(detail.version) if detail.version.isdigit() else -1)
    calls = dict(one.calls)
    for model, counts in other.calls.items():
        known = calls.get(model, CallCounts(0, 0, 0))
        calls[model] = CallCounts(*(a + b for a, b in zip(known, counts, strict=True)))
    return LiveDetail(
        one.version,
        sorted([*one.recent, *other.recent], key=lambda each: -each.time_ms)[:RECENT_REQUESTS],
        sorted([*one.slowest, *other.slowest], key=lambda each: -each.duration_ns)[:SLOWEST_REQUESTS],
        sorted([*one.batches, *other.batches], key=lambda each: -each.time_ms)[:MAX_BATCHES],
        [*one.instances, *other.instances],
        calls,
    )
