"""Where the states of rollouts are kept: beside the models, in a directory of the operator, or in the cache.

A record that cannot be written beside its repository is kept in the cache directory, where a restart of this server
finds it and other servers do not, until it can be: see `unshared`. What can be stored nowhere counts until this
process ends, also for a model that is unloaded and loaded again. `config.rollout.rollout_record` says what a record
is.
"""

import functools
import hashlib
import logging
import os
import threading
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

from naiad.config.rollout.rollout_record import NewerRecordError, RecordError, decode_record, encode_record, merge
from naiad.config.rollout.state import RolloutState
from naiad.core.errors import InferError, internal
from naiad.core.model import ModelKey
from naiad.repository.stores.notes import DirectoryNotes, Notes
from naiad.repository.stores.store import ModelEntry

_log = logging.getLogger(__name__)

FLAG = "--rollout-state"
_MAX_HOMES = 20_000
_EARLY_S = 0.1
"""A look may be so much too early: timers of a second are not always exact."""
_WRITTEN = "written"
"""What a look has shown of a record that was written since."""


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """What is stored about a model."""

    state: RolloutState | None = None
    problem: str = ""
    """Why the record cannot be used; empty if it can, or if there is none."""


@dataclass(slots=True)
class _Home:
    """Where the record of one model is."""

    notes: Notes
    fallback: DirectoryNotes | None
    model: str
    known: RolloutState | None = None
    """As it was read or written last."""
    problem: str = ""
    unshared: str = ""
    """Why the last state is in the fallback alone; empty if it is not."""
    unstored: RolloutState | None = None
    """What could be stored nowhere."""
    failure: str = ""
    """Why; empty if the last state was stored."""

    def places(self) -> list[Notes]:
        return [self.notes] if self.fallback is None else [self.notes, self.fallback]

    def place_now(self) -> Notes:
        """Return where the last state is."""
        return self.fallback if self.unshared and self.fallback is not None else self.notes


