"""The phases, sizes and uses of models on demand: which one is loaded, which one has to leave. Pure."""

import enum
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from naiad.config.load_policy import LoadPolicy

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_LEAST_BYTES = 64 << 10
"""What a model counts at least before it is measured."""


class ResidencePhase(enum.Enum):
    """Where a model is, see the package."""

    COLD = enum.auto()
    LOADING = enum.auto()
    LOADED = enum.auto()
    EVICTING = enum.auto()


@dataclass(frozen=True, slots=True)
class Use:
    """How a loaded model is used now."""

    last_s: float = 0.0
    """Monotonic time of its last execution, or of its last response from the cache."""
    is_busy: bool = False
    """Whether requests are queued or executing."""
    is_bound: bool = False
    """Whether a sequence lives or a stream is open: it may not be evicted."""


IDLE = Use()
Uses = Mapping[str, Use]


@dataclass(slots=True)
class Resident:
    """A model on demand."""

    name: str
    policy: LoadPolicy
    file_bytes: int
    members: frozenset[str] = frozenset()
    """The members of an ensemble."""
    phase: ResidencePhase = ResidencePhase.COLD
    charged_bytes: int = 0
    """What it takes of the budget now: estimated while it loads, then measured."""
    measured_bytes: int = 0
    """Its size when it was loaded last; 0 for never."""
    loaded_s: float = 0.0
    evicted_s: float = -math.inf
    is_protected: bool = False
    """Whether the requests that were held for it are not submitted yet."""
    is_asked: bool = False
    """Whether a request has come while it was evicted."""
    is_urgent: bool = False
    """Whether a call of a running model waits for it."""
    failure_count: int = 0
    retry_s: float = -math.inf
    reason: str = ""
    """Why its last load has failed."""


class Ask(enum.Enum):
    """What a request for a model finds."""

    READY = enum.auto()
    HELD = enum.auto()
    """It is held; a load is in progress or follows."""
    BEGIN = enum.auto()
    """It is held, and the caller begins the load."""


@dataclass(frozen=True, slots=True)
class LoadRefusal:
    """A request that is not held, because the last load has failed or the server exits."""

    reason: str
    retry_in_s: float
    """0 if there will be no other attempt."""


@dataclass(slots=True)
class Room:
    """Whether there is room for a load."""

    is_admitted: bool = False
    victims: list[list[str]] = field(default_factory=list)
    """Groups of models to evict first, ensembles before their members."""
    refusal: str = ""
    """Why there will never be room."""


