"""Commands to load and unload models while the server runs: control mode EXPLICIT.

Everything here blocks and is called from threads of control, never on the event loop. Of the commands that concern
the same models one waits for the other. The state of a model is what the catalog's life cycle says; what is kept here
is why a model is loaded and from what.

Who works on which models: loads and unloads of the same model come one after the other, others side by side.
"""

import fnmatch
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from naiad.config.in_place import may_stay
from naiad.core.errors import InferError, UnloadableError, excerpt, internal, invalid_argument, unavailable
from naiad.core.model import ModelKey, name_of
from naiad.repository import malloc_trim as heap
from naiad.repository.catalog import Catalog, reason_of, stop_version
from naiad.repository.control.fixed import NoControl
from naiad.repository.control.load_order import LoadOrder, LoadRecord
from naiad.repository.control.override import DRY_RUN, FORCE, Override, UploadedFiles, read_override, with_config
from naiad.repository.fingerprint import file_state
from naiad.repository.lifecycle import LoadedVersion, V
from naiad.repository.model_plan import ModelPlan, by_dependency, member_names
from naiad.repository.namespaces import ambiguous


class ModelLocks:
    """Names that are being worked on. What a piece of work needs is claimed at once, so nobody waits in a circle."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._claimed: set[str] = set()

    @contextmanager
    def hold(self, names: Collection[str]) -> Iterator[None]:
        """Wait until nobody works on any of `names`, and keep others from it meanwhile."""
        wanted = set(names)
        with self._condition:
            self._condition.wait_for(lambda: self._claimed.isdisjoint(wanted))
            self._claimed |= wanted
        try:
            yield
        finally:
            with self._condition:
                self._claimed -= wanted
                self._condition.notify_all()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nobody works on anything; whether that came about in time."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._claimed, timeout_s)


_log = logging.getLogger(__name__)

FINISH_TIMEOUT_S = 600.0
"""How long requests of a version that was replaced or unloaded may take to finish."""
_START_THREADS = 8
_PATTERN = frozenset("*?[")
"""What makes a name at start stand for all models whose names match."""


class ExplicitControl(NoControl[V]):
    """Mode EXPLICIT: what is loaded at start is named, and commands do the rest."""

    def __init__(self, catalog: Catalog[V], settle: Callable[[], object], at_start: Sequence[str] = ()) -> None:
        """`settle` waits until nobody on the event loop can still be about to use what was replaced."""
        super().__init__(catalog)
        self._settle = settle
        self._at_start = at_start
        self._claims = ModelLocks()
        self._records: dict[str, LoadRecord] = {}
        """A record is changed only by who has claimed its name."""
        self._is_stopping = False

    # --- commands ---------------------------------------------------------------------------------------------------

    def load_at_start(self) -> bool:
        """Load the models named at start, which may be patterns; whether all of them are ready. Raises InferError."""
        names, all_found = self._names_at_start()
        if not names:
            return all_found
        with ThreadPoolExecutor(min(len(names), _START_THREADS), thread_name_prefix="start") as pool:
            return all([all_found, *pool.map(self._load_named, names)])

    def _names_at_start(self) -> tuple[list[str], bool]:
        """Return the models that are named at start, and whether every pattern stands for some. Raises InferError."""
        names: dict[str, None] = {}
        all_found = True
        for wanted in self._at_start:
            if not _PATTERN.intersection(wanted):
                names[wanted] = None
                continue
            found = fnmatch.filter({name_of(key) for key in self._catalog.stores.list_names()}, wanted)
            names |= dict.fromkeys(found)
            if not found and wanted != "*":
                _log.error("--load-model=%s: no model of any repository has such a name", wanted)
                all_found = False
        return list(names), all_found

    def _load_named(self, name: str) -> bool:
        try:
            self._load_by_name(name, {}, is_by_client=False)
        except InferError:
            return False  # what went wrong is in the log
        return True

    def load_model(self, name: str, parameters: Mapping[str, object]) -> None:
        """Load a model, or load it anew if its files or its configuration have changed.

        What is served goes on until the new versions are in place, and for good when they fail. Members of an
        ensemble are loaded with it. Raises InferError: INTERNAL when there is nothing to load, INVALID_ARG when
        loading fails. As a rehearsal (`dry_run`), everything is done and nothing is put in place. With namespaces,
        all models of that name are loaded.
        """
        self._load_by_name(name, parameters, is_by_client=True)

    def _load_by_name(self, name: str, parameters: Mapping[str, object], *, is_by_client: bool) -> None:
        keys = self._catalog.named(name)
        override = read_override(name_of(keys[0]), parameters)
        if override is not None and override.files and len(keys) > 1:
            raise ambiguous(name, len(keys))
        failure: InferError | None = None
        for key in keys:
            try:
                self._load_key(key, override, parameters, is_by_client=is_by_client)
            except InferError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _load_key(
        self, key: str, override: Override | None, parameters: Mapping[str, object], *, is_by_client: bool
    ) -> None:
        order = LoadOrder(
            key,
            override,
            is_forced=bool(parameters.get(FORCE)),
            is_rehearsal=bool(parameters.get(DRY_RUN)),
            is_by_client=is_by_client,
        )
        try:
            self._make_plans(order)
            with self._claims.hold(order.plans):
                if self._is_stopping:
                    raise unavailable("Server not ready")
                if order.is_rehearsal:
                    self._dry_run(order)
                else:
                    self._load(order)
        finally:
            order.release()
            self._hold_ensembles_against(order.replaced)

    def unload_model(
        self, name: str, parameters: Mapping[str, object], on_withdrawn: Callable[[], object] | None = None
    ) -> None:
        """Unload a model, return when its requests have finished and what it held is free.

        `on_withdrawn` is called before that, when it takes no more requests, unless it took none anyway.
        With `unload_dependents` the members of an ensemble go as well, unless a command has loaded them or another
        ensemble needs them. With namespaces all models of that name go. Triton: a model that is not there is as good
        as unloaded, and ensembles that contain a model are unloaded with it until it is loaded again.
        """
        for key in self._catalog.known_as(name):
            names = [key]
            if parameters.get("unload_dependents"):
                names += self._members_to_unload(key)
            above = self._ensembles_above(names)
            with self._claims.hold([*above, *names]):
                for ensemble in above:
                    if self._catalog.is_served(ensemble):
                        _log.info("unloading ensemble '%s', which contains '%s'", ensemble, key)
                        self._catalog.unload(ensemble, self._settle, FINISH_TIMEOUT_S)
                for each in names:
                    self._unload(each, on_withdrawn if each == key else None)

    def _ensembles_above(self, names: Sequence[str]) -> list[str]:
        """Return the ensembles that contain any of these models, the outer ones first; none of the models."""
        found: dict[str, None] = {}
        waiting = list(names)
        while waiting:
            for ensemble in self.ensembles_of(waiting.pop(0)):
                if ensemble not in names:
                    # An ensemble that several paths lead to goes before all that it contains.
                    found.pop(ensemble, None)
                    found[ensemble] = None
                    waiting.append(ensemble)
        return list(reversed(found))

    def abandon(self) -> None:
        """Take no more commands; what is being loaded finishes."""
        self._is_stopping = True
        super().abandon()

    def unload_all(self, timeout_s: float) -> bool:
        """Unload everything; whether all work and every accepted request finished within `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        self.abandon()
        in_time = self._claims.wait_idle(timeout_s)
        in_time = self._catalog.unload_all(max(0.0, deadline_s - time.monotonic())) and in_time
        for record in list(self._records.values()):
            if record.retirement is not None:
                record.retirement.join(max(0.0, deadline_s - time.monotonic()))
                in_time = in_time and not record.retirement.is_alive()
            record.let_go()
        return in_time

    def ensembles_of(self, name: str) -> list[str]:
        """Return the loaded ensembles that have a model among their members."""
        return [key for key, record in list(self._records.items()) if name in record.members]

    # --- loading ----------------------------------------------------------------------------------------------------

    def _make_plans(self, order: LoadOrder) -> None:
        """Find out what is to be loaded. Raises InferError: INTERNAL unless it could be read."""
        try:
            self._plan(order, order.name, order.override)
        except Exception as error:
            reason = reason_of(error)
            if self._catalog.is_served(order.name):
                self._catalog.note_failure(order.name, reason)
            elif isinstance(error, UnloadableError) and not order.is_by_client:
                self._catalog.note_failure(order.name, reason, counts=True)
            else:
                _log.error("Poll failed for model '%s': %s", order.name, reason)
            if isinstance(error, UnloadableError):
                raise invalid_argument(f"load failed for model '{excerpt(order.name)}': {reason}\n") from None
            raise internal(
                f"failed to load '{excerpt(order.name)}', failed to poll from model repository: {reason}"
            ) from None
        waiting = list(member_names(order.plans[order.name].config))
        while waiting:
            member = waiting.pop()
            if member in order.plans:
                continue
            try:
                self._plan(order, member, None)
            except Exception as error:
                # The ensemble's own failure follows from it, unless what is served is still good.
                _log.error("Poll failed for model '%s': %s", member, reason_of(error))
            else:
                waiting += member_names(order.plans[member].config)

    def _plan(self, order: LoadOrder, name: str, override: Override | None) -> None:
        if override is not None and override.files:
            order.files = UploadedFiles(name_of(name), override.files)
            order.files_seen[name] = None
            entry = order.files.entry(override.config)
            if isinstance(name, ModelKey):
                entry = replace(entry, namespace=name.namespace)
        else:
            entry = self._catalog.stores.find(name)
            order.note_opened(entry)
            order.files_seen[name] = file_state(entry)
            if override is not None:
                entry = with_config(entry, override)
        record = self._records.get(name)
        if record is not None and self._is_current(order, name):
            order.plans[name] = record.plan
            order.borrowed.add(name)
        else:
            order.plans[name] = self._catalog.plan(entry)
            order.borrowed.discard(name)

    def _load(self, order: LoadOrder) -> None:
        failure: InferError | None = None
        for group in by_dependency(list(order.plans.values())):
            for plan in group:
                name = plan.entry.key
                if self._is_current(order, name):
                    order.give_back(name)
                    continue
                try:
                    self._load_one(order, replace(self._own_plan(order, name), circle=plan.circle))
                except InferError as error:
                    if name == order.name:
                        failure = error
        if failure is not None:
            raise failure
        self._records[order.name].is_explicit = True

    def _dry_run(self, order: LoadOrder) -> None:
        """Load what a load would, and let go of it again. Raises InferError as a load.

        An ensemble is held against those of its members that are served.
        """
        for group in by_dependency(list(order.plans.values())):
            for plan in group:
                if not self._is_current(order, plan.entry.key):
                    self._catalog.dry_run(plan)

    def _hold_ensembles_against(self, replaced: Collection[str]) -> None:
        """Load the ensembles anew that have a replaced member: whether they still fit shows in the index.

        Among them are those that were unloaded with a member, once all their members are there again.
        """
        ensembles = {ensemble for name in replaced for ensemble in self.ensembles_of(name)}
        for ensemble in sorted(ensembles.difference(replaced)):
            with self._claims.hold([ensemble]):
                was_served = self._catalog.is_served(ensemble)
                is_served = self._hold_against_members(ensemble)
            if is_served and not was_served:
                self._hold_ensembles_against([ensemble])

    def _hold_against_members(self, ensemble: str) -> bool:
        """Load an ensemble anew that is claimed, if its members are there; whether it is served then."""
        record = self._records.get(ensemble)
        if record is None or self._is_stopping or not all(map(self._catalog.is_served, record.members)):
            return False
        if record.retirement is not None:
            record.retirement.join()
        try:
            replaced = self._catalog.load(record.plan, counts=False)
        except InferError as error:
            _log.error("ensemble '%s' does not fit its members any more: %s", ensemble, error.message)
            return False
        record.retirement = self._retire(ensemble, replaced.versions, None)
        return True

    def _own_plan(self, order: LoadOrder, name: str) -> ModelPlan:
        """Return a plan to load from: what seemed to be loaded may have gone before it was this command's turn."""
        if name in order.borrowed:
            self._plan(order, name, None)
        return order.plans[name]

    def _is_current(self, order: LoadOrder, name: str) -> bool:
        """Tell whether what is served of a model is what a load would bring."""
        record = self._records.get(name)
        if record is None or not self._catalog.is_served(name):
            return False
        if name == order.name and order.is_forced:
            return False
        if name != order.name and record.is_overridden:
            return True  # a command wanted it so; an ensemble that needs it does not undo that
        if not record.members.isdisjoint(order.replaced) or self._is_misled(name, record):
            return False
        overrides = name == order.name and order.override is not None
        # Triton: an override stays until some file of the model has changed.
        return not overrides and record.files_seen == order.files_seen[name]

    def _is_misled(self, name: str, record: LoadRecord) -> bool:
        """Tell whether an ensemble would have other members if it was loaded now."""
        namespaces = self._catalog.namespaces
        if namespaces is None or not record.members:
            return False
        return namespaces.links(name, {*map(name_of, record.members)}) != record.members

    def _load_one(self, order: LoadOrder, plan: ModelPlan) -> None:
        name = plan.entry.key
        order.borrowed.add(name)  # from here on it is the catalog's
        previous = self._records.get(name)
        if previous is not None and previous.retirement is not None:
            # At most one old set of versions of a model is about, however often it is loaded.
            previous.retirement.join()
        counts = not order.is_by_client
        replaced = self._catalog.load(plan, self._unchanged_versions(order, plan), counts=counts)
        order.replaced.add(name)
        is_requested = name == order.name
        record = self._records[name] = LoadRecord(
            order.files_seen[name],
            plan,
            frozenset(member_names(plan.config)),
            is_explicit=previous is not None and previous.is_explicit,
            is_overridden=is_requested and order.override is not None,
        )
        if is_requested:
            record.files, order.files = order.files, None
        record.release = order.releases.pop(name, None)
        for instances in replaced.left_over:
            # Triton: an update in place is over when the instances that leave are gone.
            stop_version(instances, FINISH_TIMEOUT_S)
        record.retirement = self._retire(name, replaced.versions, previous)

    def _unchanged_versions(self, order: LoadOrder, plan: ModelPlan) -> set[int]:
        """Return the versions whose files are as they were loaded, if the configuration still fits them."""
        name = plan.entry.key
        record = self._records.get(name)
        now = order.files_seen[name]
        if record is None or now is None or record.files_seen is None or (name == order.name and order.is_forced):
            return set()
        if record.plan.agents is not None:
            return set()  # what is served may lie where its agents have put it, and they go
        return now.unchanged_versions(record.files_seen) if may_stay(record.plan.config, plan.config) else set()

    def _retire(
        self, name: str, replaced: Sequence[LoadedVersion], previous: LoadRecord | None
    ) -> threading.Thread | None:
        """Have versions finish their requests and go, while those that replace them serve."""
        if not replaced:
            if previous is not None:
                previous.let_go()
            return None

        def stop() -> None:
            self._settle()
            for version in replaced:
                stop_version(version, FINISH_TIMEOUT_S)
            heap.trim()
            if previous is not None:
                previous.let_go()
            _log.info("released the versions of '%s' that were replaced", name)

        thread = threading.Thread(target=stop, name=f"retire-{name}", daemon=True)
        thread.start()
        return thread

    # --- unloading --------------------------------------------------------------------------------------------------

    def _unload(self, name: str, on_withdrawn: Callable[[], object] | None) -> None:
        def settle() -> None:
            if on_withdrawn is not None:
                on_withdrawn()
            self._settle()

        self._catalog.unload(name, settle, FINISH_TIMEOUT_S)
        record = self._records.pop(name, None)
        if record is None:
            return
        if record.retirement is not None:
            record.retirement.join()
        record.let_go()

    def _members_to_unload(self, name: str) -> list[str]:
        """Return the members of an ensemble that nothing but it has loaded, those of its members included."""
        found: list[str] = []
        going = {name}
        waiting = sorted(self._members(name))
        while waiting:
            member = waiting.pop(0)
            record = self._records.get(member)
            if record is None or record.is_explicit or member in going:
                continue
            if any(member in other.members for key, other in list(self._records.items()) if key not in going):
                continue
            going.add(member)
            found.append(member)
            waiting += sorted(record.members)
        return found

    def _members(self, name: str) -> frozenset[str]:
        record = self._records.get(name)
        return frozenset() if record is None else record.members
