"""The rate limiter between the threads of all models: grants resources to instances and wakes their runners."""

import logging
import threading
from collections.abc import Iterable, Sequence

from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.core.batch import Batch
from naiad.core.environment.ports import Wakeable
from naiad.engine.instances.instances import groups
from naiad.options.execution_limits import ResourceAmount
from naiad.scheduler.api import Scheduler
from naiad.scheduler.rate_limiter import GRANTED, IDLE, WAITING, Claim, RateLimiter, Resource, ResourceUsage

_log = logging.getLogger(__name__)


class Resources:
    """The resources of a server, which the instances of all its models share."""

    def __init__(self, amounts: Sequence[ResourceAmount] = ()) -> None:
        """`amounts` limits resources; without any, the largest claim sets the amount of each."""
        self.limiter = RateLimiter(amounts)
        self.lock = threading.Lock()
        """Guards the limiter and all claims."""

    def register(self, config: ModelConfig) -> "ModelResources":
        """Register the instances of a model version with complete instance groups, in their order.

        Raises InferError(INVALID_ARG) if one of them could never execute.
        """
        claims = _claims_of(config)
        with self.lock:
            granted = self.limiter.register(claims)
            self.log_limits()
        _wake(granted)
        return ModelResources(self, claims)

    def usage(self) -> list[ResourceUsage]:
        """Return the state of every resource."""
        with self.lock:
            return self.limiter.usage()

    def log_limits(self) -> None:
        """Log the limits of all resources after a change of models, as Triton does with --log-verbose=1."""
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s", self.limiter.limits_text())


class ModelResources:
    """The resources of the instances of one model version, by the number of the instance."""

    def __init__(self, resources: Resources, claims: Sequence[Claim]) -> None:
        self._resources = resources
        self._limiter, self._lock = resources.limiter, resources.lock
        self._claims = claims

    def bind(self, runners: Sequence[Wakeable]) -> None:
        """Set the runner to wake for each instance."""
        for claim, runner in zip(self._claims, runners, strict=True):
            claim.owner = runner

    def acquire(self, index: int) -> bool:
        """Return whether an instance may execute now; otherwise its runner is woken, once, when it may.

        The resources of its last execution are released.
        """
        claim = self._claims[index]
        if not claim.needs:
            return True
        with self._lock:
            granted = () if claim.state == GRANTED else self._limiter.ask(claim)
            has_it = claim.state == GRANTED
        _wake(other for other in granted if other is not claim)
        return has_it

    def take(self, scheduler: Scheduler, now_ns: int, index: int) -> Batch | None:
        """Return the next batch of an instance that has its resources; release the resources of its last execution.

        Without a batch its runner is woken when it has its resources, or it holds none. Called with the lock of the
        scheduler held.
        """
        if scheduler.pending_count and not self.acquire(index):
            return None
        batch = scheduler.take(now_ns, index)
        if batch is not None:
            self.start(index)
        else:
            # The queue is empty, or its batch is delayed.
            self.release(index)
        return batch

    def start(self, index: int) -> None:
        """Note that an execution begins; it lasts until the next `acquire` or `release`."""
        claim = self._claims[index]
        if claim.needs:
            with self._lock:
                self._limiter.start(claim)

    def release(self, index: int) -> None:
        """Release the resources of an instance, or cancel its wait."""
        claim = self._claims[index]
        if claim.needs:
            with self._lock:
                granted = self._limiter.release(claim)
            _wake(granted)

    def withdraw(self, index: int) -> bool:
        """Cancel the wait of an instance; return False if it does not wait or its runner is about to be woken."""
        claim = self._claims[index]
        with self._lock:
            if claim.state != WAITING:
                return False
            granted = self._limiter.release(claim)
        _wake(granted)
        return True

    def is_waiting(self, index: int) -> bool:
        """Return whether a waiting instance is going to be woken."""
        return self._claims[index].state != IDLE

    def usage(self) -> Sequence[ResourceUsage]:
        """Return the state of the resources of the instances."""
        needed = {resource for claim in self._claims for resource in claim.needs}
        return [usage for usage in self._resources.usage() if usage.resource in needed]

    def close(self) -> None:
        """Remove all claims; the instances do not execute any more."""
        with self._lock:
            granted = self._limiter.unregister(self._claims)
            self._resources.log_limits()
        _wake(granted)


def _claims_of(config: ModelConfig) -> list[Claim]:
    """Return the claim of each instance of a model, in order; its instance groups are complete."""
    return [
        Claim(_needs(group, device), group.rate_limiter.priority)
        for group in groups(config)
        for _ in range(group.count)
        for device in group.gpus or (0,)
    ]


def _needs(group: ModelInstanceGroup, device: int) -> dict[Resource, int]:
    needs: dict[Resource, int] = {}
    for resource in group.rate_limiter.resources:
        if resource.count:
            key = Resource(resource.name, None if getattr(resource, "global") else device)
            needs[key] = resource.count
    return needs


def _wake(claims: Iterable[Claim]) -> None:
    for claim in claims:
        claim.owner.wake_now()


def needs_resources(config: ModelConfig) -> bool:
    """Return whether any instance of a model needs resources to execute."""
    return any(resource.count for group in groups(config) for resource in group.rate_limiter.resources)
