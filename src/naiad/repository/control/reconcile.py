"""The reconciler: from the wanted models, how the repositories look and what is loaded to a plan of steps.

Pure: no I/O and no clock. It is level-triggered: the plan depends on the present state only, however that came about,
and once a plan is applied the next one is empty. The state must show steps that failed, see `LoadedModel.has_failed`.
"""

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace


class Action(enum.Enum):
    """What to do with a model."""

    LOAD = enum.auto()
    """Load a model that is not served."""
    UPDATE = enum.auto()
    """Replace the versions that are served."""
    SUSPEND = enum.auto()
    """Take an ensemble out of service until all its members are there again."""
    UNLOAD = enum.auto()


@dataclass(frozen=True, slots=True)
class ControlStep:
    """One step of a plan. Steps are in the order in which they have to be made."""

    action: Action
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listed:
    """A model as the repositories list it."""

    files: object
    """Fingerprint, compared by equality; None for a model that is gone, and so not wanted."""
    members: frozenset[str] | None = None
    """The members of an ensemble if it was loaded now; None: the same as when it was loaded."""
    since_s: float = 0.0
    """Time since which it has looked like this."""
    is_held: bool = False
    """No step may be planned for it: it is being written, or another step of it is in progress."""

    def is_settled(self, now_s: float, settle_s: float) -> bool:
        """Return whether it has looked the same for `settle_s`, so that it is not a copy in progress."""
        return not self.is_held and now_s - self.since_s >= settle_s


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model as it was loaded last."""

    files: object
    members: frozenset[str] = frozenset()
    is_served: bool = True
    has_failed: bool = False
    """Loading from these files failed: it is tried again when files or members have changed."""
    is_requested: bool = True
    """A command named it; otherwise an ensemble needs it."""
    generation: int = 0
    """Number of times that it was loaded."""
    member_generations: Mapping[str, int] | None = None
    """Generations of its members when it was loaded; None: loads of members are no reason to load it again."""


NEVER_LOADED = LoadedModel(None, is_served=False)
State = Mapping[str, LoadedModel]


def reconcile(
    wanted: Collection[str],
    listing: Mapping[str, Listed],
    state: State,
    *,
    forced: Mapping[str, str] | None = None,
    now_s: float = 0.0,
    settle_s: float = 0.0,
) -> list[ControlStep]:
    """Return the steps from `state` to the `wanted` models as they are in `listing`.

    Models that are not in `listing` were not looked at: their files count as unchanged. `forced` are models to load
    although nothing has changed, with the reason. A model counts `settle_s` after its last change in the listing.
    """
    settled = {name: listed for name, listed in listing.items() if listed.is_settled(now_s, settle_s)}
    unloads = [name for name in state if name not in wanted and (name in settled or name not in listing)]
    steps = [
        ControlStep(
            Action.SUSPEND, name, f"it contains {', '.join(sorted(state[name].members.intersection(unloads)))}"
        )
        for name in ensembles_above(unloads, state)
        if state[name].is_served
    ]
    steps += [ControlStep(Action.UNLOAD, name, "it is not wanted any more") for name in unloads]
    left = {name: loaded for name, loaded in state.items() if name not in unloads}
    suspended = [step.name for step in steps if step.action is Action.SUSPEND]
    left |= {name: replace(state[name], is_served=False, has_failed=True) for name in suspended}
    names = [name for name in wanted if name in settled or (name in left and name not in listing)]
    return steps + _loads(names, settled, left, forced or {})


def _loads(
    names: Collection[str], listing: Mapping[str, Listed], state: State, forced: Mapping[str, str]
) -> list[ControlStep]:
    served = {name for name, loaded in state.items() if loaded.is_served}
    replaced: set[str] = set()
    steps: list[ControlStep] = []
    for name in _members_first(names, listing, state):
        reason = forced.get(name) or _reason_to_load(name, listing.get(name), state, served, replaced)
        if reason is None:
            continue
        steps.append(ControlStep(Action.UPDATE if name in served else Action.LOAD, name, reason))
        if name in listing or name not in served:
            # An ensemble that is only matched with its members again remains the same for ensembles above it.
            replaced.add(name)
        served.add(name)
    return steps


def _reason_to_load(
    name: str, listed: Listed | None, state: State, served: Collection[str], replaced: Collection[str]
) -> str | None:
    """Return why a model has to be loaded, None when it is current."""
    loaded = state.get(name)
    if loaded is None:
        return None if listed is None else "it is not loaded"
    if listed is not None:
        if listed.files != loaded.files:
            return "its files have changed"
        if listed.members is not None and listed.members != loaded.members:
            return "its members are other models now"
        if not loaded.is_served and not loaded.has_failed:
            return "it is not served"
    if not loaded.members <= set(served) and (listed is None or not loaded.is_served):
        return None  # it would fail for lack of a member
    member = _loaded_member(loaded, state, replaced)
    return None if member is None else f"its member '{member}' was loaded"


def _loaded_member(loaded: LoadedModel, state: State, replaced: Collection[str]) -> str | None:
    """Return a member that was loaded since the ensemble was."""
    generations = loaded.member_generations
    if generations is None:
        return None
    now = {member: state[member].generation if member in state else 0 for member in loaded.members}
    return min((m for m in loaded.members if m in replaced or now[m] != generations.get(m, 0)), default=None)


def _members_first(names: Collection[str], listing: Mapping[str, Listed], state: State) -> list[str]:
    """Return names sorted so that an ensemble comes after its members, as far as there is no cycle."""
    left = dict.fromkeys(sorted(names))
    order: list[str] = []
    while left:
        ready = [name for name in left if left.keys().isdisjoint(_members(name, listing, state))] or list(left)
        order += ready
        for name in ready:
            del left[name]
    return order


def _members(name: str, listing: Mapping[str, Listed], state: State) -> frozenset[str]:
    listed, loaded = listing.get(name), state.get(name)
    if listed is not None and listed.members is not None:
        return listed.members
    return frozenset() if loaded is None else loaded.members


def ensembles_above(names: Collection[str], state: State) -> list[str]:
    """Return the ensembles that contain any of these models, outer ones first; none of the models themselves."""
    found: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        member = waiting.pop(0)
        for ensemble, loaded in state.items():
            if member in loaded.members and ensemble not in names:
                # An ensemble that several paths lead to goes before all that it contains.
                found.pop(ensemble, None)
                found[ensemble] = None
                waiting.append(ensemble)
    return list(reversed(found))


def dependents(name: str, state: State) -> list[str]:
    """Return the members of an ensemble that nothing else needs or has requested, members of members included."""
    found: list[str] = []
    going = {name}
    waiting = sorted(state[name].members) if name in state else []
    while waiting:
        member = waiting.pop(0)
        if member not in state or state[member].is_requested or member in going:
            continue
        if any(member in other.members for key, other in state.items() if key not in going):
            continue
        going.add(member)
        found.append(member)
        waiting += sorted(state[member].members)
    return found


@dataclass(frozen=True, slots=True)
class Unload:
    """What a command to unload a model means."""

    names: list[str]
    """The models to unload, ensembles before their members."""
    suspended: list[str]
    """The served ensembles that contain any of them, outer ones first."""
    concerned: frozenset[str]
    """All models whose state it depends on: no other command may change them meanwhile."""


def unloaded(name: str, state: State, *, with_dependents: bool) -> Unload:
    """Return what it means to unload a model; `state` has all ensembles and their members."""
    names = [name, *dependents(name, state)] if with_dependents else [name]
    wanted = state.keys() - set(names)
    steps = reconcile(wanted, {}, {each: state.get(each, NEVER_LOADED) for each in [*names, *wanted]})
    suspended = [step.name for step in steps if step.action is Action.SUSPEND]
    # Also ensembles that are out of service: one may be about to come back.
    return Unload(names, suspended, frozenset([*names, *ensembles_above(names, state)]))


class ListingHistory:
    """Since when each model has looked the way it does; time is an argument."""

    _INCOMPLETE = b""

    def __init__(self) -> None:
        self._listing: dict[str, Listed] = {}

    def observe(
        self, seen: Mapping[str, bytes], incomplete: Collection[str], known: Collection[str], now_s: float
    ) -> dict[str, Listed]:
        """Return how all models look: those that were seen, and those that are `known` and gone.

        A model that is marked `incomplete` is held, and counts from the time when the mark is gone.
        """
        files: dict[str, bytes | None] = dict.fromkeys((name for name in known if name not in seen), None)
        files |= {name: self._INCOMPLETE if name in incomplete else look for name, look in seen.items()}
        self._listing = {
            name: Listed(look, None, self._since_s(name, look, now_s), is_held=look == self._INCOMPLETE)
            for name, look in files.items()
        }
        return self._listing

    def _since_s(self, name: str, files: bytes | None, now_s: float) -> float:
        before = self._listing.get(name)
        return before.since_s if before is not None and before.files == files else now_s