class RolloutRecords:
    """The records of all models of a server. All methods but `where` and `known` block; they are thread-safe."""

    def __init__(self, directory: Path | None = None, cache: Path | None = None) -> None:
        """`directory`: for all records instead of the repositories. `cache`: where a repository cannot be written."""
        self._own = directory
        self._cache = cache
        self._homes: dict[str, _Home] = {}
        self._places: dict[str, tuple[Notes, dict[str, str]]] = {}
        """By path or URL: notes, and the key of the model of each file name."""
        self._seen: dict[str, Mapping[str, Hashable]] = {}
        """What the last look has shown."""
        self._looked_s: dict[str, float] = {}
        self._lock = threading.Lock()
        """Guards the homes; held during no I/O."""
        self._writing = threading.Lock()
        """One write at a time: the next one sees the result."""

    # --- one model --------------------------------------------------------------------------------------------------

    def find(self, entry: ModelEntry) -> FoundRecord:
        """Return what is stored about a model, and remember where: see `read`, `keep`."""
        home = self._home_of(entry)
        with self._lock:
            if home is None:
                self._homes.pop(entry.key, None)
                return FoundRecord()
            home = self._remember(entry.key, home)
        return self._read(entry.key, home)

    def _remember(self, key: str, home: _Home) -> _Home:
        if key in self._homes:
            return self._homes[key]
        if len(self._homes) >= _MAX_HOMES:
            # Models that a platform loads once, under ever new names.
            del self._homes[next(iter(self._homes))]
        for notes in home.places():
            keys = self._places.setdefault(notes.place, (notes, {}))[1]
            if len(keys) >= 2 * _MAX_HOMES:
                keys.clear()
                keys.update((notes.file_name(each.model), name) for name, each in self._homes.items())
            keys[notes.file_name(home.model)] = key
        self._homes[key] = home
        return home

    def _home_of(self, entry: ModelEntry) -> _Home | None:
        if entry.notes is None:
            return None  # brought along by a client: it ends with the model
        if self._own is not None:
            prefix = f"{_digest_of_place(entry.namespace)}-" if isinstance(entry.key, ModelKey) else ""
            return _Home(DirectoryNotes(self._own, prefix, is_made=True), None, entry.name)
        fallback = None
        if self._cache is not None:
            where = entry.notes.where(entry.name)
            fallback = DirectoryNotes(self._cache, f"{_digest_of_place(where)}-", is_made=True)
        return _Home(entry.notes, fallback, entry.name)

    def read(self, key: str) -> FoundRecord:
        """Return what is stored about a model that was found before."""
        home = self._homes.get(key)
        return FoundRecord() if home is None else self._read(key, home)

    def _read(self, key: str, home: _Home) -> FoundRecord:
        states: list[RolloutState | None] = []
        problem = ""
        for notes in home.places():
            where = notes.where(home.model)
            states.append(None)
            try:
                content = notes.read(home.model)
                states[-1] = None if content is None else decode_record(content)
            except RecordError as error:
                problem = f"the record {where} cannot be used: {error}"
            except (OSError, InferError) as error:
                problem = f"the record {where} cannot be read: {_reason(error)}"
        if problem and problem != home.problem:
            _log.error(
                "the rollout of model '%s' cannot be followed: %s; repair it, or remove it and set the rollout again",
                key,
                problem,
            )
        state = functools.reduce(merge, states)
        if state == states[0]:
            home.unshared = ""
        elif not home.unshared:
            home.unshared = f"it is not in {home.notes.where(home.model)} yet"
        home.known, home.problem = state, problem
        return FoundRecord(merge(state, home.unstored), problem)

    def known(self, key: str) -> RolloutState | None:
        """Return the stored state as this server has read or written it last."""
        home = self._homes.get(key)
        return None if home is None else home.known

    def has(self, key: str) -> bool:
        """Return whether there is a place for the record of a model."""
        return key in self._homes

    def where(self, key: str) -> str:
        """Return the path or URL of a model's record; empty if its rollout ends with the server."""
        home = self._homes.get(key)
        if home is None:
            return ""
        return home.place_now().where(home.model)

    def failure(self, key: str) -> str:
        """Return why the last state of a model could be stored nowhere; empty if it is stored."""
        home = self._homes.get(key)
        return "" if home is None else home.failure

    def unshared(self, key: str) -> str:
        """Return why other servers do not see the state of a model, which is stored here; empty if they do.

        The state is to be kept again from time to time: a store that cannot be reached returns.
        """
        home = self._homes.get(key)
        return "" if home is None else home.unshared

    def keep(self, key: str, state: RolloutState, *, is_decision: bool = False) -> RolloutState:
        """Store a state, and return what the record says then: it may have a later one of another server.

        `is_decision`: it has just been made, and replaces what a later version of naiad has stored, too. Raises
        InferError if it can be stored nowhere.
        """
        home = self._homes.get(key)
        if home is None:
            return state
        with self._writing:
            try:
                kept = self._keep_somewhere(key, home, state, is_decision=is_decision)
            except InferError as error:
                home.unstored, home.failure = merge(home.unstored, state), error.message
                raise
            home.known, home.problem = kept, ""
            self._expect(home)
            home.unstored, home.failure = None, ""
            return kept

    def _expect(self, home: _Home) -> None:
        """Let the next look show a change if the record is not there: an operator may remove it before that."""
        notes = home.place_now()
        self._seen[notes.place] = {**self._seen.get(notes.place, {}), notes.file_name(home.model): _WRITTEN}

    def _keep_somewhere(self, key: str, home: _Home, state: RolloutState, *, is_decision: bool) -> RolloutState:
        try:
            everything = merge(state, _cached(home)) or state
            kept = _write(home.notes, home.model, everything, is_decision=is_decision)
        except (OSError, InferError) as error:
            return self._keep_in_cache(key, home, state, error)
        if home.unshared:
            home.unshared = ""
            _log.info("the rollout of model '%s' is in %s now", key, home.notes.where(home.model))
        if home.fallback is not None:
            # Otherwise it would be found when the record has been removed on purpose.
            home.fallback.remove(home.model)
        return kept

    def _keep_in_cache(self, key: str, home: _Home, state: RolloutState, error: Exception) -> RolloutState:
        text = f"the rollout of model '{key}' cannot be stored in {home.notes.where(home.model)}: {_reason(error)}"
        hint = f"allow the server to write there, or give a directory that all servers share with {FLAG}=PATH"
        if home.fallback is None:
            raise internal(f"{text}; {hint}") from error
        where = home.fallback.where(home.model)
        try:
            kept = _write(home.fallback, home.model, state, is_decision=True)
        except OSError as failure:
            raise internal(f"{text}, nor in {where}: {_reason(failure)}; {hint}") from error
        message = f"{text}; it is in {where}, where other servers do not see it: {hint}"
        # Once: the next attempt fails for the same reason, in other words perhaps.
        _log.log(logging.DEBUG if home.unshared else logging.WARNING, "%s", message)
        home.unshared = message
        return kept

    # --- all models -------------------------------------------------------------------------------------------------

    def changed(self) -> dict[str, FoundRecord]:
        """Return the records that have changed since the last call, by the keys of the models."""
        with self._lock:
            places = dict(self._places)
        found: dict[str, FoundRecord] = {}
        for place, (notes, keys) in places.items():
            now = self._look(notes)
            if now is None:
                continue
            before, self._seen[place] = self._seen.get(place, {}), now
            # Only a few of thousands of models have a record.
            for name in {name for name, _ in now.items() ^ before.items()}:
                key = keys.get(name, "")
                home = self._homes.get(key)
                if home is not None and key not in found:
                    found[key] = self._read(key, home)
        return found

    def _look(self, notes: Notes) -> Mapping[str, Hashable] | None:
        """Return what is there; None if it is too early for another look, or if there is no answer."""
        now_s = time.monotonic()
        if now_s - self._looked_s.get(notes.place, -notes.look_s) < notes.look_s - _EARLY_S:
            return None
        self._looked_s[notes.place] = now_s
        try:
            return notes.look()
        except (OSError, InferError) as error:
            _log.debug("looking for records of rollouts: %s", _reason(error))
            return None


