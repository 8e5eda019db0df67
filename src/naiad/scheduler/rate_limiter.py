"""The rate limiter: which instances, of all models, may execute when they share resources.

An instance *claims* all its resources at once, so no instance holds one resource while it waits for another. Waiting
claims are granted by turn: each execution moves an instance's turn on by its priority, and the lowest turn goes
first. Of two instances that always wait, the one of priority 2 executes half as often as the one of priority 1
(Triton: `exec_count * priority`). As in Triton, loading an instance counts as two executions: initialization and
warm-up.

Later claims do not get resources that an earlier claim waits for, so small claims cannot starve a large one. Claims
without such resources pass.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from naiad.core.errors import invalid_argument
from naiad.options.execution_limits import ResourceAmount

IDLE, WAITING, GRANTED, EXECUTING = range(4)
_EXECUTIONS_OF_LOADING = 2


class Resource(NamedTuple):
    """A resource of executions, in units that the configuration defines."""

    name: str
    device: int | None
    """None for a resource of the whole server."""


class ResourceUsage(NamedTuple):
    """A resource at one moment."""

    resource: Resource
    limit: int
    held: int
    waiting: int
    """Instances that wait and need it."""


class Claim:
    """The resources of one instance for an execution, and the state of the claim."""

    __slots__ = ("needs", "owner", "priority", "state", "turn")

    def __init__(self, needs: Mapping[Resource, int], priority: int = 1, owner: Any = None) -> None:
        self.needs = needs
        self.priority = max(1, priority)
        """Triton: 0 counts as 1."""
        self.owner = owner
        """Receives the notification that the claim was granted."""
        self.state = IDLE
        self.turn = _EXECUTIONS_OF_LOADING * self.priority


def _by_device(resource: Resource) -> tuple[int, str]:
    return (-1 if resource.device is None else resource.device, resource.name)


class RateLimiter:
    """The resources of a server and the claims of its instances; pure and not thread-safe."""

    def __init__(self, amounts: Sequence[ResourceAmount] = ()) -> None:
        """`amounts` limits resources; without any, the largest claim sets the amount of each resource."""
        self._amounts = amounts
        self._claims: dict[Claim, None] = {}
        self._limits: dict[Resource, int] = {}
        self._held: dict[Resource, int] = {}
        self._waiting: list[Claim] = []

    # --- claims come and go -----------------------------------------------------------------------------------------

    def register(self, claims: Sequence[Claim]) -> list[Claim]:
        """Add the claims of a model version, all or none; return the claims granted now.

        A version that needs more may raise a limit. Raises InferError(INVALID_ARG) when a claim can never be granted,
        or a resource is both global and per device.
        """
        self._limits = self._limits_of([*self._claims, *claims])
        self._claims.update(dict.fromkeys(claims))
        return self._grant()

    def unregister(self, claims: Sequence[Claim]) -> list[Claim]:
        """Remove claims of stopped instances; return the claims granted now."""
        for claim in claims:
            self._settle(claim)
            self._claims.pop(claim, None)
        self._limits = self._limits_of(list(self._claims))
        self._held = {resource: count for resource, count in self._held.items() if count}
        return self._grant()

    def _limits_of(self, claims: Iterable[Claim]) -> dict[Resource, int]:
        largest: dict[Resource, int] = {}
        for claim in claims:
            for resource, count in claim.needs.items():
                largest[resource] = max(count, largest.get(resource, 0))
        for resource in largest:
            if resource.device is not None and Resource(resource.name, None) in largest:
                raise invalid_argument(
                    f'Resource "{resource.name}" is present as both global and device-specific resource in the model '
                    "configuration. Write 'global' the same way wherever it is named"
                )
        return {resource: self._limit_of(resource, count) for resource, count in largest.items()}

    def _limit_of(self, resource: Resource, needed: int) -> int:
        if not self._amounts:
            return needed
        # Triton: a global resource has the largest amount of any device; an unlisted resource does not exist.
        fitting = [
            amount.count or 0
            for amount in self._amounts
            if amount.name == resource.name
            and (resource.device is None or amount.device is None or amount.device == resource.device)
        ]
        limit = max(fitting, default=0)
        if limit < needed:
            device = "" if resource.device is None else f":{resource.device}"
            raise invalid_argument(
                f'Resource count for "{resource.name}" is limited to {limit} which will prevent scheduling of one or '
                f"more model instances, the minimum required count is {needed}; start the server with "
                f"--rate-limit-resource={resource.name}:{needed}{device}, or lower 'count' in 'rate_limiter'"
            )
        return limit

    # --- executions -------------------------------------------------------------------------------------------------

    def ask(self, claim: Claim) -> list[Claim]:
        """Claim the resources of an instance and release its held ones; return the claims granted now.

        An unregistered claim is never granted. The other claims returned have waited; `claim.state` shows whether
        this claim is among them. Releasing and claiming in one step keeps the turns: an instance that is always busy
        always competes.
        """
        if claim.state == EXECUTING:
            self._give_back(claim)
        elif claim.state == IDLE and claim in self._claims:
            self._skip_missed_turns(claim)
        if claim.state == WAITING or claim not in self._claims:
            return []
        claim.state = WAITING
        self._waiting.append(claim)
        return self._grant()

    def start(self, claim: Claim) -> None:
        """Note that an instance executes with its granted resources."""
        claim.state = EXECUTING
        claim.turn += claim.priority

    def release(self, claim: Claim) -> list[Claim]:
        """Release the resources of an instance, or cancel its waiting claim; return the claims granted now."""
        if claim.state == IDLE:
            return []
        self._settle(claim)
        return self._grant()

    def limits_text(self) -> str:
        """Return the amount of every resource, in the form of Triton's log."""
        lines = ["", "Max Resource Map===>"]
        device: int | None = -1
        for resource in sorted(self._limits, key=_by_device):
            if resource.device != device:
                device = resource.device
                lines.append(f"\tDevice: {'GLOBAL' if device is None else device}")
            lines.append(f"\t\tResource: {resource.name}\t Count: {self._limits[resource]}")
        return "\n".join([*lines, ""])

    def usage(self) -> list[ResourceUsage]:
        """Return the state of every claimed resource, by name and device."""
        usages = []
        for resource in sorted(
            self._limits, key=lambda each: (each.name, -1 if each.device is None else each.device)
        ):
            waiting = sum(resource in claim.needs for claim in self._waiting)
            usages.append(ResourceUsage(resource, self._limits[resource], self._held.get(resource, 0), waiting))
        return usages

    def _skip_missed_turns(self, claim: Claim) -> None:
        """Advance the turn of an instance that has been idle to the turns of its competitors; it would starve them
        otherwise.

        It may lag by the executions counted for loading. Otherwise the order of first claims would matter.
        """
        competitors = [
            # Triton: an execution counts when it ends.
            (other.turn - (other.priority if other.state == EXECUTING else 0), other.priority)
            for other in self._claims
            if other.state != IDLE and not other.needs.keys().isdisjoint(claim.needs)
        ]
        if competitors:
            turn, priority = min(competitors)
            if turn - claim.turn > _EXECUTIONS_OF_LOADING * priority:
                claim.turn = turn

    def _grant(self) -> list[Claim]:
        granted: list[Claim] = []
        kept_back: set[Resource] = set()
        waiting: list[Claim] = []
        # Sorting is stable: of equal turns, the longest wait goes first.
        for claim in sorted(self._waiting, key=lambda each: each.turn):
            if kept_back.isdisjoint(claim.needs) and self._is_free(claim):
                for resource, count in claim.needs.items():
                    self._held[resource] = self._held.get(resource, 0) + count
                claim.state = GRANTED
                granted.append(claim)
            else:
                kept_back.update(claim.needs)
                waiting.append(claim)
        self._waiting = waiting
        return granted

    def _is_free(self, claim: Claim) -> bool:
        return all(
            self._held.get(resource, 0) + count <= self._limits[resource] for resource, count in claim.needs.items()
        )

    def _settle(self, claim: Claim) -> None:
        if claim.state == WAITING:
            self._waiting.remove(claim)
        elif claim.state != IDLE:
            self._give_back(claim)
        claim.state = IDLE

    def _give_back(self, claim: Claim) -> None:
        for resource, count in claim.needs.items():
            self._held[resource] -= count
