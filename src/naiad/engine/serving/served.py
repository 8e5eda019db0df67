"""What stands before a served version and passes its requests on, or not, tells about it what the version tells.

What the engine's table holds: anything that takes requests for one version of a model.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from naiad.backend.api import Instance
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.model import AdaptiveState, IndexEntry
from naiad.core.request import InferRequest
from naiad.scheduler.rate_limiter import Usage
from naiad.telemetry.statistics.model import ModelStatistics


class Served(Protocol):
    """A version that takes requests until it is stopped: a model with instances, or an ensemble of others."""

    name: str
    version: str
    config: ModelConfig
    statistics: ModelStatistics
    is_decoupled: bool
    load_duration_ns: int

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Output name to class labels."""

    def submit(self, request: InferRequest) -> None:
        """Admit and enqueue a request. Raises InferError when it is refused at the door."""

    def cancel(self, request: InferRequest) -> bool:
        """Drop a request that still waits, and say so; a request that executes is only marked."""

    def is_waiting(self, request: InferRequest) -> bool:
        """Whether a submitted request waits and no instance works on any part of it."""

    @property
    def pending_count(self) -> int:
        """Requests that wait for an instance."""

    @property
    def oldest_ns(self) -> int:
        """Arrival of the oldest request that waits for an instance; 0 when none does, or its members say."""

    @property
    def in_flight_count(self) -> int:
        """Requests that wait or execute."""

    @property
    def adaptive_state(self) -> AdaptiveState | None:
        """What its adaptive batcher has learned; None without one."""

    @property
    def resource_usage(self) -> Sequence[Usage]:
        """With a rate limiter, how it stands with the resources that the version's instances need."""

    @property
    def live_sequence_count(self) -> int:
        """Sequences that have begun and not ended."""

    def close_to_new_sequences(self) -> None:
        """Take only requests of live sequences from now on, if this is a model of sequences."""

    @property
    def instances(self) -> Sequence[Instance]:
        """The instances of this version."""

    @property
    def health(self) -> str:
        """Empty while requests can be executed, otherwise the reason why they cannot."""

    @property
    def lost_reason(self) -> str:
        """Empty unless every instance has died too often and refuses requests; then the reason why."""

    def check(self, now_ns: int) -> None:
        """Fail what keeps instances from their work for too long; called about once a second, on the loop."""

    def abort(self, reason: str) -> None:
        """Answer all that waits or executes with UNAVAILABLE: the server exits. On the loop."""

    def stop(self, timeout_s: float) -> bool:
        """Refuse new requests, let the accepted ones finish; whether all of them did within `timeout_s`."""


class Router(Protocol):
    """How a model reaches other models: the engine."""

    def submit(self, request: InferRequest) -> None:
        """Submit a request; its answers come through `request.on_response` on the loop. Raises InferError."""

    def cancel(self, request: InferRequest) -> bool:
        """Cancel a submitted request; True when it was dropped, False when something executes it."""

    def served(self, name: str, version: str = "") -> Served:
        """Return the ready version. Raises InferError when there is none."""

    def repository_index(self) -> Sequence[IndexEntry]:
        """Return the rows of the versions that were loaded or should have been."""


class ServedProxy:
    """The part of `Served` that is the version's own, whatever stands before it."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self.name = served.name
        self.version = served.version
        self.config = served.config
        self.statistics = served.statistics
        self.is_decoupled = served.is_decoupled
        self.load_duration_ns = 0

    @property
    def served(self) -> Served:
        """The version itself."""
        return self._served

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """The labels of the version."""
        return self._served.labels

    @property
    def adaptive_state(self) -> AdaptiveState | None:
        """What the adaptive batcher of the version has learned."""
        return self._served.adaptive_state

    @property
    def resource_usage(self) -> Sequence[Usage]:
        """How it stands with the resources of the version."""
        return self._served.resource_usage

    @property
    def instances(self) -> Sequence[Instance]:
        """The instances of the version."""
        return self._served.instances

    @property
    def health(self) -> str:
        """What the version says."""
        return self._served.health

    @property
    def lost_reason(self) -> str:
        """What the version says."""
        return self._served.lost_reason

    def check(self, now_ns: int) -> None:
        """Have the version do so."""
        self._served.check(now_ns)

    def abort(self, reason: str) -> None:
        """Answer all that the version has."""
        self._served.abort(reason)

    def stop(self, timeout_s: float) -> bool:
        """Stop the version; those who wait for its answers get them or its refusal."""
        return self._served.stop(timeout_s)
