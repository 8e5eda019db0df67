"""Processes that share resources, without processes: messages wait until they are delivered."""

from collections import deque
from collections.abc import Collection, Sequence

from naiad.config.model_config_pb2 import ModelConfig
from naiad.engine.resource_owner import Grant, ResourceOwner, Step, Suspicion, Terms
from naiad.engine.resources import ModelResources
from naiad.engine.shared_resources import SharedResources
from naiad.options.limits import ResourceAmount


def model(*counts: int, priority: int = 1, is_global: bool = True) -> ModelConfig:
    """A model whose instances need so much of R."""
    config = ModelConfig(name="m")
    for count in counts:
        group = config.instance_group.add(count=1)
        group.rate_limiter.priority = priority
        group.rate_limiter.resources.add(name="R", count=count, **{"global": is_global})
    return config


class InstanceRunner:
    def __init__(self) -> None:
        self.woken = 0

    def wake_now(self) -> None:
        self.woken += 1


class Process:
    """A process with its way to the owner, on which messages wait until they are delivered."""

    def __init__(self, server: "Server", amounts: Sequence[ResourceAmount]) -> None:
        self._server = server
        self.sent: deque[Step | Suspicion | Collection[int]] = deque()
        self.refused = 0
        """How often it was told to refuse a call."""
        self.received: deque[Sequence[Grant]] = deque()
        self.resources = SharedResources(amounts, self)

    def load(self, config: ModelConfig) -> tuple[ModelResources, list[InstanceRunner]]:
        claims = self.resources.register(config)
        runners = [InstanceRunner() for _ in config.instance_group]
        claims.bind(runners, runners)  # type: ignore[arg-type]  # they are told apart by identity
        return claims, runners

    # --- shared_resources.Owner ---

    def register(self, terms: Sequence[Terms]) -> str:
        self.deliver()  # it comes in order, and is waited for
        return self._server.owner.register(self, terms)

    def take(self, step: Step) -> None:
        self.sent.append(step)

    def suspect(self, suspicion: Suspicion) -> None:
        self.sent.append(suspicion)

    def unregister(self, numbers: Collection[int]) -> None:
        self.sent.append(numbers)

    # --- the messages ---

    def deliver(self, count: int = 1000) -> None:
        """Bring the oldest messages to the owner."""
        for _ in range(min(count, len(self.sent))):
            message = self.sent.popleft()
            if isinstance(message, Step):
                self._server.owner.take(self, [message])
            elif isinstance(message, Suspicion):
                self.refused += self._server.owner.suspect(self, message)
            else:
                self._server.owner.unregister(self, message)

    def receive(self, count: int = 1000) -> None:
        """Take the oldest messages of the owner."""
        for _ in range(min(count, len(self.received))):
            self.resources.granted(self.received.popleft())


class Server:
    def __init__(self, *amounts: ResourceAmount, process_count: int = 2) -> None:
        self.owner = ResourceOwner[Process](amounts, lambda process, grants: process.received.append(grants))
        self.processes = [Process(self, amounts) for _ in range(process_count)]

    def settle(self) -> None:
        while any(process.sent or process.received for process in self.processes):
            for process in self.processes:
                process.deliver()
                process.receive()

    def held(self) -> int:
        return sum(usage.held for usage in self.owner.usage())

    def end(self, process: Process) -> None:
        """What a killed process has sent arrives; then it is gone."""
        process.deliver()
        self.processes.remove(process)
        self.owner.lose(process)
