"""Changes of rollouts: from a decision to all processes and the record.

A decision is made on what the record says now, so that servers of one repository decide one after the other. It
applies in every process, which first loads the versions that it needs. Then it is stored, and only then answered: a
process that is killed in between has answered nothing, and the next start finds the state before. A decision that can
be stored nowhere applies all the same, because it may be a rollback; its answer says so, and it is stored later.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from naiad.config.rollout.rollout_record import is_news, merge
from naiad.config.rollout.state import RolloutState, conflict
from naiad.core.environment.ports import Loop
from naiad.core.errors import InferError, internal
from naiad.engine.rollout.rollouts import Rollouts
from naiad.repository.rollout_records import FoundRecord, RolloutRecords

_log = logging.getLogger(__name__)

T = TypeVar("T")
OnDone = Callable[[InferError | None], object]
"""Called on the loop, once, with the error if it failed."""
_CATCH_UP_S = 2.0
"""A decision, which may be a rollback, waits so long for the record of other servers; then it is made without."""
_ATTEMPTS = 4
"""A change that another one overtakes is made again, of the state that the other one has left."""


class ChangedRollouts(Protocol):
    """What is changed: the rollouts of this process and of all; its methods are called on the event loop."""

    rollouts: Rollouts

    def key(self, name: str) -> str:
        """Return the key of a model. Raises InferError without such a model."""

    def is_loaded(self, key: str) -> bool:
        """Return whether a version of a model is ready."""

    def missing_versions(self, key: str, state: RolloutState) -> frozenset[int]:
        """Return the versions that a state needs and that are not ready."""

    def changed(self, name: str, change: Mapping[str, object] | None) -> RolloutState:
        """Return the state after a change, None to end it, without applying it. Raises InferError."""

    def apply(self, key: str, state: RolloutState, *, is_stored: bool = False) -> None:
        """Set the state of a rollout in this process. Raises InferError."""

    def broadcast(self, key: str, state: RolloutState, on_done: OnDone, *, is_stored: bool = False) -> None:
        """Set the state of a rollout in all processes."""


class RolloutChanges:
    """Makes changes of rollouts. Used on the event loop; what blocks runs on threads."""

    def __init__(self, commands: ChangedRollouts, records: RolloutRecords, loop: Loop) -> None:
        self._commands = commands
        self._records = records
        self._loop = loop

    def where(self, key: str) -> str:
        """Return the path or URL of a model's record; empty if its rollout ends with the server."""
        return self._records.where(key)

    def unstored(self, key: str) -> str:
        """Return why the state of a model could not be stored; empty if it is stored."""
        return self._records.failure(key)

    def unshared(self, key: str) -> str:
        """Return why other servers do not see the state of a model that is stored; empty if they do."""
        return self._records.unshared(key)

    def has_record(self, key: str) -> bool:
        """Return whether there is a place for the record of a model: a store has had it."""
        return self._records.has(key)

    # --- changes ----------------------------------------------------------------------------------------------------

    def change(self, name: str, fields: Mapping[str, object] | None, on_done: OnDone) -> None:
        """Change the rollout of a model as a client wants it, None to end it. Raises InferError."""
        self._change(self._commands.key(name), name, fields, on_done, _ATTEMPTS)

    def _change(
        self, key: str, name: str, fields: Mapping[str, object] | None, on_done: OnDone, attempts: int
    ) -> None:
        def go_on(error: InferError | None) -> None:
            if error is not None:
                _log.warning("the rollout of model '%s' could not be followed: %s", key, error.message)
            try:
                before = self._commands.rollouts.state(key)
                state = self._commands.changed(name, fields)
            except InferError as failure:
                on_done(failure)
                return

            def done(failure: InferError | None) -> None:
                if failure is not None and attempts > 1 and self._commands.rollouts.state(key) is not before:
                    self._change(key, name, fields, on_done, attempts - 1)
                else:
                    on_done(failure)

            self.decide(key, state, done)

        self._catch_up(key, go_on)

    def _catch_up(self, key: str, on_done: OnDone) -> None:
        """Apply what the record says now, if it can be read in time."""
        if not self._records.has(key):
            on_done(None)
            return
        is_late = False

        def go_on_without() -> None:
            nonlocal is_late
            is_late = True
            _log.warning("the record %s cannot be read in %g s; it is followed later", self.where(key), _CATCH_UP_S)
            on_done(None)

        def read(found: FoundRecord | None, error: InferError | None) -> None:
            if is_late:
                return
            timer.cancel()
            if error is not None or found is None or found.state is None:
                on_done(error)
            elif self._commands.is_loaded(key):
                self.follow(key, found.state, on_done)
            else:
                self._adopt(key, found.state, on_done)

        timer = self._loop.call_later(_CATCH_UP_S, go_on_without)
        self._on_thread(f"rollout:{key}", lambda: self._records.read(key), read)

    def _adopt(self, key: str, stored: RolloutState, on_done: OnDone) -> None:
        """Set the stored state of a model that is not loaded, for a change of it."""
        error: InferError | None = None
        state = self._commands.rollouts.followed(key, stored)
        try:
            if state is not None:
                self._commands.apply(key, state, is_stored=True)
        except InferError as failure:
            error = failure
        on_done(error)

    def decide(self, key: str, state: RolloutState, on_done: OnDone) -> None:
        """Apply a new state in all processes, and store it."""

        def applied(error: InferError | None) -> None:
            if error is not None or not self._records.has(key) or not is_news(state):
                on_done(error)
            else:
                self._on_thread(f"rollout:{key}", lambda: self._records.keep(key, state, is_decision=True), stored)

        def stored(kept: RolloutState | None, error: InferError | None) -> None:
            if error is not None:
                # It applies as long as this server runs, and the follower tries to store it again.
                _log.error("%s", error.message)
                on_done(None)
            elif kept is not None and kept != state:
                # Another server has decided meanwhile.
                self.follow(key, kept)
                on_done(conflict(key))
            else:
                on_done(None)

        self._commands.broadcast(key, state, applied)

    # --- the record -------------------------------------------------------------------------------------------------

    def follow(self, key: str, stored: RolloutState, on_done: OnDone = lambda error: None) -> None:
        """Apply a stored state in all processes, unless this server is ahead of it."""
        state = self._commands.rollouts.followed(key, stored)
        if state is None:
            on_done(None)
            return

        def applied(error: InferError | None) -> None:
            if error is None:
                _log.info("rollout of model '%s': follows the record: %s", key, state.note)
            on_done(error)

        self._commands.broadcast(key, state, applied, is_stored=True)

    def is_behind(self, key: str, state: RolloutState) -> bool:
        """Return whether the record lacks something of a state."""
        if not self._records.has(key) or not is_news(state):
            return False
        known = self._records.known(key)
        return merge(known, state) != known

    # --- threads ----------------------------------------------------------------------------------------------------

    def _on_thread(
        self, name: str, work: Callable[[], T], on_done: Callable[[T | None, InferError | None], object]
    ) -> None:
        """Do what blocks on a thread, and go on with the result on the loop."""

        def run() -> None:
            result: T | None = None
            error: InferError | None = None
            try:
                result = work()
            except InferError as failure:
                error = failure
            except Exception as failure:
                _log.exception("a rollout could not be changed")
                error = internal(f"{type(failure).__name__}: {failure}")
            try:
                self._loop.call_soon_threadsafe(on_done, result, error)
            except RuntimeError:
                _log.debug("a rollout was changed after the event loop had ended")

        threading.Thread(target=run, name=name, daemon=True).start()

    def load(self, key: str, state: RolloutState, load: Callable[[], object], on_done: OnDone) -> None:
        """Load what a state needs on a thread, then apply the state in this process."""

        def loaded(result: object, error: InferError | None) -> None:
            if error is None:
                try:
                    # Usually there is nothing left to do: the load has applied it.
                    self._commands.apply(key, state, is_stored=True)
                except InferError as failure:
                    error = failure
            on_done(error)

        self._on_thread(f"rollout:{key}", load, loaded)
