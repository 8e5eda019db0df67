"""The phases, sizes and uses of models on demand: which one is loaded, which one has to leave. Pure."""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from naiad.config.load_policy import LoadPolicy
from naiad.core.model import name_of
from naiad.repository.control.on_demand.memory.budgets import HOST, Amounts, too_large, total_of
from naiad.repository.control.on_demand.resident import IDLE, Ask, LoadRefusal, ResidencePhase, Resident, Room, Uses

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_LEAST_BYTES = 64 << 10
"""What a model counts at least before it is measured."""


class Residency:
    """The models on demand and their budgets. A load takes what it needs of all budgets at once, or waits for all."""

    def __init__(self, budgets: Amounts | None = None) -> None:
        """`budgets`: those without an entry, or with 0, have no limit."""
        self._limits = {budget: limit_bytes for budget, limit_bytes in (budgets or {}).items() if limit_bytes}
        self.models: dict[str, Resident] = {}
        self._line: dict[str, frozenset[str]] = {}
        """Loads that wait for room, in order, with the budgets that they wait for."""
        self._stuck: set[str] = set()
        """The first loads in the line that wait for models that cannot leave now."""
        self.used: Counter[str] = Counter()
        """What all models are charged, by budget."""
        self.unexplained: Amounts = {}
        """What there is besides, or less than that if negative; see `ModelSizes.note_unexplained`."""
        self._leaving: Counter[str] = Counter()
        """The part of it that models have which leave now."""
        self._counts: Counter[ResidencePhase] = Counter()
        self._above: dict[str, set[str]] = {}
        """The ensembles that contain a model."""

    # --- models -----------------------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        policy: LoadPolicy,
        file_bytes: int,
        members: Collection[str] = (),
        gpus: Collection[str] = (),
    ) -> None:
        """Add a model that is cold, or note new files of a known one, whose failures are forgotten."""
        known = self.models.get(name)
        for member in () if known is None else known.members:
            self._above[member].discard(name)
        for member in members:
            self._above.setdefault(member, set()).add(name)
        if known is None:
            self.models[name] = Resident(name, policy, file_bytes, frozenset(members), frozenset(gpus))
            self._counts[ResidencePhase.COLD] += 1
            return
        known.policy, known.file_bytes = policy, file_bytes
        known.members, known.gpus = frozenset(members), frozenset(gpus)
        known.failure_count, known.retry_s, known.reason = 0, -math.inf, ""
        if known.phase is ResidencePhase.COLD:
            known.measured = {}

    def remove(self, name: str) -> None:
        """Remove a model that is no longer on demand."""
        removed = self.models.get(name)
        if removed is None:
            return
        for member in removed.members:
            self._above[member].discard(name)
        self._become(removed, ResidencePhase.COLD, {})
        self._counts[ResidencePhase.COLD] -= 1
        del self.models[name]

    @property
    def is_stuck(self) -> bool:
        """Whether a first load in the line waits for models that cannot leave now."""
        return bool(self._stuck)

    def first(self) -> list[str]:
        """Return the loads that are the first ones to wait for each of their budgets; only these evict others."""
        found: list[str] = []
        taken: set[str] = set()
        for name, budgets in self._line.items():
            if taken.isdisjoint(budgets):
                found.append(name)
            taken.update(budgets)
        return found

    def waits_for(self, name: str) -> frozenset[str]:
        """Return the budgets that a load waits for."""
        return self._line.get(name, frozenset())

    def count(self, phase: ResidencePhase) -> int:
        """Return the number of models in a phase."""
        return self._counts[phase]

    def is_loading(self, name: str) -> bool:
        """Return whether a model loads, or waits for room."""
        return name in self.models and self.models[name].phase is ResidencePhase.LOADING

    def _become(self, model: Resident, phase: ResidencePhase, charged: Amounts) -> None:
        """Set phase and charge; a model that does not load any more leaves the line."""
        self._counts[model.phase] -= 1
        self._counts[phase] += 1
        self.used.subtract(model.charged)
        self.used.update(charged)
        if model.phase is ResidencePhase.EVICTING:
            self._leaving.subtract(model.charged)
        if phase is ResidencePhase.EVICTING:
            self._leaving.update(charged)
        model.phase, model.charged = phase, charged
        if phase is not ResidencePhase.LOADING:
            self._leave_line(model.name)

    def _leave_line(self, name: str) -> None:
        self._line.pop(name, None)
        self._stuck.discard(name)

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
        self._become(model, ResidencePhase.LOADING, {})
        model.is_asked = False
        self._line[model.name] = frozenset(self._limits)  # any of them, as long as it has not looked

    # --- loads ------------------------------------------------------------------------------------------------------

    def estimate(self, name: str) -> Amounts:
        """Return what a load of a model will add, with the members that it brings along."""
        family = {name, *self.cold_family(name)}
        return total_of([self.models[each].measured or self.file_estimate(each) for each in family])

    def file_estimate(self, name: str) -> Amounts:
        """Return the sizes of a model as its files let expect them; an ensemble has none but its members."""
        model = self.models[name]
        return {} if model.members else dict.fromkeys((HOST, *model.gpus), max(_LEAST_BYTES, model.file_bytes))

    def family(self, name: str) -> list[str]:
        """Return a model and the members below it, as far as they are on demand."""
        return [name, *sorted(self._members_below(name))] if name in self.models else []

    def cold_family(self, name: str) -> list[str]:
        """Return which of a model and the members below it are not loaded."""
        return [each for each in self.family(name) if self.models[each].phase is ResidencePhase.COLD]

    def room(self, name: str, look: Callable[[], Uses], now_s: float) -> Room:
        """Return whether a loading model may load now; then its estimated size is charged.

        Otherwise the caller evicts the victims, and asks again when something has changed. `look` returns how the
        loaded models are used. Only the first one in the line has others evicted, also for those behind it.
        """
        model = self.models[name]
        if not self._limits:
            return self._admit(model, {})
        refusal = self._refusal_before_load(name)
        if refusal:
            return Room(refusal=refusal)
        need = self.estimate(name)
        missing = self._missing(model, need, self._ahead(name))
        if not missing:
            return self._admit(model, need)
        left = {budget: size_bytes - self._leaving[budget] for budget, size_bytes in missing.items()}
        if model.is_urgent:
            # It does not wait: what it waits for could be the end of its own caller.
            victims = self._victims(left, look, now_s, {name}, idle_only=True)
            return Room(self._admit(model, need).is_admitted, victims)
        self._line[name] = frozenset(missing)
        first = self.first()
        ahead = [each for each in self._before(name) if each in first]
        alone = self._missing(model, need, {}, has_growth=False)
        found = self._victims(left, look, now_s, {name}, alone) if name in first else None
        if (ahead and self._stuck.issuperset(ahead) and not self._missing(model, need, {})) or (
            found == [] and not alone and self._are_others_bound(name, missing, look())
        ):
            return self._admit(model, need)  # in the second case all that can leave has left, and growth does not
        return self._wait_in_line(name, found)

    def _wait_in_line(self, name: str, victims: list[list[str]] | None) -> Room:
        """Return the victims of a load that is a first one; None of one that is not."""
        if victims or any(self._leaving[budget] for budget in self._line[name]):
            self._stuck.discard(name)
        elif victims is not None:
            self._stuck.add(name)
        return Room(victims=victims or [])

    def _ahead(self, name: str) -> Amounts:
        """Return what the loads before this one in the line need: small models must not keep a large one waiting."""
        return total_of([self.estimate(each) for each in self._before(name)])

    def _before(self, name: str) -> list[str]:
        """Return the loads before one in the line."""
        return list(itertools.takewhile(lambda each: each != name, self._line)) if name in self._line else []

    def _refusal_before_load(self, name: str) -> str:
        """Return why a model can never be loaded with its members, as far as their last loads or files show."""
        family = [self.models[each] for each in self.family(name)]
        sizes = [each.measured or dict.fromkeys((HOST, *each.gpus), each.file_bytes) for each in family]
        kind = "it took" if len(family) == 1 and family[0].measured else "its files have"
        return self.refusal_of(name, total_of(sizes), kind if len(family) == 1 else "its members have")

    def refusal_after_load(self, name: str) -> str:
        """Return why a model that was loaded has to leave; "" if it fits with its members."""
        sizes = total_of([self.models[each].charged for each in self.family(name)])
        return self.refusal_of(name, sizes, "it took")

    def refusal_of(self, name: str, sizes: Amounts, kind: str) -> str:
        """Return why a model of these sizes can never be loaded; "" if it can. `kind` begins what is said of them."""
        for budget, limit_bytes in self._limits.items():
            if sizes.get(budget, 0) > limit_bytes:
                return too_large(name_of(name), budget, f"{kind} {sizes[budget]}", limit_bytes)
        return ""

    def _are_others_bound(self, name: str, budgets: Collection[str], uses: Uses) -> bool:
        """Return whether sequences or streams keep all that have some of these budgets, but a model's family."""
        family = (name, *self._members_below(name))
        return all(
            any(uses.get(each, IDLE).is_bound for each in (other, *self._loaded_above(other)))
            for other, model in self.models.items()
            if other not in family and _has_some(model.charged, budgets)
        )

    def _missing(self, model: Resident, need: Amounts, ahead: Amounts, *, has_growth: bool = True) -> dict[str, int]:
        """Return what is missing of each budget that a load needs, if the loads ahead get what they need.

        A budget of which no other model has anything misses nothing: there is nothing to wait for. `has_growth`:
        whether what no model explains takes room.
        """
        missing: dict[str, int] = {}
        for budget, limit_bytes in self._limits.items():
            others_bytes = self.used[budget] - model.charged.get(budget, 0)
            asked_bytes = need.get(budget, 0) + ahead.get(budget, 0)
            growth_bytes = self.unexplained.get(budget, 0)
            size_bytes = (
                others_bytes + asked_bytes + (growth_bytes if has_growth else min(0, growth_bytes)) - limit_bytes
            )
            if size_bytes > 0 and others_bytes and need.get(budget, 0):
                missing[budget] = size_bytes
        return missing

    def _admit(self, model: Resident, charged: Amounts) -> Room:
        self._become(model, ResidencePhase.LOADING, charged)
        if model.name in self._line:
            self._leave_line(model.name)
            self._stuck.clear()
        return Room(is_admitted=True)

    def loaded(self, name: str, sizes: Amounts, now_s: float, *, is_protected: bool = True) -> bool:
        """Note that a model is loaded, by a request, as a member or by a command.

        Return whether requests wait for the end of its eviction, to which this load came first.
        """
        model = self.models[name]
        is_awaited = model.is_asked
        self._become(model, ResidencePhase.LOADED, sizes)
        model.measured = sizes
        model.loaded_s = now_s
        model.is_protected = is_protected
        model.is_urgent = model.is_asked = False
        model.failure_count, model.retry_s, model.reason = 0, -math.inf, ""
        return is_awaited

    def resize(self, name: str, sizes: Amounts) -> None:
        """Note that a loaded model takes more memory or less.

        The next load expects what the last one took: growth while a model executes may be of that time only.
        """
        model = self.models[name]
        self._become(model, model.phase, sizes)

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
        self._become(model, ResidencePhase.COLD, {})
        model.is_urgent = model.is_asked = False
        for each in self.cold_family(name):
            self.models[each].measured = {}  # what is too large may have been measured in a bad moment
        model.reason = reason
        model.retry_s = now_s + min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(model.failure_count, 16))
        model.failure_count += 1

    # --- evictions --------------------------------------------------------------------------------------------------

    def begin_eviction(self, name: str) -> None:
        """Note that a loaded model leaves."""
        model = self.models[name]
        self._become(model, ResidencePhase.EVICTING, model.charged)

    def evicted(self, name: str, now_s: float) -> bool:
        """Note that a model has left; return whether a request waits for it, whose load the caller begins."""
        model = self.models[name]
        self._become(model, ResidencePhase.COLD, {})
        model.evicted_s = now_s
        if not model.is_asked:
            return False
        self._begin(model)
        return True

    def taken(self) -> Amounts:
        """Return what counts against each budget."""
        return {each: max(0, size_bytes + self.unexplained.get(each, 0)) for each, size_bytes in self.used.items()}

    def excess(self, look: Callable[[], Uses], now_s: float) -> list[list[str]]:
        """Return the groups to evict because loaded models have grown beyond a budget, or took more than expected."""
        look = functools.cache(look)
        excess = {budget: self._excess(budget, limit_bytes, look) for budget, limit_bytes in self._limits.items()}
        return self._victims(excess, look, now_s, idle_only=True)

    def _excess(self, budget: str, limit_bytes: int, look: Callable[[], Uses]) -> int:
        """Return what is taken beyond a budget, less than 0 for room.

        What no model explains makes no model leave that was loaded beside it, because no other one had anything that
        could leave: its next request would load it again, and so on.
        """
        size_bytes = self.used[budget] - self._leaving[budget] - limit_bytes
        unexplained_bytes = self.unexplained.get(budget, 0)
        if unexplained_bytes > 0 and size_bytes + unexplained_bytes > 0 and self._is_of_one_family(budget, look()):
            return size_bytes
        return size_bytes + unexplained_bytes

    def _is_of_one_family(self, budget: str, uses: Uses) -> bool:
        """Return whether all that have some of a budget and could leave are one model with its members."""
        found = {
            name
            for name, model in self.models.items()
            if model.charged.get(budget, 0)
            and model.phase is not ResidencePhase.EVICTING
            and not any(uses.get(each, IDLE).is_bound for each in (name, *self._loaded_above(name)))
        }
        return not found or any(
            found.issubset((root, *self._members_below(root)))
            for name in itertools.islice(found, 1)
            for root in (name, *self._loaded_above(name))
        )

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

    def _victims(
        self,
        missing: Amounts,
        look: Callable[[], Uses],
        now_s: float,
        keep: Collection[str] = (),
        alone: Amounts | None = None,
        *,
        idle_only: bool = False,
    ) -> list[list[str]]:
        """Return groups to evict until they have what is missing: the least recently used first, busy ones last.

        `alone`: what would be missing without the loads ahead, for a load that waits.
        """
        missing = {budget: size_bytes for budget, size_bytes in missing.items() if size_bytes > 0}
        if not missing:
            # Each look is at all loaded models, with the lock that the loop waits for: not while enough leave.
            return []
        kept = frozenset(keep).union(*(self._members_below(name) for name in keep))
        behind = frozenset(self._line).difference(keep, *map(self._before, keep))
        uses = look()
        if self._is_hopeless(alone or {}, uses):
            return []  # others would leave again and again for a load that cannot begin
        groups: list[tuple[bool, float, list[str]]] = []
        for name, model in self.models.items():
            if model.phase is ResidencePhase.LOADED and _has_some(model.charged, missing):
                group = self._group(name, uses, now_s, kept, behind)
                if group is not None:
                    is_busy = any(uses.get(each, IDLE).is_busy for each in group)
                    groups.append((is_busy, self._last_s(group, uses), group))
        return list(self._enough(missing, sorted(groups, key=lambda each: each[:2]), idle_only=idle_only))

    def _is_hopeless(self, missing: Amounts, uses: Uses) -> bool:
        """Return whether live sequences and streams keep so much that no eviction makes enough room now."""
        bound = [name for name, use in uses.items() if use.is_bound and name in self.models]
        kept = total_of([self.models[name].charged for name in bound])
        return any(self.used[budget] - kept[budget] < missing.get(budget, 0) for budget in kept)

    def _enough(
        self, missing: dict[str, int], groups: Sequence[tuple[bool, float, list[str]]], *, idle_only: bool
    ) -> Iterator[list[str]]:
        """Yield groups, each of which has some of what is missing still."""
        gone: set[str] = set()
        for is_busy, _, group in groups:
            if not missing or (is_busy and idle_only):
                return
            left = [name for name in group if name not in gone]
            freed = total_of([self.models[name].charged for name in left])
            if not _has_some(freed, missing):
                continue
            gone.update(left)
            for budget in [each for each in missing if each in freed]:
                missing[budget] -= freed[budget]
                if missing[budget] <= 0:
                    del missing[budget]
            yield left

    def _last_s(self, group: Collection[str], uses: Uses) -> float:
        return max(max(uses.get(name, IDLE).last_s, self.models[name].loaded_s) for name in group)

    def _group(
        self, name: str, uses: Uses, now_s: float, kept: Collection[str], behind: Collection[str] = ()
    ) -> list[str] | None:
        """Return a loaded model behind the loaded ensembles that contain it; None if one of them may not leave.

        An ensemble that waits `behind` the load that asks does not keep its members: both could wait for each other.
        """
        group = [each for each in (*self._loaded_above(name), name) if each not in behind]
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


def _has_some(amounts: Amounts, budgets: Collection[str]) -> bool:
    return any(amounts.get(budget, 0) for budget in budgets)
