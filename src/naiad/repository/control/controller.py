"""Carries out what the reconciler plans: it loads, updates and unloads models, one piece of work per model at a time.

Everything here blocks and is called on control threads, never on the event loop. The catalog's life cycle holds the
state of each model, `LoadedModels` what it was loaded from and why, `LoadPlanning` finds what is to be loaded.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Generic

from naiad.config.changes.configuration_changes import config_changes, may_stay
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, MisfitError, invalid_argument, unavailable
from naiad.core.model import model_key, name_of
from naiad.repository.catalog import Catalog
from naiad.repository.control.load_order import (
    DRY_RUN,
    FORCE,
    LoadOrder,
    LoadRecord,
    Override,
    read_override,
)
from naiad.repository.control.loaded_models import LoadedModels
from naiad.repository.control.locks import ModelLocks
from naiad.repository.control.planning import LoadPlanning
from naiad.repository.control.reconcile import Unload, ensembles_above, reconcile, unloaded
from naiad.repository.lifecycle import LoadedVersion, V
from naiad.repository.loads import stop_version
from naiad.repository.model_plan import ModelPlan, by_dependency, member_names
from naiad.repository.stores.namespaces import ambiguous
from naiad.telemetry.last_resort import report
from naiad.telemetry.trim_pace import heap_trims

_log = logging.getLogger(__name__)

_RELOAD_WAIT_S = 10.0
"""Limit of the time that a load waits for replaced instances, which may have live sequences."""
FINISH_TIMEOUT_S = 600.0
"""How long requests of a version that was replaced or unloaded may take to finish."""


class ModelController(Generic[V]):
    """Loads and unloads models with their members and the ensembles above them."""

    def __init__(self, catalog: Catalog[V], settle: Callable[[], object]) -> None:
        """`settle` waits until the event loop can no longer be about to use what was replaced."""
        self.catalog = catalog
        self._settle = settle
        self._locks = ModelLocks()
        self.loaded = LoadedModels(catalog)
        """What the loaded models were loaded from."""
        self._planning = LoadPlanning(catalog, self.loaded)
        self._orders: set[LoadOrder] = set()
        """The commands in progress that hold the locks of their models."""
        self._is_stopping = False

    # --- commands ---------------------------------------------------------------------------------------------------

    def load(
        self,
        name: str,
        parameters: Mapping[str, object],
        *,
        is_by_client: bool,
        is_owner: bool = True,
        stays_cold: Callable[[ModelPlan], bool] = lambda plan: False,
    ) -> None:
        """Load a model, or load it again if its files or its configuration have changed.

        Without `is_owner` a configuration may change only what `config.override` lists. A planned model for which
        `stays_cold` returns true is not loaded.

        The served versions stay until the new ones are in place, and permanently if these fail. Members of an
        ensemble are loaded with it. Raises InferError: INTERNAL when there is nothing to load, INVALID_ARG when
        loading fails. A dry run (`dry_run`) does everything except putting the model in place. With namespaces, all
        models of that name are loaded.
        """
        keys = self.catalog.named(name)
        override = read_override(name_of(keys[0]), parameters)
        if override is not None:
            override = replace(override, is_limited=not is_owner)
            if override.files and len(keys) > 1:
                raise ambiguous(name, len(keys))
        failure: InferError | None = None
        for key in keys:
            try:
                self._load_key(key, override, parameters, is_by_client=is_by_client, stays_cold=stays_cold)
            except InferError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _load_key(
        self,
        key: str,
        override: Override | None,
        parameters: Mapping[str, object],
        *,
        is_by_client: bool,
        stays_cold: Callable[[ModelPlan], bool],
    ) -> None:
        order = LoadOrder(key, override, is_forced=bool(parameters.get(FORCE)), is_by_client=is_by_client)
        try:
            self._planning.prepare(order)
            if stays_cold(order.plans[key]):
                return
            with self._locks.hold_planned(lambda: self._planning.names_of(order)):
                if self._is_stopping:
                    raise unavailable("Server not ready")
                self._orders.add(order)
                if parameters.get(DRY_RUN):
                    self._dry_run(order)
                else:
                    self._load(order)
        finally:
            self._orders.discard(order)
            order.release()
            self._match_ensembles(order.loaded)

    def load_beside(self, key: str) -> None:
        """Load the versions that a model's rollout needs; the served ones stay, also if their files have changed.

        Raises InferError as `load`, and for a model that serves what a client has brought along.
        """
        record = self.loaded.records.get(key)
        if record is not None and record.is_overridden:
            raise invalid_argument(
                f"rollout of model '{name_of(key)}': a client has loaded it with a configuration or files of its "
                "own, beside which no version of the repository can be loaded; load it from the repository first"
            )
        order = LoadOrder(key, None, is_beside=True)
        try:
            self._planning.prepare(order)
            with self._locks.hold(order.plans):
                if self._is_stopping:
                    raise unavailable("Server not ready")
                self._load(order)
        finally:
            order.release()
            self._match_ensembles(order.loaded)

    def unload(
        self, name: str, parameters: Mapping[str, object], on_withdrawn: Callable[[], object] | None = None
    ) -> None:
        """Unload a model, return when its requests have finished and its resources are free.

        `on_withdrawn` is called before that, when it takes no more requests, unless it took none anyway.
        With `unload_dependents` the members of an ensemble are unloaded too, except those that a command has loaded
        and those that another ensemble needs. With namespaces all models of that name are unloaded. Triton: a model
        that does not exist counts as unloaded, and ensembles that contain a model are unloaded with it until it is
        loaded again.
        """
        with_dependents = bool(parameters.get("unload_dependents"))
        for key in self.catalog.known_as(name):
            self._end_loads(key)
            self._unload_key(key, with_dependents=with_dependents, on_withdrawn=on_withdrawn)

    def evict(self, key: str, may_leave: Callable[[], bool]) -> None:
        """Unload a model as `unload` does, if it may leave still when it is its turn.

        Unlike a command it ends no load of the model that is in progress: what that brings is newer.
        """
        self._unload_key(key, with_dependents=False, on_withdrawn=None, is_due=may_leave)

    def _unload_key(
        self,
        key: str,
        *,
        with_dependents: bool,
        on_withdrawn: Callable[[], object] | None,
        is_due: Callable[[], bool] = lambda: True,
    ) -> None:
        def work() -> Unload:
            return unloaded(key, self.loaded.ensembles(), with_dependents=with_dependents)

        with self._locks.hold_planned(lambda: work().concerned):
            if not is_due():
                return
            now = work()
            self._suspend(now.suspended, f"'{key}'")
            for each in now.names:
                self._unload(each, on_withdrawn if each == key else None)

    def _end_loads(self, name: str) -> None:
        """End the load of a model that a command has named and that is in progress: it fails, nothing of it stays.

        The load of an ensemble that contains the model goes on; the unload waits for it.
        """
        for order in list(self._orders):
            if order.name == name:
                _log.info("ending the load of '%s', which is to be unloaded", name)
                order.stop.request("the load was ended by an unload of the model")

    def abandon(self) -> None:
        """Take no more commands; loads in progress end at their next step."""
        self._is_stopping = True
        self.catalog.abandon()

    def unload_all(self, timeout_s: float) -> bool:
        """Unload everything; False when work or an accepted request did not finish within `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        self.abandon()
        in_time = self._locks.wait_idle(timeout_s)
        in_time = self.catalog.unload_all(max(0.0, deadline_s - time.monotonic())) and in_time
        for record in list(self.loaded.records.values()):
            if record.retirement is not None:
                record.retirement.join(max(0.0, deadline_s - time.monotonic()))
                in_time = in_time and not record.retirement.is_alive()
            record.release_files()
        return in_time

    # --- loading ----------------------------------------------------------------------------------------------------

    def _load(self, order: LoadOrder) -> None:
        failure: InferError | None = None
        plans = {plan.entry.key: plan for group in by_dependency(list(order.plans.values())) for plan in group}
        tried: set[str] = set()
        # Planned again after each step: whether an ensemble is loaded depends on what has become of its members.
        while left := [name for name in self._planning.to_load(order, plans) if name not in tried]:
            name = left[0]
            tried.add(name)
            if order.stop.is_requested:
                raise invalid_argument(f"load failed for model '{order.name}': {order.stop.reason}\n")
            try:
                self._load_one(order, replace(self._planning.own_plan(order, name), circle=plans[name].circle))
            except InferError as error:
                if name == order.name:
                    failure = error
        if failure is not None:
            raise failure
        if order.name not in tried:
            self.catalog.forgive_updates(order.name)
        self.loaded.records[order.name].is_explicit = True

    def _dry_run(self, order: LoadOrder) -> None:
        """Load what a load would, and release it again. Raises InferError as a load.

        An ensemble is matched with its served members.
        """
        for name in self._planning.to_load(order, order.plans):
            self.catalog.dry_run(order.plans[name], order.stop)

    def _load_one(self, order: LoadOrder, plan: ModelPlan) -> None:
        name = plan.entry.key
        order.borrowed.add(name)  # from here on it is the catalog's
        previous = self.loaded.records.get(name)
        if previous is not None and previous.retirement is not None:
            # At most one old set of versions of a model exists, however often it is loaded.
            previous.retirement.join()
        is_requested = name == order.name
        record = LoadRecord(
            order.files_seen[name],
            plan,
            frozenset(member_names(plan.config)),
            member_generations=self.loaded.generations_of(member_names(plan.config)),
            is_explicit=previous is not None and previous.is_explicit,
            is_overridden=is_requested and order.override is not None,
        )
        before = self.catalog.served_config(name) if record.is_overridden else None
        try:
            unchanged = self._unchanged_versions(order, plan)
            replaced = self.catalog.load(plan, unchanged, counts=not order.is_by_client, stop=order.stop)
        except InferError:
            if not order.is_by_client:
                self.loaded.failed[name] = record
            raise
        self.loaded.failed.pop(name, None)
        order.loaded.add(name)
        if record.is_overridden:
            self._log_override(order, before)
        self.loaded.generations[name] += 1
        self.loaded.records[name] = record
        if is_requested:
            record.files, order.files = order.files, None
        record.release = order.releases.pop(name, None)
        for instances in replaced.left_over:
            # Triton: an update in place ends when the instances that leave are gone.
            stop_version(instances, FINISH_TIMEOUT_S)
        record.retirement = self._retire(name, replaced.versions, previous)
        if unchanged and record.retirement is not None:
            # Only its instances have changed, but not in place (rate limits, ordered responses): the same holds.
            record.retirement.join(_RELOAD_WAIT_S)

    def _log_override(self, order: LoadOrder, before: ModelConfig | None) -> None:
        """Log what the configuration of a command has replaced: the one `before` the load, or that of the files."""
        after = self.catalog.served_config(order.name)
        if order.override is None or after is None:
            return
        if before is None:
            before, after = order.replaced_config or ModelConfig(), order.override.config
        _log.info(
            "the load of '%s' replaced its configuration: %s", name_of(order.name), config_changes(before, after)
        )

    def _unchanged_versions(self, order: LoadOrder, plan: ModelPlan) -> set[int]:
        """Return the versions whose files are as they were loaded, if the configuration still fits them."""
        name = plan.entry.key
        record = self.loaded.records.get(name)
        now = order.files_seen[name]
        if name == order.name and order.is_beside:
            fits = record is None or may_stay(record.plan.config, plan.config)
            return set(plan.versions) if fits else set()
        if record is None or now is None or record.files_seen is None or (name == order.name and order.is_forced):
            return set()
        if record.plan.agents is not None:
            return set()  # the served files may be where its agents have put them, and those files are removed
        return now.unchanged_versions(record.files_seen) if may_stay(record.plan.config, plan.config) else set()

    def _match_ensembles(self, loaded: Collection[str]) -> None:
        """Load the ensembles again of which a member was loaded: whether they still fit shows in the index.

        Among them are those that were unloaded with a member, once all their members are there again.
        """
        while loaded and not self._is_stopping:
            above = [n for n, record in list(self.loaded.records.items()) if not record.members.isdisjoint(loaded)]
            state = self.loaded.state(above)
            loaded = [step.name for step in reconcile(state, {}, state)]
            for name in loaded:
                with self._locks.hold_planned(partial(self._with_ensembles_above, name)):
                    self._match_with_members(name)

    def _with_ensembles_above(self, name: str) -> list[str]:
        return [name, *ensembles_above([name], self.loaded.ensembles())]

    def _match_with_members(self, ensemble: str) -> None:
        """Load an ensemble whose name is locked as it is, if that is still to be done."""
        record = self.loaded.records.get(ensemble)
        state = self.loaded.state([ensemble])
        steps = reconcile(state, {}, state)
        if record is None or self._is_stopping or ensemble not in {step.name for step in steps}:
            return
        if record.retirement is not None:
            record.retirement.join()
        was_served = self.catalog.is_served(ensemble)
        record.member_generations = self.loaded.generations_of(record.members)
        try:
            replaced = self.catalog.load(record.plan, counts=False)
        except InferError as error:
            _log.error("ensemble '%s' does not fit its members any more: %s", ensemble, error.message)
            above = ensembles_above([ensemble], self.loaded.ensembles())
            if was_served and self._lacks_member(record):
                self._suspend([*above, ensemble], "a version that is not served any more")
            elif isinstance(error, MisfitError):
                # No request could be answered as the ensemble declares, and no request is at fault.
                because_of = "a member that it does not fit any more"
                self._suspend(above, because_of, misfit=f"ensemble '{ensemble}' is not served any more")
                self._suspend([ensemble], because_of, misfit=error.message)
                self.catalog.note_misfit(ensemble, error.message)  # also if it had left before
            return
        if not was_served:
            self.loaded.generations[ensemble] += 1
        record.retirement = self._retire(ensemble, replaced.versions, None)

    def _lacks_member(self, record: LoadRecord) -> bool:
        """Return whether a version that an ensemble names is not served any more: it could answer no request."""
        for step in record.plan.config.ensemble_scheduling.step:
            versions = self.catalog.served_versions(model_key(step.model_namespace, step.model_name))
            if not versions or (step.model_version > 0 and step.model_version not in versions):
                return True
        return False

    def _suspend(self, ensembles: Iterable[str], because_of: str, misfit: str = "") -> None:
        """Take ensembles out of service, outer ones first, until their members are there again."""
        for ensemble in filter(self.catalog.is_served, ensembles):
            _log.info("unloading ensemble '%s', which contains %s", ensemble, because_of)
            self.catalog.unload(ensemble, self._settle, FINISH_TIMEOUT_S, misfit=misfit)

    def _retire(
        self, name: str, replaced: Sequence[LoadedVersion], previous: LoadRecord | None
    ) -> threading.Thread | None:
        """Let replaced versions finish their requests and stop them, while the new ones serve."""
        if not replaced:
            if previous is not None:
                previous.release_files()
            return None

        def stop() -> None:
            try:
                self._settle()
            except BaseException as error:
                report(f"waiting for the callers of model '{name}'", error)
            for version in replaced:
                stop_version(version, FINISH_TIMEOUT_S)
            heap_trims.request()
            if previous is not None:
                previous.release_files()
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

        self.catalog.unload(name, settle, FINISH_TIMEOUT_S)
        self.loaded.failed.pop(name, None)
        record = self.loaded.records.pop(name, None)
        if record is None:
            return
        if record.retirement is not None:
            record.retirement.join()
        record.release_files()
