"""The rate limiter in one of several processes: what is granted is the owner's decision, which comes as a message.

An instance asks and is told to wait; the answer wakes it, as the end of another instance's execution does in a server
of one process.
"""

import itertools
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import invalid_argument
from naiad.engine.resource_owner import NOTHING, Grant, Step, Suspicion, Terms
from naiad.engine.resources import ModelResources, claims_of
from naiad.options.limits import ResourceAmount
from naiad.scheduler.rate_limiter import EXECUTING, GRANTED, IDLE, WAITING, Claim, RateLimiter, Usage


class Owner(Protocol):
    """How the owner of the resources is reached; callable on any thread, in order."""

    def register(self, terms: Sequence[Terms]) -> str:
        """Tell what instances need, and return why that cannot be, or nothing; blocks, never on the event loop."""

    def take(self, step: Step) -> None:
        """Tell what becomes of a claim."""

    def suspect(self, suspicion: Suspicion) -> None:
        """Tell what is held until what is waited for is granted."""

    def unregister(self, numbers: Collection[int]) -> None:
        """Tell that there are no such claims any more."""


class _Asked:
    """How this process speaks of a claim."""

    __slots__ = ("claim", "number", "round")

    def __init__(self, claim: Claim, number: int) -> None:
        self.claim = claim
        self.number = number
        self.round = 0


class SharedResources:
    """The resources of a server of several processes, as the instances of this one see them."""

    def __init__(self, amounts: Sequence[ResourceAmount], owner: Owner) -> None:
        """`amounts` are those that the owner has."""
        self._owner = owner
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._asked: dict[Claim, _Asked] = {}
        self._claims: dict[int, _Asked] = {}
        self._told = NOTHING
        self._own = RateLimiter(amounts)
        """Knows the limits and the claims of this process; whose turn it is is not for it to say."""

    def register(self, config: ModelConfig) -> ModelResources:
        """Take in the instances of a model version whose instance groups are complete, in their order; blocks.

        Raises InferError(INVALID_ARG) when one of them could never execute.
        """
        claims = claims_of(config)
        with self._lock:
            self._own.register(claims)
            asked = [_Asked(claim, next(self._numbers)) for claim in claims]
        problem = self._owner.register(
            [Terms(each.number, dict(each.claim.needs), each.claim.priority) for each in asked]
        )
        with self._lock:
            if problem:
                self._own.unregister(claims)
                raise invalid_argument(problem)
            for each in asked:
                self._asked[each.claim] = self._claims[each.number] = each
        return ModelResources(self, claims)

    def usage(self) -> Sequence[Usage]:
        """Nothing: the owner knows, and tells it as metrics."""
        return ()

    def unregister(self, claims: Sequence[Claim]) -> None:
        """Forget claims."""
        with self._lock:
            for claim in claims:
                claim.state = IDLE
            self._own.unregister(claims)
            numbers = [self._asked.pop(claim).number for claim in claims if claim in self._asked]
            for number in numbers:
                del self._claims[number]
            self._owner.unregister(numbers)

    def acquire(self, claim: Claim) -> bool:
        """Ask for what a claim needs, giving back what it held; False when its driver will be woken instead."""
        with self._lock:
            if claim.state == GRANTED:
                return True
            if claim.state != WAITING and claim in self._asked:
                self._tell(claim, WAITING)
            return False

    def start(self, claim: Claim) -> None:
        """Note that an execution begins; the owner learns it with the next that it is told of the claim."""
        with self._lock:
            claim.state = EXECUTING

    def release(self, claim: Claim) -> None:
        """Give back what a claim holds, or end its waiting."""
        with self._lock:
            if claim.state != IDLE:
                self._tell(claim, IDLE)

    def withdraw(self, claim: Claim) -> bool:
        """End the waiting of a claim; False when it did not wait, or is about to be woken."""
        with self._lock:
            if claim.state != WAITING:
                return False
            self._tell(claim, IDLE)
            return True

    def is_barred(self, claim: Claim, holders: Collection[int]) -> bool:
        """Whether a claim cannot be granted while the instances with these ids, all of this process, hold theirs."""
        with self._lock:
            return self._own.is_barred(claim, holders)

    def waiting(self) -> set[int]:
        """Return the ids of the instances that wait for what they need."""
        with self._lock:
            return {claim.holder for claim in self._asked if claim.state == WAITING}

    def suspect(self, holders: Collection[int], waiting: Collection[int]) -> Suspicion:
        """Tell the owner which instances keep what they hold unless one of those that wait is granted what it needs.

        It is told again and again, so that it knows what was so at the same time in all processes. Return what was
        told.
        """
        with self._lock:
            held = [number for claim, number in self._numbered(holders) if claim.state in (GRANTED, EXECUTING)]
            asked = [number for claim, number in self._numbered(waiting) if claim.state == WAITING]
            suspicion = Suspicion(frozenset(held), frozenset(asked)) if asked else NOTHING
            if suspicion is not NOTHING or self._told is not NOTHING:
                self._owner.suspect(suspicion)
            self._told = suspicion
            return suspicion

    def _numbered(self, holders: Collection[int]) -> Iterator[tuple[Claim, int]]:
        return ((claim, asked.number) for claim, asked in self._asked.items() if claim.holder in holders)

    def granted(self, grants: Iterable[Grant]) -> None:
        """Wake those who may execute now; called when the owner says so."""
        with self._lock:
            claims = [claim for grant in grants if (claim := self._waiting(grant)) is not None]
            for claim in claims:
                claim.state = GRANTED
        for claim in claims:
            claim.owner.wake_now()

    def _waiting(self, grant: Grant) -> Claim | None:
        """Return the claim that a grant is for, unless it has taken its question back meanwhile."""
        asked = self._claims.get(grant.number)
        if asked is None or asked.round != grant.round or asked.claim.state != WAITING:
            return None
        return asked.claim

    def _tell(self, claim: Claim, state: int) -> None:
        asked = self._asked[claim]
        has_executed, claim.state = claim.state == EXECUTING, state
        asked.round += 1
        self._owner.take(Step(asked.number, asked.round, state == WAITING, has_executed))
