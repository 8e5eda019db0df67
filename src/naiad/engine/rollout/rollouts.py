"""The rollouts of all models of a process: their states, and the rows of the engine's table that follow from them."""

import contextlib
import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from naiad.config.rollout.guard import RolloutCounts
from naiad.config.rollout.pins import SequencePins
from naiad.config.rollout.rollout_declaration import CANARY, LATEST, STABLE, DeclaredRollout, Rollout
from naiad.config.rollout.rollout_record import FoundRollout, held_back, merge, merge_refusals
from naiad.config.rollout.splitter import EvenSplit
from naiad.config.rollout.state import RolloutState, allow_hint, conflict, effective, started
from naiad.core.environment.ports import Loop
from naiad.core.model import name_of
from naiad.engine.rollout import sides
from naiad.engine.rollout.rollout_model import RolloutModel
from naiad.engine.rollout.shadow import ShadowCopies
from naiad.engine.rollout.sides import RolloutSide, RolloutTotals
from naiad.engine.serving.served import Served

_log = logging.getLogger(__name__)

_DEFAULT_IDLE_NS = 1_000_000_000
_IDLE_MARGIN_NS = 1_000_000_000
"""A pin outlives its sequence a little: the scheduler ends idle sequences with a delay."""

_NO_ERA = ("", -1)

Row = dict[str, Served]
"""Version or name of a version to the served version."""


@dataclass(slots=True)
class _Entry:
    """The rollout of one model."""

    declared: DeclaredRollout | None = None
    """As the model was loaded last."""
    state: RolloutState | None = None
    """As it was decided, or stored."""
    view: RolloutState | None = None
    """The same as it applies."""
    began_ns: int = 0
    """Monotonic time at which the state was set."""
    proxy: RolloutModel | None = None
    totals: RolloutTotals = field(default_factory=RolloutTotals)
    split: EvenSplit = field(default_factory=EvenSplit)
    pins: SequencePins | None = None
    sides: dict[tuple[str, str], RolloutSide] = field(default_factory=dict)
    """Of the present state, by role and version."""
    shadow: ShadowCopies | None = None

    def become(self, state: RolloutState | None) -> None:
        """Set the state; its step begins with it."""
        self.state = state
        self.view = None if state is None else effective(state)
        self.began_ns = time.monotonic_ns()


@dataclass(frozen=True, slots=True)
class _Intention:
    """A state that applies as soon as its versions are loaded."""

    state: RolloutState
    versions: frozenset[int]
    """The versions to load, and those that stay."""


