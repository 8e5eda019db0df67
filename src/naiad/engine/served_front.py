"""What stands before a served version and passes its requests on, or not, tells about it what the version tells."""

from collections.abc import Mapping, Sequence

from naiad.backend.api import Instance
from naiad.core.adaptive_state import AdaptiveState
from naiad.engine.served import Served
from naiad.scheduler.rate_limiter import Usage


class ServedFront:
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

    def give_up(self, reason: str) -> None:
        """Answer all that the version has."""
        self._served.give_up(reason)

    def stop(self, timeout_s: float) -> bool:
        """Stop the version; those who wait for its answers get them or its refusal."""
        return self._served.stop(timeout_s)