class Residency:
    """The models on demand and their budget."""

    def __init__(self, budget_bytes: int = 0) -> None:
        """`budget_bytes`: 0 for no limit."""
        self.budget_bytes = budget_bytes
        self.models: dict[str, Resident] = {}
        self._line: list[str] = []
        """Loads that wait for room, in order."""
        self.is_stuck = False
        """Whether the first one in the line waits for models that cannot leave now."""
        self.used_bytes = 0
        """The charged bytes of all models."""
        self._leaving_bytes = 0
        """The part of it that models have which leave now."""
        self._counts: Counter[ResidencePhase] = Counter()
        self._above: dict[str, set[str]] = {}
        """The ensembles that contain a model."""

    # --- models -----------------------------------------------------------------------------------------------------

    def add(self, name: str, policy: LoadPolicy, file_bytes: int, members: Collection[str] = ()) -> None:
        """Add a model that is cold, or note new files of a known one, whose failures are forgotten."""
        known = self.models.get(name)
        for member in () if known is None else known.members:
            self._above[member].discard(name)
        for member in members:
            self._above.setdefault(member, set()).add(name)
        if known is None:
            self.models[name] = Resident(name, policy, file_bytes, frozenset(members))
            self._counts[ResidencePhase.COLD] += 1
            return
        known.policy, known.file_bytes, known.members = policy, file_bytes, frozenset(members)
        known.failure_count, known.retry_s, known.reason = 0, -math.inf, ""
        if known.phase is ResidencePhase.COLD:
            known.measured_bytes = 0

    def remove(self, name: str) -> None:
        """Remove a model that is no longer on demand."""
        removed = self.models.get(name)
        if removed is None:
            return
        for member in removed.members:
            self._above[member].discard(name)
        self._become(removed, ResidencePhase.COLD, 0)
        self._counts[ResidencePhase.COLD] -= 1
        del self.models[name]

    def is_first(self, name: str) -> bool:
        """Return whether a load is the first one that waits for room."""
        return bool(self._line) and self._line[0] == name

    def count(self, phase: ResidencePhase) -> int:
        """Return the number of models in a phase."""
        return self._counts[phase]

    def is_loading(self, name: str) -> bool:
        """Return whether a model loads, or waits for room."""
        return name in self.models and self.models[name].phase is ResidencePhase.LOADING

    def _become(self, model: Resident, phase: ResidencePhase, charged_bytes: int) -> None:
        """Set phase and charge; a model that does not load any more leaves the line."""
        self._counts[model.phase] -= 1
        self._counts[phase] += 1
        self.used_bytes += charged_bytes - model.charged_bytes
        self._leaving_bytes -= model.charged_bytes if model.phase is ResidencePhase.EVICTING else 0
        self._leaving_bytes += charged_bytes if phase is ResidencePhase.EVICTING else 0
        model.phase, model.charged_bytes = phase, charged_bytes
        if phase is not ResidencePhase.LOADING and model.name in self._line:
            self._line.remove(model.name)

    def of_phase(self, phase: ResidencePhase) -> list[str]:
        """Return the models in a phase."""
        return [name for name, model in self.models.items() if model.phase is phase]

    def is_answerable(self, name: str, now_s: float) -> bool:
        """Return whether a request for a model would be answered or held."""
        model = self.models.get(name)
        return model is not None and now_s >= model.retry_s

    # --- requests ---------------------------------------------------------------------------------------------------

    def ask(self, name: str, now_s: float, *, is_urgent: bool = False) -> Ask | LoadRefusal:
        """Note a request for a model. `is_urgent`: a running model waits for it.

        Raises KeyError for a model that is not on demand.
        """
        model = self.models[name]
        if model.phase is ResidencePhase.LOADED:
            return Ask.READY
        model.is_urgent = model.is_urgent or is_urgent
        if model.phase is ResidencePhase.LOADING:
            return Ask.HELD
        if now_s < model.retry_s:
            return LoadRefusal(model.reason, model.retry_s - now_s)
        if model.phase is ResidencePhase.EVICTING:
            model.is_asked = True
            return Ask.HELD
        self._begin(model)
        return Ask.BEGIN

    def _begin(self, model: Resident) -> None:
        self._become(model, ResidencePhase.LOADING, 0)
        model.is_asked = False
        self._line.append(model.name)

    # --- loads ------------------------------------------------------------------------------------------------------

    def estimate(self, name: str) -> int:
        """Return the bytes that a load of a model will add, with the members that it brings along."""
        members = [each for each in self._members_below(name) if self.models[each].phase is ResidencePhase.COLD]
        return sum(self.models[each].measured_bytes or self.file_estimate(each) for each in (name, *members))

    def file_estimate(self, name: str) -> int:
        """Return the size of a model as its files let expect it; an ensemble has none but its members."""
        model = self.models[name]
        return 0 if model.members else max(_LEAST_BYTES, model.file_bytes)

    def family(self, name: str) -> list[str]:
        """Return a model and the members below it, as far as they are on demand."""
        return [name, *sorted(self._members_below(name))] if name in self.models else []

    def room(self, name: str, look: Callable[[], Uses], now_s: float) -> Room:
        """Return whether a loading model may load now; then its estimated size is charged.

        Otherwise the caller evicts the victims, and asks again when something has changed. `look` returns how the
        loaded models are used. Only the first one in the line has others evicted, also for those behind it.
        """
        model = self.models[name]
        if not self.budget_bytes:
            return self._admit(model, 0)
        own_bytes = model.measured_bytes or model.file_bytes
        if own_bytes > self.budget_bytes:
            kind = "it took" if model.measured_bytes else "its files have"
            return Room(refusal=too_large(name, kind, own_bytes, self.budget_bytes))
        need_bytes = self.estimate(name)
        others_bytes = self.used_bytes - model.charged_bytes
        missing_bytes = others_bytes + need_bytes + self._ahead_bytes(name) - self.budget_bytes
        if missing_bytes <= 0 or not others_bytes:
            return self._admit(model, need_bytes)
        missing_bytes -= self._leaving_bytes
        if model.is_urgent:
            # It does not wait: what it waits for could be the end of its own caller.
            uses = look() if missing_bytes > 0 else {}
            victims = list(self._enough(missing_bytes, uses, now_s, {name}, idle_only=True))
            return Room(self._admit(model, need_bytes).is_admitted, victims)
        if name != self._line[0]:
            fits = others_bytes + need_bytes <= self.budget_bytes
            return self._admit(model, need_bytes) if fits and self.is_stuck else Room()
        # Each look is at all loaded models, with the lock that the loop waits for: not while enough of them leave.
        victims = list(self._enough(missing_bytes, look(), now_s, {name})) if missing_bytes > 0 else []
        self.is_stuck = not victims and not self._leaving_bytes
        return Room(victims=victims)

    def _admit(self, model: Resident, size_bytes: int) -> Room:
        self._become(model, ResidencePhase.LOADING, size_bytes)
        if model.name in self._line:
            self._line.remove(model.name)
            self.is_stuck = False
        return Room(is_admitted=True)

    def _ahead_bytes(self, name: str) -> int:
        """Return what the loads before this one in the line need: small models must not keep a large one waiting."""
        if name not in self._line:
            return 0
        return sum(self.estimate(each) for each in self._line[: self._line.index(name)])

    def loaded(self, name: str, size_bytes: int, now_s: float, *, is_protected: bool = True) -> None:
        """Note that a model is loaded, by a request, as a member or by a command."""
        model = self.models[name]
        self._become(model, ResidencePhase.LOADED, size_bytes)
        model.measured_bytes = size_bytes
        model.loaded_s = now_s
        model.is_protected = is_protected
        model.is_urgent = model.is_asked = False
        model.failure_count, model.retry_s, model.reason = 0, -math.inf, ""

    def resize(self, name: str, size_bytes: int) -> None:
        """Note that a loaded model takes more memory or less.

        The next load expects what the last one took: growth while a model executes may be of that time only.
        """
        model = self.models[name]
        self._become(model, model.phase, size_bytes)

    def release(self, name: str) -> None:
        """Note that the requests that were held for a model are submitted."""
        if name in self.models:
            self.models[name].is_protected = False

    def failed(self, name: str, reason: str, now_s: float) -> None:
        """Note that a load has failed: the next one begins after a pause, twice as long each time.

        A model that a command or an ensemble has brought meanwhile stays as it is.
        """
        model = self.models[name]
        if model.phase in (ResidencePhase.LOADED, ResidencePhase.EVICTING):
            return
        self._become(model, ResidencePhase.COLD, 0)
        model.is_urgent = model.is_asked = False
        model.measured_bytes = 0  # what is too large may have been measured in a bad moment: it is measured again
        model.reason = reason
        model.retry_s = now_s + min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(model.failure_count, 16))
        model.failure_count += 1

    # --- evictions --------------------------------------------------------------------------------------------------

    def begin_eviction(self, name: str) -> None:
        """Note that a loaded model leaves."""
        model = self.models[name]
        self._become(model, ResidencePhase.EVICTING, model.charged_bytes)

    def evicted(self, name: str, now_s: float) -> bool:
        """Note that a model has left; return whether a request waits for it, whose load the caller begins."""
        model = self.models[name]
        self._become(model, ResidencePhase.COLD, 0)
        model.evicted_s = now_s
        if not model.is_asked:
            return False
        self._begin(model)
        return True

    def excess(self, uses: Uses, now_s: float) -> list[list[str]]:
        """Return the groups to evict because the loaded models have grown beyond the budget."""
        if not self.budget_bytes:
            return []
        missing_bytes = self.used_bytes - self._leaving_bytes - self.budget_bytes
        return list(self._enough(missing_bytes, uses, now_s, idle_only=True))

    def idle(self, uses: Uses, now_s: float) -> list[list[str]]:
        """Return the groups to unload because no request has come for long enough."""
        found: list[list[str]] = []
        for name, model in self.models.items():
            limit_s = model.policy.idle_unload_s
            if model.phase is not ResidencePhase.LOADED or not limit_s:
                continue
            group = self._group(name, uses, now_s, frozenset())
            if group is None or any(uses.get(each, IDLE).is_busy for each in group):
                continue
            if now_s - max(model.loaded_s, self._last_s(group, uses)) >= limit_s:
                found.append(group)
        return found

    def _enough(
        self, missing_bytes: int, uses: Uses, now_s: float, keep: Collection[str] = (), *, idle_only: bool = False
    ) -> Iterator[list[str]]:
        """Yield groups to evict until they have the missing bytes: the least recently used first, busy ones last."""
        kept = frozenset(keep).union(*(self._members_below(name) for name in keep))
        groups: list[tuple[bool, float, list[str]]] = []
        if missing_bytes > 0:
            for name, model in self.models.items():
                if model.phase is ResidencePhase.LOADED and model.charged_bytes:
                    group = self._group(name, uses, now_s, kept)
                    if group is not None:
                        is_busy = any(uses.get(each, IDLE).is_busy for each in group)
                        groups.append((is_busy, self._last_s(group, uses), group))
        gone: set[str] = set()
        for is_busy, _, group in sorted(groups, key=lambda each: each[:2]):
            if missing_bytes <= 0 or (is_busy and idle_only):
                return
            left = [name for name in group if name not in gone]
            gone.update(left)
            missing_bytes -= sum(self.models[name].charged_bytes for name in left if name in self.models)
            if left:
                yield left

    def _last_s(self, group: Collection[str], uses: Uses) -> float:
        return max(max(uses.get(name, IDLE).last_s, self.models[name].loaded_s) for name in group)

    def _group(self, name: str, uses: Uses, now_s: float, kept: Collection[str]) -> list[str] | None:
        """Return a loaded model behind the loaded ensembles that contain it; None if one of them may not leave."""
        group = [*self._loaded_above(name), name]
        for each in group:
            model = self.models[each]
            if (
                model.phase is ResidencePhase.LOADING
                or model.is_protected
                or each in kept
                or uses.get(each, IDLE).is_bound
            ):
                return None
            if now_s - model.loaded_s < model.policy.min_residence_s:
                return None
        return group

    def _loaded_above(self, name: str) -> list[str]:
        """Return the ensembles that contain a model and load or are loaded, outer ones first."""
        order: list[str] = []
        seen = {name}

        def visit(member: str) -> None:
            for other in self._above.get(member, ()):
                if other not in seen and self.models[other].phase in (ResidencePhase.LOADING, ResidencePhase.LOADED):
                    seen.add(other)
                    visit(other)
                    order.append(other)

        visit(name)
        return order

    def _members_below(self, name: str) -> set[str]:
        found: set[str] = set()
        waiting = [name] if name in self.models else []
        while waiting:
            for member in self.models[waiting.pop()].members:
                if member in self.models and member not in found:
                    found.add(member)
                    waiting.append(member)
        return found - {name}


def too_large(name: str, kind: str, size_bytes: int, budget_bytes: int) -> str:
    """Return why a model can never be loaded."""
    return (
        f"model '{name}' does not fit into --model-memory-budget: {kind} {size_bytes} bytes, the budget is "
        f"{budget_bytes} bytes; raise the budget, or load the model at start with the parameter load_policy "
        '"pinned"'
    )
