"""Queries and commands about rollouts: what a client asks for, in this process and in all."""

import logging
import time
from collections.abc import Mapping

from naiad.config.rollout.guard import RolloutCounts
from naiad.config.rollout.rollout_status import RolloutStatus
from naiad.config.rollout.state import RolloutState, changed, ended, no_rollout, not_ready, undeclared
from naiad.core.environment.ports import Loop
from naiad.core.errors import InferError
from naiad.core.model import name_of
from naiad.engine.commands.repository_commands import RepositoryCommands
from naiad.engine.lookup.model_table import ModelTable
from naiad.engine.phase import ServerPhase
from naiad.engine.processes import OnDone, Processes
from naiad.engine.rollout.rollout_changes import RolloutChanges
from naiad.engine.rollout.rollouts import Rollouts
from naiad.repository.rollout_records import RolloutRecords

_log = logging.getLogger(__name__)


class RolloutCommands:
    """Queries and commands about the rollouts of models; on the event loop."""

    def __init__(
        self,
        phase: ServerPhase,
        models: ModelTable,
        rollouts: Rollouts,
        repository: RepositoryCommands,
        processes: Processes,
    ) -> None:
        self._phase = phase
        self._models = models
        self.rollouts = rollouts
        self._repository = repository
        self._processes = processes
        self.changes: RolloutChanges
        """Set by `keep`."""

    def keep(self, records: RolloutRecords, loop: Loop) -> None:
        """Connect the records of rollouts; called once, before models are loaded."""
        self.rollouts.bind(loop)
        self.changes = RolloutChanges(self, records, loop)

    # --- queries --------------------------------------------------------------------------------------------------

    def key(self, name: str) -> str:
        """Return the key of a model, for the methods about its rollout. Raises InferError without such a model."""
        models = self._models
        row = models.named.get(name)
        if row is not None:
            return name if name in models.rows else next(key for key, own in models.rows.items() if own is row)
        if self._phase.is_starting or models.catalog is None:
            raise models.missing(name, "")
        # A model that failed to load may need another version, or one that is allowed again.
        rows = models.index_rows(name)
        if rows:
            return rows[0].name
        if not self.changes.has_record(name):
            raise models.missing(name, "")
        return name

    def is_loaded(self, key: str) -> bool:
        """Return whether a version of a model is ready."""
        return self._models.is_loaded(key)

    def missing_versions(self, key: str, state: RolloutState) -> frozenset[int]:
        """Return the versions that a state needs and that are not ready."""
        return state.needed.difference(self._models.known.get(key, {}))

    def status(self, name: str) -> RolloutStatus:
        """Return the rollout of a model. Raises InferError without one, and for a model that is not loaded.

        Only a load reads the record of a rollout, so nothing is known of a model that was not loaded yet.
        """
        key = self.key(name)
        state = self.rollouts.state(key)
        if state is None:
            raise no_rollout(name) if self.is_loaded(key) else self._models.missing(name, "")
        counts = self.counts().get(key) or RolloutCounts(state.era)
        age_s = (time.monotonic_ns() - self.rollouts.began_ns(key)) / 1e9
        changes = self.changes
        return RolloutStatus(
            name_of(key), state, counts, age_s, changes.where(key), changes.unstored(key), changes.unshared(key)
        )

    def counts(self) -> Mapping[str, RolloutCounts]:
        """Return the counts of every rollout, by the keys of the models."""
        return self._processes.rollout_counts(self.rollouts.counts())

    # --- changes --------------------------------------------------------------------------------------------------

    def changed(self, name: str, change: Mapping[str, object] | None) -> RolloutState:
        """Return the state of a model's rollout after a change, None to end it, without applying it.

        Raises InferError for a wrong change, and for an undeclared rollout in modes without commands of clients.
        """
        key = self.key(name)
        state = self.rollouts.state(key)
        if state is None and not self.is_loaded(key):
            raise self._models.missing(name, "")
        control = self._repository.control
        if (state is None or not state.base) and not (control is None or control.takes_commands):
            raise undeclared(name)
        if change is None:
            if state is None or state.rollout is None:
                raise no_rollout(name)
            return ended(state)
        return changed(state, change, self._models.known.get(key, {}), name)

    def report_rollback(self, key: str, state: RolloutState, reason: str, text: str) -> None:
        """Count and log a rollback of `state` that this process has begun."""
        self.rollouts.note_rollback(key, reason)
        rollout = state.rollout
        what = "the rollout" if rollout is None or rollout.canary is None else f"canary version {rollout.canary}"
        _log.warning("model '%s': %s was rolled back (%s): %s", key, what, reason, text)

    def apply(self, key: str, state: RolloutState, *, is_stored: bool = False) -> None:
        """Set the state of a rollout between two requests. Raises InferError as `Rollouts.put`."""
        self._models.set_rollout(key, state, is_stored=is_stored)

    def broadcast(self, key: str, state: RolloutState, on_done: OnDone, *, is_stored: bool = False) -> None:
        """Set the state of a rollout in all processes of the server. `is_stored`: by its record.

        `on_done` is called on the loop, with the error if it failed.
        """
        self._processes.set_rollout(
            key,
            state,
            on_done,
            lambda: self.carry_out(key, state, on_done, is_stored=is_stored),
            is_stored=is_stored,
            loads=bool(self.missing_versions(key, state)),
        )

    def carry_out(self, key: str, state: RolloutState, on_done: OnDone, *, is_stored: bool) -> None:
        """Set the state of a rollout in this process; what it needs and is not ready is loaded first.

        The versions that serve stay as they are meanwhile. A process that starts loads them with the model. What a
        record says loads no model that is not loaded here: nothing has asked for it, and its load reads the record.
        """
        missing = self.missing_versions(key, state)
        if missing and is_stored and not self._phase.is_starting and not self.is_loaded(key):
            on_done(None)
            return
        if not missing or (self._phase.is_starting and not self.is_loaded(key)):
            try:
                self.apply(key, state, is_stored=is_stored)
            except InferError as error:
                on_done(error)
            else:
                on_done(None)
            return
        if self._repository.control is None:
            on_done(not_ready(key, missing, self._models.known.get(key, {})))
            return

        def load() -> None:
            with self.rollouts.intending(key, state, self._models.known.get(key, {})):
                self._repository.load_beside(key)

        self.changes.load(key, state, load, on_done)
