"""The rate limiter of several processes: one owner knows all claims, and tells whoever made them what is granted.

A process says what its instances need, asks and gives back; the owner grants by turn, over all processes, as it is in
one. What comes from a process comes in order, and so does what goes to it; nothing is promised between processes.

An execution gets all that it needs at once, so executions alone never wait for each other. Calls of models can: their
callers hold something while they wait for others to execute. Which of its calls are stuck unless it is granted more
is for each process to say; the owner finds those that never will be.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from naiad.core.errors import InferError
from naiad.engine.resources import log_limits
from naiad.options.limits import ResourceAmount
from naiad.scheduler.rate_limiter import Claim, RateLimiter, Resource, Usage

_P = TypeVar("_P", bound=Hashable)
"""What stands for a process."""


class Terms(NamedTuple):
    """What an instance of a process needs; `number` is unique in the process."""

    number: int
    needs: dict[Resource, int]
    priority: int


class Step(NamedTuple):
    """What becomes of a claim: it asks, giving back what it held, or only gives back or stops waiting."""

    number: int
    round: int
    """Tells times of asking apart: a grant may cross the message that takes the question back."""
    asks: bool
    has_executed: bool
    """Whether there was an execution with what was granted before, which moves the turn on."""


class Grant(NamedTuple):
    """A claim may execute."""

    number: int
    round: int


class Suspicion(NamedTuple):
    """What a process finds stuck: calls of models, if some claims of it are never granted."""

    held: frozenset[int]
    """Claims that keep what they have for as long as all of `waiting` wait."""
    waiting: frozenset[int]


NOTHING = Suspicion(frozenset(), frozenset())


class _Told(NamedTuple):
    """A suspicion and when it was told, by the count of all that were told."""

    suspicion: Suspicion
    first: int
    last: int


class _Asker(Generic[_P]):
    """Whose claim it is."""

    __slots__ = ("number", "process", "round")

    def __init__(self, process: _P, number: int) -> None:
        self.process = process
        self.number = number
        self.round = 0


class ResourceOwner(Generic[_P]):
    """The resources of a server of several processes; for one thread."""

    def __init__(self, amounts: Sequence[ResourceAmount], tell: Callable[[_P, Sequence[Grant]], object]) -> None:
        """`amounts` is how much there is in all processes together; without any, as much as the largest claim.

        `tell` tells a process what it has been granted.
        """
        self._limiter = RateLimiter(amounts)
        self._tell = tell
        self._claims: dict[_P, dict[int, Claim]] = {}
        self._suspicions: dict[_P, _Told] = {}
        self._told_count = 0

    def register(self, process: _P, terms: Sequence[Terms]) -> str:
        """Take in what instances of a process need, all or nothing; return why that cannot be, or nothing."""
        claims = {each.number: Claim(each.needs, each.priority, _Asker(process, each.number)) for each in terms}
        for claim in claims.values():
            claim.holder = id(claim)
        try:
            granted = self._limiter.register([*claims.values()])
        except InferError as error:
            return error.message
        self._claims.setdefault(process, {}).update(claims)
        log_limits(self._limiter)
        self._announce(granted)
        return ""

    def unregister(self, process: _P, numbers: Collection[int]) -> None:
        """Forget claims of a process, and what they hold."""
        own = self._claims.get(process, {})
        self._announce(self._limiter.unregister([own.pop(number) for number in numbers if number in own]))
        log_limits(self._limiter)

    def take(self, process: _P, steps: Iterable[Step]) -> None:
        """Take the steps of a process, in order."""
        own = self._claims.get(process, {})
        granted: list[Claim] = []
        for step in steps:
            claim = own.get(step.number)
            if claim is not None:
                granted += self._step(claim, step)
        self._announce(granted)

    def _step(self, claim: Claim, step: Step) -> list[Claim]:
        if step.has_executed:
            self._limiter.start(claim)
        if not step.asks:
            return self._limiter.release(claim)
        claim.owner.round = step.round
        return self._limiter.ask(claim)

    def lose(self, process: _P) -> None:
        """Give back all that a process holds: it has ended."""
        claims = self._claims.pop(process, {})
        self._suspicions.pop(process, None)
        if claims:
            self._announce(self._limiter.unregister([*claims.values()]))
            log_limits(self._limiter)

    def suspect(self, process: _P, suspicion: Suspicion) -> bool:
        """Take in what a process finds stuck; True when it is, and the process has to refuse a call.

        Two things have to hold: with what the stuck ones keep, none of the claims that they wait for can be granted;
        and all of them have told so again after the last of them has changed its mind. What is stuck stays so, so it
        was all true at the same time.
        """
        self._told_count += 1
        told = self._suspicions.pop(process, None)
        if suspicion == NOTHING:
            return False
        first = told.first if told is not None and told.suspicion == suspicion else self._told_count
        self._suspicions[process] = _Told(suspicion, first, self._told_count)
        stuck = self._find_stuck()
        if process not in stuck or min(each.last for each in stuck.values()) <= max(
            each.first for each in stuck.values()
        ):
            return False
        # What is told next is of the time before the call was refused, or else something new.
        self._suspicions[process] = _Told(suspicion, self._told_count, self._told_count)
        return True

    def _find_stuck(self) -> dict[_P, _Told]:
        """Return the processes that wait for what they and others of them keep for as long."""
        stuck = dict(self._suspicions)
        while stuck:
            kept = {
                id(claim) for process, told in stuck.items() for claim in self._find(process, told.suspicion.held)
            }
            left = {
                process: told
                for process, told in stuck.items()
                if all(self._limiter.is_barred(claim, kept) for claim in self._find(process, told.suspicion.waiting))
            }
            if len(left) == len(stuck):
                break
            stuck = left
        return stuck

    def _find(self, process: _P, numbers: Iterable[int]) -> list[Claim]:
        own = self._claims.get(process, {})
        return [own[number] for number in numbers if number in own]

    def usage(self) -> list[Usage]:
        """Return the state of every resource."""
        return self._limiter.usage()

    def _announce(self, granted: Iterable[Claim]) -> None:
        grants: dict[_P, list[Grant]] = {}
        for claim in granted:
            asker: _Asker[_P] = claim.owner
            grants.setdefault(asker.process, []).append(Grant(asker.number, asker.round))
        for process, own in grants.items():
            self._tell(process, own)
