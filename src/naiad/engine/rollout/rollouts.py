"""The rollouts of all models of a process: their states, and the rows of the engine's table that follow from them."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from naiad.config.rollout.declaration import CANARY, LATEST, STABLE, DeclaredRollout, Rollout
from naiad.config.rollout.guard import RolloutCounts
from naiad.config.rollout.pins import SequencePins
from naiad.config.rollout.splitter import EvenSplit
from naiad.config.rollout.state import RolloutState, conflict, started
from naiad.core.ports import Loop
from naiad.engine.rollout import sides
from naiad.engine.rollout.model import RolloutModel
from naiad.engine.rollout.shadow import ShadowCopies
from naiad.engine.rollout.sides import RolloutTotals, Side
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
    began_ns: int = 0
    """Monotonic time at which the state was set."""
    proxy: RolloutModel | None = None
    totals: RolloutTotals = field(default_factory=RolloutTotals)
    split: EvenSplit = field(default_factory=EvenSplit)
    pins: SequencePins | None = None
    sides: dict[tuple[str, str], Side] = field(default_factory=dict)
    """Of the present state, by role and version."""
    shadow: ShadowCopies | None = None


class Rollouts:
    """The states of all rollouts, by the keys of models. One lock guards changes, which take microseconds."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        self._loop: Loop | None = None

    def bind(self, loop: Loop) -> None:
        """Set the event loop; called once, before models are loaded."""
        self._loop = loop

    # --- states -----------------------------------------------------------------------------------------------------

    def declare(self, key: str, declared: DeclaredRollout | None) -> None:
        """Note what the files of a model declare at a load. The present state stays unless the file has changed."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                if declared is None:
                    return
                entry = self._entries[key] = _Entry()
            base = "" if declared is None else declared.digest
            has_changed = entry.state is None or entry.state.base != base
            entry.declared = declared
            if not has_changed:
                return
            entry.state = None if declared is None else started(declared.rollout, base)
            entry.began_ns = time.monotonic_ns()
            if declared is None and not entry.totals.requests:
                del self._entries[key]

    def put(self, key: str, state: RolloutState) -> None:
        """Set the state of a rollout. Raises InferError(UNAVAILABLE) if it has another one that is as new."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                # Also for a model that is not loaded yet: a process that starts later repeats changes before loads.
                entry = self._entries[key] = _Entry()
            base = "" if entry.declared is None else entry.declared.digest
            known = entry.state
            if known is not None and (state.base != base or state.revision <= known.revision):
                raise conflict(key)
            entry.state = state
            entry.began_ns = time.monotonic_ns()

    def forget(self, key: str) -> None:
        """Drop the rollout of a model that is unloaded."""
        with self._lock:
            self._entries.pop(key, None)

    def state(self, key: str) -> RolloutState | None:
        """Return the state of a model's rollout; None without one, and after its end."""
        entry = self._entries.get(key)
        return None if entry is None else entry.state

    def began_ns(self, key: str) -> int:
        """Return the monotonic time at which the state was set in this process; 0 without one."""
        entry = self._entries.get(key)
        return 0 if entry is None else entry.began_ns

    def after_load(self, key: str, declared: DeclaredRollout | None) -> RolloutState | None:
        """Return the state that a model has after a load whose files declare `declared`; None without a rollout."""
        state = self.state(key)
        base = "" if declared is None else declared.digest
        if state is not None and state.base == base:
            return state
        return None if declared is None else started(declared.rollout, base)

    def states(self) -> Mapping[str, RolloutState]:
        """Return the states of all rollouts that have not ended."""
        with self._lock:
            entries = list(self._entries.items())
        return {key: e.state for key, e in entries if e.state is not None and e.state.rollout is not None}

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
        newest = versions[max(versions)]
        row[LATEST] = newest
        entry = self._entries.get(key)
        state = None if entry is None else entry.state
        if entry is None or state is None or state.rollout is None:
            # The names exist without a rollout, so that clients may keep using them after its end.
            row[""] = row["-1"] = row[STABLE] = row[CANARY] = newest
            if entry is not None:
                entry.proxy = None
                if entry.pins:
                    # Live sequences continue at the versions where they began.
                    era = _NO_ERA if state is None else state.era
                    row[""] = row["-1"] = self._proxy(key, entry, era, Rollout(max(versions)), versions) or newest
            return row
        for name, version in state.names.items():
            if version in versions:
                row[name] = versions[version]
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


def _side(entry: _Entry, role: str, served: Served) -> Side:
    """Return the side of a version, with its counts if it is the same one as before."""
    key = (role, served.version)
    side = entry.sides.get(key)
    if side is None or side.served is not served:
        side = entry.sides[key] = Side(role, served, entry.totals)
    return side