def _cached(home: _Home) -> RolloutState | None:
    """Return what an earlier write has left in the cache; None without anything that can be used."""
    if home.fallback is None:
        return None
    try:
        content = home.fallback.read(home.model)
        return None if content is None else decode_record(content)
    except (OSError, RecordError) as error:
        _log.debug("%s: %s", home.fallback.where(home.model), error)
        return None


def _write(notes: Notes, model: str, state: RolloutState, *, is_decision: bool) -> RolloutState:
    """Merge a state into a record; return the result. Raises OSError, InferError.

    One that cannot be used is put aside, but not that of a later version unless there is a new decision: otherwise
    servers of two versions would replace the records of each other all the time.
    """
    kept: list[RolloutState] = []

    def change(content: bytes | None) -> bytes | None:
        stored: RolloutState | None = None
        try:
            stored = None if content is None else decode_record(content)
        except RecordError as error:
            if isinstance(error, NewerRecordError) and not is_decision:
                raise internal(f"a later version of naiad has written it ({error}); update this server") from error
            aside = notes.set_aside(model)
            _log.warning("%s is replaced, and now named %s: %s", notes.where(model), aside, error)
        joined = merge(state, stored) or state
        kept.append(joined)
        return None if joined == stored else encode_record(joined)

    notes.exchange(model, change)
    return kept[-1]


def _digest_of_place(place: str) -> str:
    """Return a digest of a path or URL: the same one for `models` and `/srv/models`."""
    text = place if "://" in place else os.path.abspath(place)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _reason(error: Exception) -> str:
    if isinstance(error, InferError):
        return error.message
    return getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
