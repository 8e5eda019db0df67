"""Control mode POLL: the repositories are looked at again and again, and what is served follows them.

What a look at the repositories means: which models have changed and are complete. Pure: time is an argument.

A model that is being copied changes from one look to the next. It is taken when it has looked the same for the settle
time, so a half-written file is never loaded, however slow the copy, and one bad model never keeps others waiting.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from naiad.core.errors import ErrorCode, InferError, internal, invalid_argument
from naiad.core.model import name_of
from naiad.repository.catalog import Catalog, reason_of
from naiad.repository.control.explicit import ExplicitControl
from naiad.repository.control.fixed import refuse_commands
from naiad.repository.control.load_order import LoadOrder
from naiad.repository.fingerprint import fingerprint as fingerprint_of
from naiad.repository.lifecycle import V
from naiad.repository.model_plan import ModelPlan, member_names
from naiad.repository.store import ModelListing
from naiad.repository.stores import DUPLICATE


@dataclass(slots=True)
class _Change:
    """A state of a model that differs from what was acted upon."""

    fingerprint: bytes | None
    """None for a model that is gone."""
    since_s: float


class Watch:
    """Remembers how models looked, and tells what has settled since."""

    def __init__(self, settle_s: float) -> None:
        """`settle_s`: how long a model must look the same before it is acted upon."""
        self._settle_s = settle_s
        self._acted: dict[str, bytes] = {}
        """How each model looked when it was last loaded, be it in vain."""
        self._changes: dict[str, _Change] = {}

    @property
    def is_unsettled(self) -> bool:
        """Whether some model has changed and is not acted upon yet, so that another look is due soon."""
        return bool(self._changes)

    def has(self, name: str) -> bool:
        """Tell whether a model was there, whole, when it was acted upon last."""
        return name in self._acted

    def note(self, name: str, fingerprint: bytes) -> None:
        """Record that a model was acted upon as it looked then."""
        self._acted[name] = fingerprint
        self._changes.pop(name, None)

    def look(
        self, seen: Mapping[str, bytes], incomplete: Collection[str], now_s: float
    ) -> tuple[dict[str, bytes], list[str]]:
        """Take in how all models look now; return those to load with how they look, and those to unload.

        `incomplete` are models that say of themselves that they are being written, and those that are being worked
        on: an unload that begins before the load of the same model has ended could be done first.
        """
        to_load: dict[str, bytes] = {}
        for name, fingerprint in seen.items():
            if name in incomplete:
                self._changes[name] = _Change(b"", now_s)
            elif self._acted.get(name) == fingerprint:
                self._changes.pop(name, None)
            elif self._has_settled(name, fingerprint, now_s):
                to_load[name] = fingerprint
        gone = [name for name in self._acted if name not in seen]
        to_unload = [name for name in gone if self._has_settled(name, None, now_s) and name not in incomplete]
        for name in to_unload:
            del self._acted[name]
        for name in [name for name in self._changes if name not in seen and name not in gone]:
            del self._changes[name]
        for name, fingerprint in to_load.items():
            self.note(name, fingerprint)
        for name in to_unload:
            self._changes.pop(name, None)
        return to_load, to_unload

    def _has_settled(self, name: str, fingerprint: bytes | None, now_s: float) -> bool:
        change = self._changes.get(name)
        if change is None or change.fingerprint != fingerprint:
            self._changes[name] = _Change(fingerprint, now_s)
            return self._settle_s <= 0
        return now_s - change.since_s >= self._settle_s


_log = logging.getLogger(__name__)

_SOON_S = 0.5
"""How soon a model that has changed is looked at again."""
_WORK_THREADS = 8
_LAST_LOOK_S = 1.0
"""How long the end waits for a look that has begun; whatever it finds is not acted upon."""


class PollControl(ExplicitControl[V]):
    """Loads what is new or has changed, unloads what is gone; takes no commands."""

    def __init__(self, catalog: Catalog[V], settle: Callable[[], object], *, poll_s: float, settle_s: float) -> None:
        """Look every `poll_s` seconds; a change counts when it has stood for `settle_s`."""
        super().__init__(catalog, settle)
        self._poll_s = poll_s
        self._watch = Watch(settle_s)
        if catalog.namespaces is not None:
            catalog.namespaces.look_at(self._watch.has)
        self._relinked: dict[str, frozenset[str]] = {}
        """With which members ensembles were last loaded anew because those had come or gone."""
        self._unmet: dict[str, frozenset[str]] = {}
        """Ensembles that would not load while some of their members were not served, with all their members."""
        self._contents: dict[str, bytes] = {}
        """What the files of each loaded model hold: one that was only touched is not loaded anew."""
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._unreadable: dict[str, str] = {}
        """Why stores cannot be read, by location."""
        self._seen: dict[str, dict[str, bytes]] = {}
        """How the models of each store looked when it could be read."""
        self._pool = ThreadPoolExecutor(_WORK_THREADS, thread_name_prefix="poll-work")
        self._thread = threading.Thread(target=self._run, name="poll", daemon=True)

    # --- what a mode does -------------------------------------------------------------------------------------------

    def load_at_start(self) -> bool:
        """Load everything that is there, then begin to look; whether all of it is ready. Raises InferError."""
        found: list[bool] = []
        seen, _, has_problem = self._look()
        if self._unreadable:
            raise internal("; ".join(self._unreadable.values()))
        for name, look in seen.items():
            self._watch.note(name, look)
        with ThreadPoolExecutor(_WORK_THREADS, thread_name_prefix="start") as pool:
            found += pool.map(self._load_quietly, seen)
        self._thread.start()
        return all(found) and not has_problem

    def load_model(self, name: str, parameters: Mapping[str, object]) -> None:
        """Refuse. Raises InferError(UNAVAILABLE)."""
        refuse_commands()

    def unload_model(
        self, name: str, parameters: Mapping[str, object], on_withdrawn: Callable[[], object] | None = None
    ) -> None:
        """Refuse. Raises InferError(UNAVAILABLE)."""
        refuse_commands()

    def abandon(self) -> None:
        """Look no more; what is being loaded finishes."""
        self._stop.set()
        super().abandon()

    def unload_all(self, timeout_s: float) -> bool:
        """Unload everything; whether all work and every accepted request finished within `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        self.abandon()
        if self._thread.is_alive():
            # Not for longer: a store that is away would use up the time that requests may take.
            self._thread.join(min(timeout_s, _LAST_LOOK_S))
        self._pool.shutdown(wait=False, cancel_futures=True)
        return super().unload_all(max(0.0, deadline_s - time.monotonic()))

    # --- looking ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(min(_SOON_S, self._poll_s) if self._watch.is_unsettled else self._poll_s):
            try:
                self._poll_once()
            except Exception:
                _log.exception("looking at the model repositories failed")

    def _poll_once(self) -> None:
        seen, incomplete, _ = self._look()
        if self._stop.is_set():
            return
        with self._lock:
            busy = set(self._busy)
        to_load, to_unload = self._watch.look(seen, [*incomplete, *busy], time.monotonic())
        for name in to_load:
            self._begin(name, self._load_quietly)
        for name in to_unload:
            self._begin(name, self._unload_quietly)
        busy.update(to_load, to_unload)
        for name in self._misled(busy):
            self._begin(name, self._relink)
        for name in self._met(busy):
            self._begin(name, self._load_quietly)

    def _misled(self, busy: Collection[str]) -> list[str]:
        """Return the ensembles some of whose members have come, or gone, in another namespace."""
        namespaces = self._catalog.namespaces
        if namespaces is None:
            return []
        found = []
        for name, record in list(self._records.items()):
            if name in busy or not self._is_misled(name, record):
                continue
            links = namespaces.links(name, {*map(name_of, record.members)})
            if self._relinked.get(name) != links:
                self._relinked[name] = links
                found.append(name)
        return found

    def _look(self) -> tuple[dict[str, bytes], list[str], bool]:
        """Return how all models look, which of them are incomplete, and whether some cannot be opened.

        Of a store that cannot be read models look as they did when it could: what is served goes on, for a share or
        a bucket that is away for a minute is no reason to unload anything. Of those that cannot be opened the index
        tells the reason.
        """
        look = self._catalog.stores.look()
        self._note_unreadable(look.unreadable)
        now: dict[str, dict[str, bytes]] = {each: self._seen.get(each, {}) for each in look.unreadable}
        owners = {name: [location] for location, models in now.items() for name in models}
        incomplete: list[str] = []
        has_problem = False
        for name, listings in sorted(look.listings.items()):
            where = [*owners.get(name, []), *(location for location, _ in listings)]
            owners[name] = where
            try:
                if len(where) > 1:
                    raise invalid_argument(f"{DUPLICATE}: {', '.join(where)}")
                _, listing = listings[0]
                now.setdefault(where[0], {})[name] = _fingerprint(listing)
            except (InferError, OSError) as error:
                self._catalog.note_failure(name, reason_of(error))
                has_problem = True
                continue
            if listing.is_incomplete:
                incomplete.append(name)
        self._seen = now
        seen = {name: look for models in now.values() for name, look in models.items() if len(owners[name]) == 1}
        return seen, incomplete, has_problem

    def _note_unreadable(self, unreadable: Mapping[str, str]) -> None:
        for location, reason in unreadable.items():
            if location not in self._unreadable:
                _log.error("the model repositories cannot be read, what is loaded stays: %s", reason)
        for location in self._unreadable:
            if location not in unreadable:
                _log.info("the model repositories can be read again: %s", location)
        self._unreadable = dict(unreadable)

    def _begin(self, name: str, work: Callable[[str], object]) -> None:
        with self._lock:
            self._busy.add(name)

        def run() -> None:
            try:
                work(name)
            except Exception:
                # Nobody waits for the outcome, and the model is not looked at again before it changes.
                _log.exception("working on model '%s' failed", name)
            finally:
                with self._lock:
                    self._busy.discard(name)

        self._pool.submit(run)

    def _met(self, busy: Collection[str]) -> list[str]:
        """Return the ensembles that would not load for want of members which are there now."""
        namespaces = self._catalog.namespaces
        found = []
        for name, members in list(self._unmet.items()):
            now = members if namespaces is None else namespaces.links(name, {*map(name_of, members)})
            if name not in busy and all(map(self._catalog.is_served, now)):
                found.append(name)
        if namespaces is not None:
            for name, names in list(namespaces.unclear.items()):
                if self._catalog.is_served(name):
                    del namespaces.unclear[name]  # it serves on with the members that it had
                elif name not in busy and len(namespaces.links(name, names)) == len(names):
                    found.append(name)
        return found

    # --- acting -----------------------------------------------------------------------------------------------------

    def _load_quietly(self, name: str) -> bool:
        """Load a model unless its files hold what is served already; what goes wrong is in the log and the index."""
        try:
            contents = self._catalog.stores.contents(name)
            if self._catalog.is_served(name) and self._contents.get(name) == contents:
                _log.info("model '%s' was touched, its files hold what is loaded", name)
                return True
            self._load_by_name(name, {}, is_by_client=False)
            self._contents[name] = contents
        except InferError as error:
            # A version that failed to load has said so already.
            if error.code is ErrorCode.INTERNAL and not self._catalog.is_served(name):
                self._catalog.note_failure(name, reason_of(error))
            return False
        except OSError as error:
            self._catalog.note_failure(name, reason_of(error))
            return False
        return True

    def _load_one(self, order: LoadOrder, plan: ModelPlan) -> None:
        name, members = plan.entry.key, member_names(plan.config)
        lacks_members = not all(map(self._catalog.is_served, members))
        self._unmet.pop(name, None)
        try:
            super()._load_one(order, plan)
        except InferError:
            if lacks_members:
                self._unmet[name] = frozenset(members)
            raise

    def _relink(self, name: str) -> None:
        """Load an ensemble whose own files are as they were."""
        try:
            self._load_by_name(name, {}, is_by_client=False)
        except InferError as error:
            _log.error("ensemble '%s' stays with the members that it had: %s", name, error.message)

    def _unload_quietly(self, name: str) -> None:
        self._contents.pop(name, None)
        self._unmet.pop(name, None)
        if self._catalog.namespaces is not None:
            self._catalog.namespaces.unclear.pop(name, None)
        try:
            super().unload_model(name, {})
        except InferError as error:
            _log.error("unloading '%s' failed: %s", name, error.message)
        self._catalog.forget(name)


def _fingerprint(listing: ModelListing) -> bytes:
    return listing.fingerprint or fingerprint_of(listing.open())
