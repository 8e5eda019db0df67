"""What was measured of each request, in columns: a run of minutes has millions of requests."""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from naiad.core.tensor import Buffer, TensorSpec
from naiad.tools.measure.intervals import Int64s
from naiad.tools.perf.perf_exchange import SentRequest

if TYPE_CHECKING:
    import numpy as np

MAX_FAILURE_KINDS = 64
_MAX_TIMINGS = 200_000
_MAX_GAPS = 1_000_000


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """A request without failure, for the profile export. Times are monotonic ns."""

    model: int
    template: int
    sequence_id: int
    start_ns: int
    response_ns: tuple[int, ...]
    outputs: Sequence[Sequence[tuple[TensorSpec, Buffer]]]
    """Of each response."""


@dataclass(slots=True)
class FailureKind:
    """A kind of failure with the first message seen."""

    kind: str
    message: str
    count: int = 0


@dataclass(slots=True)
class Unended:
    """Requests that had not ended when their load was stopped, an entry each."""

    model: "array[int]" = field(default_factory=lambda: array("h"))
    age_ns: "array[int]" = field(default_factory=lambda: array("q"))
    """From the moment at which the request was due to its late response, or to when it was given up."""
    is_answered: "array[int]" = field(default_factory=lambda: array("b"))
    """It got a response after the load was stopped."""

    def add(self, model: int, age_ns: int, *, is_answered: bool) -> None:
        """Append a request."""
        self.model.append(model)
        self.age_ns.append(age_ns)
        self.is_answered.append(is_answered)

    def extend(self, other: "Unended", *, longer_than_ns: int) -> None:
        """Append the requests of `other` that are older."""
        for model, age_ns, is_answered in zip(other.model, other.age_ns, other.is_answered, strict=True):
            if age_ns > longer_than_ns:
                self.add(model, age_ns, is_answered=bool(is_answered))


class Records:
    """Columns with an entry per request that has ended, in the order of the ends. Times are monotonic ns."""

    def __init__(self) -> None:
        self.intended_ns = array("q")
        self.start_ns = array("q")
        self.sent_ns = array("q")
        self.first_ns = array("q")
        self.end_ns = array("q")
        self.responses = array("i")
        self.failure = array("h")
        """0 for success, otherwise 1 + the index in `failures`."""
        self.model = array("h")
        self.template = array("i")
        self.sequence_id = array("Q")
        self.sequence_end = array("b")
        """1 for the request that ended last in its sequence, none of which failed."""
        self.failures: list[FailureKind] = []
        self.timings: list[tuple[int, str]] = []
        """Index of a request and its `server-timing`."""
        self.gaps_ns = array("q")
        """Between responses of decoupled requests."""
        self.kept: list[KeptRequest] = []
        self.unkept = 0
        """Requests to keep for which there was no memory."""

    def __len__(self) -> int:
        return len(self.end_ns)

    def add(self, exchange: SentRequest, *, is_sequence_served: bool = False) -> None:
        """Append a request that has ended, the last one of a sequence without a failure or another one."""
        if exchange.timing and len(self.timings) < _MAX_TIMINGS:
            self.timings.append((len(self.end_ns), exchange.timing))
        self.intended_ns.append(exchange.intended_ns)
        self.start_ns.append(exchange.start_ns)
        self.sent_ns.append(exchange.sent_ns)
        self.first_ns.append(exchange.first_ns)
        self.end_ns.append(exchange.end_ns)
        self.responses.append(exchange.responses)
        self.failure.append(self._failure(exchange) if exchange.failure else 0)
        self.model.append(exchange.model_index)
        self.template.append(exchange.template_index)
        self.sequence_id.append(exchange.sequence_id)
        self.sequence_end.append(is_sequence_served)
        if exchange.gaps_ns and len(self.gaps_ns) < _MAX_GAPS:
            self.gaps_ns.extend(exchange.gaps_ns)

    def _failure(self, exchange: SentRequest) -> int:
        kinds = [each.kind for each in self.failures]
        if exchange.failure in kinds:
            index = kinds.index(exchange.failure)
        else:
            index = min(len(kinds), MAX_FAILURE_KINDS - 1)
            if index == len(kinds):
                self.failures.append(FailureKind(exchange.failure, exchange.failure_message))
        self.failures[index].count += 1
        return index + 1


@dataclass(slots=True)
class Columns:
    """The records of a run as arrays: a snapshot, merged over generator processes and sorted by `end_ns`."""

    intended_ns: Int64s
    start_ns: Int64s
    sent_ns: Int64s
    first_ns: Int64s
    end_ns: Int64s
    responses: "np.ndarray[Any, np.dtype[np.int32]]"
    failure: "np.ndarray[Any, np.dtype[np.int16]]"
    """0 for success, otherwise 1 + the index in `failures`."""
    model: "np.ndarray[Any, np.dtype[np.int16]]"
    template: "np.ndarray[Any, np.dtype[np.int32]]"
    sequence_id: "np.ndarray[Any, np.dtype[np.uint64]]"
    sequence_end: "np.ndarray[Any, np.dtype[np.int8]]"
    gaps_ns: Int64s
    failures: list[FailureKind] = field(default_factory=list)
    timings: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GeneratorFacts:
    """What the generator knows about itself over a measurement; CPU and counts are summed over its processes."""

    processes: int
    wall_s: float
    cpu_s: float
    busiest_cpu_share: float
    """CPU seconds a second of the busiest process: near 1 it is the limit."""
    late_ns: Int64s
    """Open loops: by how much each request left later than intended for reasons of the generator."""
    ceiling_per_s: float
    """What the generator could send at most, from its CPU time for each request."""
    unsent: int = 0
    """Requests of an open loop that were due and had not left at the end."""


@dataclass(slots=True)
class Measurement:
    """A load as measured: from `begin_ns` to `end_ns`, with the boundaries of its windows."""

    begin_ns: int
    end_ns: int
    boundaries_ns: list[int]
    """Of windows, ascending; at least begin and end."""
    columns: Columns
    """Requests that ended within the measurement."""
    generator: GeneratorFacts
    statistics_before: Mapping[str, Any] = field(default_factory=dict)
    statistics_after: Mapping[str, Any] = field(default_factory=dict)
    """By `MODEL/VERSION`, rows of the statistics extension; empty where the server has none."""
    composing: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By ensemble, the models of its steps, as `NAME` or `NAME:VERSION`."""
    metrics: list[tuple[int, str]] = field(default_factory=list)
    """Moment and text of each scrape of the metrics URL."""
    interrupted: str = ""
    """Why the measurement ended early: `interrupt`, `server`; "" otherwise."""
    kept: Sequence[KeptRequest] = ()
    unkept: int = 0
    """Requests that are missing in `kept`, because the memory for them was full."""
    unended: Unended = field(default_factory=Unended)
    ended_outside: Counter[int] = field(default_factory=Counter)
    """Requests of each model that ended in a warm-up without a pause behind it, or after the load."""
    """Requests that waited for a response at the end, longer than any other request."""