class Rollouts:
    """The states of all rollouts, by the keys of models. One lock guards changes, which take microseconds."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        self._loop: Loop | None = None
        self._intentions: dict[str, _Intention] = {}

    def bind(self, loop: Loop) -> None:
        """Set the event loop; called once, before models are loaded."""
        self._loop = loop

    # --- states -----------------------------------------------------------------------------------------------------

    def declare(self, key: str, found: FoundRollout | None) -> None:
        """Note what was found at a load. The present state stays unless the file or the record is newer."""
        found = found or FoundRollout()
        with self._lock:
            entry = self._entries.get(key)
            state = self._after(key, entry, found)
            if entry is None:
                if state is None and found.declared is None:
                    return
                entry = self._entries[key] = _Entry()
            entry.declared = found.declared
            if state != entry.state:
                entry.become(state)

    def _after(self, key: str, entry: _Entry | None, found: FoundRollout) -> RolloutState | None:
        base = "" if found.declared is None else found.declared.digest
        rollout = None if found.declared is None else found.declared.rollout
        intention = self._intentions.get(key)
        own = None if entry is None else entry.state
        states = [each for each in (own, found.stored, None if intention is None else intention.state) if each]
        known: RolloutState | None = None
        earlier: RolloutState | None = None
        for state in states:
            if state.base == base:
                known = merge(known, state)
            else:
                earlier = merge(earlier, state)
        if known is not None:
            return known if earlier is None else merge_refusals(known, earlier)
        if earlier is not None:
            return started(rollout, base, earlier, "declared" if rollout is not None else "the file was removed")
        if found.problem:
            return held_back(found)
        return None if rollout is None else started(rollout, base)

    def put(self, key: str, state: RolloutState, *, is_stored: bool = False) -> None:
        """Set the state of a rollout: a later one, or a stored one that contains the present one.

        Raises InferError(UNAVAILABLE) for any other state.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                # Also for a model that is not loaded yet: a process that starts later repeats changes before loads.
                entry = self._entries[key] = _Entry()
            known = entry.state
            if known == state:
                return
            if known is not None and not _follows(known, state, is_stored=is_stored):
                raise conflict(key)
            entry.become(state)

    def followed(self, key: str, stored: RolloutState) -> RolloutState | None:
        """Return the state that follows from the present one and a stored one; None if that is the present one."""
        with self._lock:
            entry = self._entries.get(key)
            own = None if entry is None else entry.state
            base = "" if entry is None or entry.declared is None else entry.declared.digest
        if entry is None or stored.base == base:
            joined = merge(own, stored)
        else:
            # Of another file, which this server has not loaded; its verdicts count anyway.
            joined = merge_refusals(own or RolloutState(None, base, revision=-1), stored)
            if own is None and not joined.refusals:
                return None
        return None if joined == own else joined

    @contextlib.contextmanager
    def intending(self, key: str, state: RolloutState, ready: Collection[int]) -> Iterator[None]:
        """Have loads of a model bring the versions of a state beside the `ready` ones, and apply it with them."""
        wanted = frozenset([*ready, *state.needed])
        with self._lock:
            self._intentions[key] = intention = _Intention(state, wanted)
        try:
            yield
        finally:
            with self._lock:
                if self._intentions.get(key) is intention:
                    del self._intentions[key]

    def intended_versions(self, key: str) -> frozenset[int] | None:
        """Return the versions that the next load of a model is about; None if the version policy decides."""
        intention = self._intentions.get(key)
        return None if intention is None else intention.versions

    def forget(self, key: str) -> None:
        """Drop the rollout of a model that is unloaded."""
        with self._lock:
            self._entries.pop(key, None)

    def state(self, key: str) -> RolloutState | None:
        """Return the state of a model's rollout; None without one, and after its end."""
        entry = self._entries.get(key)
        return None if entry is None else entry.view

    def decided(self) -> Mapping[str, RolloutState]:
        """Return all states as they were decided or stored, also of rollouts that have ended."""
        with self._lock:
            return {key: entry.state for key, entry in self._entries.items() if entry.state is not None}

    def refusal(self, key: str) -> str:
        """Return why a model serves no request without a version, if that is because of a refusal."""
        state = self.state(key)
        refused = {} if state is None else state.refused
        if state is None or (state.rollout is not None and state.rollout.stable not in refused):
            return ""
        return "; ".join(
            f"version {version} was refused ({reason}); {allow_hint(name_of(key), version)}"
            for version, reason in refused.items()
        )

    def began_ns(self, key: str) -> int:
        """Return the monotonic time at which the state was set in this process; 0 without one."""
        entry = self._entries.get(key)
        return 0 if entry is None else entry.began_ns

    def after_load(self, key: str, found: FoundRollout) -> RolloutState | None:
        """Return the state that a model has after a load that finds this; None without a rollout."""
        with self._lock:
            state = self._after(key, self._entries.get(key), found)
        return None if state is None else effective(state)

    def states(self) -> Mapping[str, RolloutState]:
        """Return the states of all rollouts that have not ended."""
        with self._lock:
            entries = list(self._entries.items())
        return {key: e.view for key, e in entries if e.view is not None and e.view.rollout is not None}

    # --- counts -----------------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, RolloutCounts]:
        """Return the counts of this process for the present state of every rollout."""
        with self._lock:
            proxies = {key: entry.proxy for key, entry in self._entries.items()}
        return {key: proxy.counts() for key, proxy in proxies.items() if proxy is not None}

    def note_rollback(self, key: str, reason: str) -> None:
        """Count a rollback that this process has begun."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.totals.note_rollback(reason)

    def totals(self) -> Iterator[tuple[str, RolloutTotals]]:
        """Yield the counters of each model that has or had a rollout since it was loaded."""
        with self._lock:
            entries = list(self._entries.items())
        for key, entry in entries:
            yield key, entry.totals

    # --- rows -------------------------------------------------------------------------------------------------------

    def row(self, key: str, versions: Mapping[int, Served]) -> Row:
        """Return the row of a model with ready versions; it lacks "" while the stable version is missing."""
        row: Row = {str(version): served for version, served in versions.items()}
        entry = self._entries.get(key)
        state = None if entry is None else entry.view
        refused = {} if state is None else state.refused
        newest = max((version for version in versions if version not in refused), default=None)
        if newest is not None:
            row[LATEST] = versions[newest]
        if entry is None or state is None or state.rollout is None:
            if newest is None:
                _log.error("model '%s': every version that is ready was refused: %s", key, refused)
                return row
            # The names exist without a rollout, so that clients may keep using them after its end.
            row[""] = row["-1"] = row[STABLE] = row[CANARY] = versions[newest]
            if entry is not None:
                entry.proxy = None
                if entry.pins:
                    # Live sequences continue at the versions where they began.
                    era = _NO_ERA if state is None else state.era
                    proxy = self._proxy(key, entry, era, Rollout(newest), versions)
                    row[""] = row["-1"] = proxy or versions[newest]
            return row
        for name, version in state.names.items():
            if version in versions:
                row[name] = versions[version]
        if state.rollout.stable in refused:
            _log.error("model '%s': version %d, stable of its rollout, was refused", key, state.rollout.stable)
            return row
        proxy = self._proxy(key, entry, state.era, state.rollout, versions)
        if proxy is not None:
            row[""] = row["-1"] = proxy
        return row

    def _proxy(
        self, key: str, entry: _Entry, era: tuple[str, int], rollout: Rollout, versions: Mapping[int, Served]
    ) -> RolloutModel | None:
        stable = versions.get(rollout.stable)
        canary = None if rollout.canary is None else versions.get(rollout.canary)
        if stable is None:
            _log.error("model '%s': version %d, stable of its rollout, is not ready", key, rollout.stable)
            entry.proxy, entry.shadow, entry.sides = None, None, {}
            return None
        if rollout.canary is not None and canary is None and (rollout.weight or rollout.shadow):
            _log.warning(
                "model '%s': version %d, canary of its rollout, is not ready and gets no traffic", key, rollout.canary
            )
        if entry.pins is None:
            idle_us = stable.config.sequence_batching.max_sequence_idle_microseconds
            entry.pins = SequencePins((idle_us * 1000 or _DEFAULT_IDLE_NS) + _IDLE_MARGIN_NS)
        if entry.proxy is None or entry.proxy.era != era:
            entry.sides, entry.shadow = {}, None
        stable_side = _side(entry, sides.STABLE, stable)
        canary_side = None if canary is None else _side(entry, sides.CANARY, canary)
        others = [
            _side(entry, sides.PREVIOUS, each)
            for each in versions.values()
            if each is not stable and each is not canary
        ]
        # Sides of versions that are gone would keep their weights.
        kept = [side for side in (stable_side, canary_side, *others) if side is not None]
        entry.sides = {(side.role, side.served.version): side for side in kept}
        entry.totals.drop_gone({side.served.version for side in kept})
        entry.proxy = RolloutModel(
            rollout,
            era,
            stable_side,
            canary_side,
            others,
            split=entry.split,
            pins=entry.pins,
            shadow=self._shadow(entry, rollout, stable, canary),
        )
        return entry.proxy

    def _shadow(self, entry: _Entry, rollout: Rollout, stable: Served, canary: Served | None) -> ShadowCopies | None:
        if canary is None or not rollout.shadow or self._loop is None:
            entry.shadow = None
        elif entry.shadow is None or not entry.shadow.is_between(stable, canary):
            entry.shadow = ShadowCopies(
                stable,
                canary,
                percent=rollout.shadow,
                rtol=rollout.rtol,
                atol=rollout.atol,
                loop=self._loop,
                totals=entry.totals,
            )
        return entry.shadow


def _follows(known: RolloutState, state: RolloutState, *, is_stored: bool) -> bool:
    is_later = state.revision > known.revision or is_stored
    return is_later and state.base == known.base and merge(known, state) == state


def _side(entry: _Entry, role: str, served: Served) -> RolloutSide:
    """Return the side of a version, with its counts if it is the same one as before."""
    key = (role, served.version)
    side = entry.sides.get(key)
    if side is None or side.served is not served:
        side = entry.sides[key] = RolloutSide(role, served, entry.totals)
    return side
