"""Control mode POLL: the repositories are listed periodically, and what is served follows them.

A model that is being copied changes from one listing to the next. It is loaded when it has looked the same for the
settle time, so a half-written file is never loaded, however slow the copy, and one bad model never delays others.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Generic

from naiad.core.errors import ErrorCode, InferError, internal, invalid_argument
from naiad.core.model import name_of
from naiad.repository.control.controller import ModelController
from naiad.repository.control.on_demand.on_demand_models import OnDemandModels
from naiad.repository.control.reconcile import (
    NEVER_LOADED,
    Action,
    ControlStep,
    Listed,
    ListingHistory,
    LoadedModel,
    reconcile,
)
from naiad.repository.lifecycle import V
from naiad.repository.load_pool import LoadPool
from naiad.repository.loads import reason_of
from naiad.repository.stores.fingerprint import fingerprint as fingerprint_of
from naiad.repository.stores.stores import DUPLICATE
from naiad.telemetry.last_resort import keep_running, report

_log = logging.getLogger(__name__)

_SOON_S = 0.5
"""Pause before the next listing while a model has changed and is not settled."""
_WORK_THREADS = 8
_LAST_LISTING_S = 1.0
"""How long the end waits for a listing in progress; its result is ignored."""


class PollTrigger(Generic[V]):
    """Loads what is new or has changed, unloads what is gone."""

    def __init__(
        self,
        controller: ModelController[V],
        *,
        poll_s: float,
        settle_s: float,
        on_demand: OnDemandModels[V] | None = None,
    ) -> None:
        """List every `poll_s` seconds; a change counts when it has lasted for `settle_s`.

        Models `on_demand` that are not loaded are only known.
        """
        self._controller = controller
        self._on_demand = on_demand
        self._catalog = controller.catalog
        self._poll_s = poll_s
        self._settle_s = settle_s
        self._history = ListingHistory()
        self._acted: dict[str, object] = {}
        """Fingerprint of each model when it was loaded last, successfully or not."""
        if self._catalog.namespaces is not None:
            self._catalog.namespaces.look_at(self._acted.__contains__)
        self._relinked: dict[str, frozenset[str]] = {}
        """Members with which ensembles were last loaded because other models were meant than before."""
        self._contents: dict[str, bytes] = {}
        """Digest of each loaded model's files: a model that was only touched is not loaded again."""
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._is_unsettled = False
        self._unreadable: dict[str, str] = {}
        """Why stores cannot be read, by location."""
        self._problems: dict[str, str] = {}
        """Why models could not be opened at the last listing."""
        self._seen: dict[str, dict[str, bytes]] = {}
        """Fingerprints of the models of each store when it could be read last."""
        self._pool = ThreadPoolExecutor(_WORK_THREADS, thread_name_prefix="poll-work")
        self._thread = threading.Thread(target=self._run, name="poll", daemon=True)

    def start(self) -> bool:
        """Load everything that is there, then begin to poll; whether all of it is ready. Raises InferError."""
        seen, _, has_problem = self._list()
        if self._unreadable and not self._catalog.may_start_without(self._unreadable):
            raise internal("; ".join(self._unreadable.values()))
        self._acted.update(seen)
        with LoadPool(_WORK_THREADS, "start") as pool:
            found = list(pool.results([pool.submit(self._load, name) for name in seen]))
        self._thread.start()
        return all(found) and not has_problem and not self._unreadable

    def stop(self, timeout_s: float) -> None:
        """Poll no more; wait at most `timeout_s` for a listing in progress."""
        self._stop.set()
        if timeout_s:
            if self._thread.is_alive():
                # Not longer: an unreachable store would use up the time that requests may take.
                self._thread.join(min(timeout_s, _LAST_LISTING_S))
            self._pool.shutdown(wait=False, cancel_futures=True)

    # --- listing ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        keep_running("looking at the model repositories", self._poll_until_stop, self._stop.wait)

    def _poll_until_stop(self) -> None:
        while not self._stop.wait(min(_SOON_S, self._poll_s) if self._is_unsettled else self._poll_s):
            self._poll_once()

    def _poll_once(self) -> None:
        seen, incomplete, _ = self._list()
        if self._stop.is_set():
            return
        now_s = time.monotonic()
        listing = self._history.observe(seen, incomplete, self._acted, now_s)
        begun: set[str] = set()
        # Until nothing is left: a model that is about to be loaded may be another member of an ensemble.
        while steps := [step for step in self._plan(listing, now_s) if step.name not in begun]:
            for step in steps:
                begun.add(step.name)
                self._begin(step, listing[step.name].files)
        self._is_unsettled = any(listed.files != self._acted.get(name) for name, listed in listing.items())

    def _plan(self, listing: Mapping[str, Listed], now_s: float) -> list[ControlStep]:
        with self._lock:
            busy = set(self._busy)
        state = self._state()
        now = {
            name: replace(listed, members=self._members(name, state), is_held=listed.is_held or name in busy)
            for name, listed in listing.items()
        }
        wanted = [name for name, listed in now.items() if listed.files is not None]
        steps = reconcile(wanted, now, state, now_s=now_s, settle_s=self._settle_s)
        moving = busy.union(step.name for step in steps)
        chosen: list[ControlStep] = []
        for step in steps:
            if step.action is Action.SUSPEND:
                continue  # the unload of a model suspends the ensembles above it itself
            has_changed = step.action is Action.UNLOAD or now[step.name].files != self._acted.get(step.name)
            if has_changed or state[step.name].members.isdisjoint(moving):
                chosen.append(step)
                if (members := now[step.name].members) is not None:
                    self._relinked[step.name] = members
        return chosen

    def _state(self) -> dict[str, LoadedModel]:
        """Return the models that were acted upon, with the fingerprints that they had then."""
        loaded = self._controller.loaded.state(self._acted)
        failed = self._controller.loaded.state(self._acted.keys() - loaded.keys(), with_failed=True)
        state: dict[str, LoadedModel] = {}
        for name, files in self._acted.items():
            if name in loaded:
                # The controller loads an ensemble again when one of its members was loaded.
                known = replace(loaded[name], member_generations=None)
            else:
                known = failed.get(name, NEVER_LOADED)
            state[name] = replace(known, files=files, has_failed=not known.is_served)
        return state

    def _members(self, name: str, state: Mapping[str, LoadedModel]) -> frozenset[str] | None:
        """Return the members of an ensemble if other models may be meant now than when it was loaded last."""
        namespaces = self._catalog.namespaces
        if namespaces is None or name not in state:
            return None
        if state[name].is_served:
            namespaces.unclear.pop(name, None)  # it serves on with the members that it had
        names = namespaces.unclear.get(name)
        links = namespaces.links(name, names or {*map(name_of, state[name].members)})
        if names and len(links) != len(names):
            self._relinked.pop(name, None)
            return None
        return None if self._relinked.get(name) == links else links

    def _list(self) -> tuple[dict[str, bytes], list[str], bool]:
        """Return fingerprints of all models, which of them are incomplete, and whether some cannot be opened.

        The models of a store that cannot be read keep their fingerprints: a share or a bucket that is away for a
        minute is no reason to unload anything. For those that cannot be opened the index has the reason.
        """
        look = self._catalog.stores.look()
        self._note_unreadable({location: error.message for location, error in look.unreadable.items()})
        now: dict[str, dict[str, bytes]] = {each: self._seen.get(each, {}) for each in look.unreadable}
        owners = {name: [location] for location, models in now.items() for name in models}
        incomplete: list[str] = []
        problems: dict[str, str] = {}
        for name, listings in sorted(look.listings.items()):
            where = [*owners.get(name, []), *(location for location, _ in listings)]
            owners[name] = where
            try:
                if len(where) > 1:
                    raise invalid_argument(f"{DUPLICATE}: {', '.join(where)}")
                _, listing = listings[0]
                now.setdefault(where[0], {})[name] = listing.fingerprint or fingerprint_of(listing.open())
            except (InferError, OSError) as error:
                problems[name] = reason = reason_of(error)
                # Again, because an unload removes it from the index.
                self._catalog.note_failure(name, reason, is_known=self._problems.get(name) == reason)
                continue
            if listing.is_incomplete:
                incomplete.append(name)
        self._seen, self._problems = now, problems
        seen = {name: look for models in now.values() for name, look in models.items() if len(owners[name]) == 1}
        return seen, incomplete, bool(problems)

    def _note_unreadable(self, unreadable: Mapping[str, str]) -> None:
        for location, reason in unreadable.items():
            if location not in self._unreadable:
                _log.error("the model repositories cannot be read, what is loaded stays: %s", reason)
        for location in self._unreadable:
            if location not in unreadable:
                _log.info("the model repositories can be read again: %s", location)
        self._unreadable = dict(unreadable)

    # --- steps ------------------------------------------------------------------------------------------------------

    def _begin(self, step: ControlStep, files: object) -> None:
        """Make a step on a thread of the pool."""
        name, work = step.name, self._work(step, files)
        if step.action is Action.UNLOAD:
            del self._acted[name]
        else:
            self._acted[name] = files
        with self._lock:
            self._busy.add(name)

        def run() -> None:
            try:
                work(name)
            except BaseException as error:
                # The outcome is not awaited, and the model is not loaded again before it changes.
                report(f"working on model '{name}'", error)
            finally:
                with self._lock:
                    self._busy.discard(name)

        self._pool.submit(run)

    def _work(self, step: ControlStep, files: object) -> Callable[[str], object]:
        if step.action is Action.UNLOAD:
            return self._unload
        is_relinked = step.action is Action.UPDATE and self._acted.get(step.name) == files
        return self._relink if is_relinked else self._load

    def _load(self, name: str) -> bool:
        """Load a model unless its files hold what is already served; errors are in the log and the index."""
        try:
            if self._on_demand is not None and self._on_demand.register(name):
                return True
            contents = self._catalog.stores.contents(name)
            if self._catalog.is_served(name) and self._contents.get(name) == contents:
                _log.info("model '%s' was touched, its files hold what is loaded", name)
                self._catalog.forgive_updates(name)
                return True
            self._load_now(name)
            self._contents[name] = contents
        except InferError as error:
            # A version that failed to load is in the log and the index already.
            if error.triton_code is ErrorCode.INTERNAL and not self._catalog.is_served(name):
                self._catalog.note_failure(name, reason_of(error))
            return False
        except OSError as error:
            self._catalog.note_failure(name, reason_of(error))
            return False
        return True

    def _load_now(self, name: str) -> None:
        """Load a model, or only know it if it is on demand. Raises InferError."""
        load = functools.partial(self._controller.load, name, {}, is_by_client=False)
        if self._on_demand is None:
            load()
        else:
            stays_cold = self._on_demand.stays_cold
            self._on_demand.load_by_command(name, functools.partial(load, stays_cold=stays_cold))

    def _relink(self, name: str) -> None:
        """Load an ensemble whose own files are unchanged."""
        try:
            self._load_now(name)
        except InferError as error:
            _log.error("ensemble '%s' stays with the members that it had: %s", name, error.message)

    def _unload(self, name: str) -> None:
        self._contents.pop(name, None)
        if self._on_demand is not None:
            self._on_demand.withdraw(name)
        if self._catalog.namespaces is not None:
            self._catalog.namespaces.unclear.pop(name, None)
        try:
            self._controller.unload(name, {})
        except InferError as error:
            _log.error("unloading '%s' failed: %s", name, error.message)
        if self._on_demand is not None:
            self._on_demand.stay_withdrawn(name)
        self._catalog.forget(name)
