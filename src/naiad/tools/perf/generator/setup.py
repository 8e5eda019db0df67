"""What a generator process needs to know, and what it reports."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from naiad.tools.perf.inputs.replay import ReplayedRequest
from naiad.tools.perf.inputs.templates import TemplateSet
from naiad.tools.perf.perf_plan import Sequences, ServerTarget
from naiad.tools.perf.records import Records, Unended


@dataclass(frozen=True, slots=True)
class ModelSetup:
    """A model of the run with its requests."""

    inputs: TemplateSet
    weight: float = 1.0
    sequences: Sequences | None = None
    """None for a model without sequences."""
    uses_stream_length: bool = False
    """A sequence is as long as its stream, unless a length was asked for."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The run, as a generator process gets it."""

    service: ServerTarget
    models: Sequence[ModelSetup]
    timing_share: float = 0.0
    validates: bool = False
    """Compare the outputs of responses with those that the data expects."""
    keeps_bodies: bool = False
    """Keep responses for the profile export."""
    script: Sequence[ReplayedRequest] = ()
    """Recorded traffic: request number i of the schedule sends entry i."""
    max_outstanding: int = 10_000
    """Of an open loop, over all processes; requests that are due beyond it wait."""
    part: int = 0
    parts: int = 1
    """This process and the number of processes."""
    seed: int = 0


@dataclass(slots=True)
class MeasuredChunk:
    """What a generator process has measured since the last chunk."""

    records: Records
    late_ns: "array[int]" = field(default_factory=lambda: array("q"))
    """Open loops: by how much each request left late for reasons of the generator."""
    at_ns: int = 0
    """The moment of the chunk."""
    cpu_ns: int = 0
    """CPU time of the loop's thread so far."""
    sent: int = 0
    """Requests of the load so far."""
    outstanding: int = 0
    unsent: int = 0
    """Requests that were due when the load was stopped and had not been sent."""
    unended: Unended = field(default_factory=Unended)
    """Of the last chunk: requests without a response when the load was stopped."""
    is_finished: bool = False
    """All requests of the load have ended; loads without an end never finish."""
