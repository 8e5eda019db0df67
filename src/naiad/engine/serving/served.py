"""The interface of served versions, as the engine's table holds them, and the base of proxies in front of one."""

import abc
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from naiad.backend.api import Instance
from naiad.config.autofill import completed_fields
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.scheduling_rules import batching_hints, scheduler_kind, scheduling_rules
from naiad.core.model import AdaptiveState
from naiad.core.request import InferRequest
from naiad.scheduler.rate_limiter import ResourceUsage
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from naiad.telemetry.statistics.version_statistics import Explanation, ResourceUse


class TokenCounter(Protocol):
    """Counts the tokens of texts with the tokenizer of a model."""

    def count(self, texts: Sequence[str], pairs: Sequence[str] = ()) -> int:
        """Return the number of tokens of all texts, each together with its text of `pairs` if there are any."""


class Served(abc.ABC):
    """A version that accepts requests until it is stopped: a model with instances, or an ensemble of other models."""

    def __init__(
        self,
        name: str,
        version: str,
        config: ModelConfig,
        statistics: ModelStatistics,
        *,
        is_decoupled: bool,
        labels: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.config = config
        self.statistics = statistics
        self.is_decoupled = is_decoupled
        self.load_duration_ns = 0
        """Set by the loader."""
        self.written_config: ModelConfig | None = None
        """The configuration as its author wrote it; set by the loader."""
        self._token_counter: TokenCounter | None = None
        self._labels: Mapping[str, Sequence[str]] = labels or {}

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Output name to class labels."""
        return self._labels

    @property
    def completed_fields(self) -> Sequence[str]:
        """Fields of the configuration that are not in config.pbtxt."""
        return [] if self.written_config is None else completed_fields(self.written_config, self.config)

    @property
    def token_counter(self) -> TokenCounter | None:
        """Counts the tokens of texts for a model that does not; set by the loader."""
        return self._token_counter

    def count_tokens_with(self, counter: TokenCounter | None) -> None:
        """Set what counts the tokens of texts."""
        self._token_counter = counter

    @property
    def takes_device_tensors(self) -> bool:
        """Whether requests and responses may have a `DeviceTensor` in place of a buffer."""
        return False

    @abc.abstractmethod
    def submit(self, request: InferRequest) -> None:
        """Admit and queue a request. Raises InferError if it is rejected."""

    def forwards_choice(self, request: InferRequest) -> bool:
        """Forward a request whose sequence belongs to another process, which picks the version of the sequence.

        Return whether it did; `submit` then must not follow. Raises InferError.
        """
        return False

    @abc.abstractmethod
    def cancel(self, request: InferRequest) -> bool:
        """Drop a queued request and return True; only mark an executing one."""

    @abc.abstractmethod
    def is_waiting(self, request: InferRequest) -> bool:
        """Return whether a submitted request waits and no instance executes any part of it."""

    @property
    @abc.abstractmethod
    def pending_count(self) -> int:
        """Requests queued for an instance."""

    @property
    def oldest_ns(self) -> int:
        """Arrival of the oldest queued request; 0 for an empty queue, or if the members have the queues."""
        return 0

    @property
    @abc.abstractmethod
    def in_flight_count(self) -> int:
        """Requests queued or executing."""

    @property
    def adaptive_state(self) -> AdaptiveState | None:
        """State of its adaptive batcher; None without one."""
        return None

    @property
    def resource_usage(self) -> Sequence[ResourceUsage]:
        """With a rate limiter, the state of the resources of its instances."""
        return ()

    @property
    def live_sequence_count(self) -> int:
        """Live sequences; the members of an ensemble know theirs."""
        return 0

    def close_to_new_sequences(self) -> None:  # noqa: B027 - for sequence models
        """Accept only requests of live sequences from now on, for a sequence model."""

    @property
    def instances(self) -> Sequence[Instance]:
        """The instances of this version."""
        return ()

    @property
    def busy_instances(self) -> Collection[int]:
        """The identities (`id`) of the instances that execute a batch now."""
        return ()

    @property
    @abc.abstractmethod
    def health(self) -> str:
        """Empty while requests can be executed, otherwise the reason."""

    @property
    def lost_reason(self) -> str:
        """Empty unless every instance has died too often and rejects requests; then the reason."""
        return ""

    def check(self, now_ns: int) -> None:  # noqa: B027 - for models with instances
        """Fail hung executions and slow clients; called about once a second, on the loop."""

    @abc.abstractmethod
    def abort(self, reason: str) -> None:
        """Fail all queued and executing requests with UNAVAILABLE: the server exits. On the loop."""

    @abc.abstractmethod
    def stop(self, timeout_s: float) -> bool:
        """Reject new requests, let the accepted ones finish; return whether all of them did within `timeout_s`."""


class ModelRouter(Protocol):
    """The way of models to other models."""

    def submit(self, request: InferRequest) -> None:
        """Submit a request; its responses arrive through `request.on_response` on the loop. Raises InferError."""

    def cancel(self, request: InferRequest) -> bool:
        """Cancel a submitted request; return True if it was dropped, False if it executes."""

    def served(self, name: str, version: str = "") -> Served:
        """Return the ready version. Raises InferError without one."""


class ServedProxy(Served):
    """A version in front of another. It reads, keeps or sends bytes, so it takes no tensors of devices."""

    def __init__(self, served: Served) -> None:
        super().__init__(
            served.name, served.version, served.config, served.statistics, is_decoupled=served.is_decoupled
        )
        self._served = served

    @property
    def served(self) -> Served:
        """The version itself."""
        return self._served

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """The labels of the version."""
        return self._served.labels

    @property
    def token_counter(self) -> TokenCounter | None:
        """What counts tokens for the version."""
        return self._served.token_counter

    @property
    def adaptive_state(self) -> AdaptiveState | None:
        """State of the adaptive batcher of the version."""
        return self._served.adaptive_state

    @property
    def resource_usage(self) -> Sequence[ResourceUsage]:
        """State of the resources of the version."""
        return self._served.resource_usage

    @property
    def instances(self) -> Sequence[Instance]:
        """The instances of the version."""
        return self._served.instances

    @property
    def busy_instances(self) -> Collection[int]:
        """The instances of the version that execute now."""
        return self._served.busy_instances

    @property
    def health(self) -> str:
        """Health of the version."""
        return self._served.health

    @property
    def lost_reason(self) -> str:
        """Reason of the version's loss."""
        return self._served.lost_reason

    @property
    def pending_count(self) -> int:
        """Requests queued for an instance of the version."""
        return self._served.pending_count

    @property
    def oldest_ns(self) -> int:
        """Arrival of the oldest request queued for an instance; 0 for an empty queue."""
        return self._served.oldest_ns

    @property
    def in_flight_count(self) -> int:
        """Requests queued or executing."""
        return self._served.in_flight_count

    @property
    def live_sequence_count(self) -> int:
        """Live sequences of the version."""
        return self._served.live_sequence_count

    def close_to_new_sequences(self) -> None:
        """Accept only requests of live sequences from now on."""
        self._served.close_to_new_sequences()

    def check(self, now_ns: int) -> None:
        """Check the version."""
        self._served.check(now_ns)

    def abort(self, reason: str) -> None:
        """Fail all requests of the version."""
        self._served.abort(reason)

    def stop(self, timeout_s: float) -> bool:
        """Stop the version; requests that wait for its responses get them or its error."""
        return self._served.stop(timeout_s)


def explain(served: Served) -> Explanation:
    """Return the current state of `served`."""
    config = served.config
    return Explanation(
        name=served.name,
        version=served.version,
        scheduler=scheduler_kind(config),
        rules=scheduling_rules(config),
        hints=batching_hints(config),
        instance_count=len(served.instances),
        waiting=served.pending_count,
        in_flight=served.in_flight_count,
        counts=served.statistics.snapshot(),
        recent=served.statistics.recent_batches(),
        adaptive=served.adaptive_state,
        resources=[
            ResourceUse(usage.resource.name, usage.resource.device, usage.limit, usage.held, usage.waiting)
            for usage in served.resource_usage
        ],
        now_ns=time.monotonic_ns(),
        completed_fields=served.completed_fields,
    )
