"""Carries out what the reconciler plans: it loads, updates and unloads models, one piece of work per model at a time.

Everything here blocks and is called on control threads, never on the event loop. The catalog's life cycle holds the
state of each model; the records here hold what a model was loaded from and why.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Generic

from naiad.config.changes import config_changes, may_stay
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.override import limited_override
from naiad.core.errors import ErrorCode, InferError, UnloadableError, excerpt, invalid_argument, unavailable
from naiad.core.model import ModelKey, model_key, name_of
from naiad.repository.catalog import Catalog, reason_of, stop_version
from naiad.repository.control.load_order import (
    DRY_RUN,
    FORCE,
    LoadOrder,
    LoadRecord,
    Override,
    UploadedFiles,
    config_of_files,
    owner_config,
    read_override,
    with_config,
)
from naiad.repository.control.locks import ModelLocks
from naiad.repository.control.reconcile import Listed, LoadedModel, Unload, ensembles_above, reconcile, unloaded
from naiad.repository.lifecycle import LoadedVersion, V
from naiad.repository.model_plan import ModelPlan, by_dependency, member_names
from naiad.repository.stores.fingerprint import file_state
from naiad.repository.stores.namespaces import ambiguous
from naiad.repository.stores.store import ModelEntry
from naiad.telemetry.last_resort import report
from naiad.telemetry.process import trim_heap

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
        self._records: dict[str, LoadRecord] = {}
        """A record is changed only while its name is locked."""
        self._failed: dict[str, LoadRecord] = {}
        """Models that failed to load, for polling; not by a client's command, which may name any number of them."""
        self._generations: Counter[str] = Counter()
        self._orders: set[LoadOrder] = set()
        """The commands in progress that hold the locks of their models."""
        self._is_stopping = False

    # --- state ------------------------------------------------------------------------------------------------------

    def state(self, names: Iterable[str], *, with_failed: bool = False) -> dict[str, LoadedModel]:
        """Return these models and their members as they were loaded; `with_failed` also those that failed to load."""
        found: dict[str, LoadedModel] = {}
        for name in names:
            record = self._records.get(name)
            if record is None and with_failed:
                record = self._failed.get(name)
            if record is None:
                continue
            for each in (name, *record.members):
                if each not in found and (own := record if each == name else self._records.get(each)) is not None:
                    found[each] = self._loaded(each, own)
        return found

    def _loaded(self, name: str, record: LoadRecord) -> LoadedModel:
        return LoadedModel(
            record.files_seen,
            record.members,
            is_served=self.catalog.is_served(name),
            is_requested=record.is_explicit,
            generation=self._generations[name],
            member_generations=record.member_generations,
        )

    def _all_state(self) -> dict[str, LoadedModel]:
        """Return the ensembles and their members as they were loaded."""
        return self.state([name for name, record in list(self._records.items()) if record.members])

    # --- commands ---------------------------------------------------------------------------------------------------

    def load(self, name: str, parameters: Mapping[str, object], *, is_by_client: bool, is_owner: bool = True) -> None:
        """Load a model, or load it again if its files or its configuration have changed.

        Without `is_owner` a configuration may change only what `config.override` lists.

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
                self._load_key(key, override, parameters, is_by_client=is_by_client)
            except InferError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _load_key(
        self, key: str, override: Override | None, parameters: Mapping[str, object], *, is_by_client: bool
    ) -> None:
        order = LoadOrder(key, override, is_forced=bool(parameters.get(FORCE)), is_by_client=is_by_client)
        try:
            self._make_plans(order)
            with self._locks.hold_planned(lambda: self._names_of(order)):
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
        record = self._records.get(key)
        if record is not None and record.is_overridden:
            raise invalid_argument(
                f"rollout of model '{name_of(key)}': a client has loaded it with a configuration or files of its "
                "own, beside which no version of the repository can be loaded; load it from the repository first"
            )
        order = LoadOrder(key, None, is_beside=True)
        try:
            self._make_plans(order)
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

    def _unload_key(self, key: str, *, with_dependents: bool, on_withdrawn: Callable[[], object] | None) -> None:
        def work() -> Unload:
            return unloaded(key, self._all_state(), with_dependents=with_dependents)

        with self._locks.hold_planned(lambda: work().concerned):
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
        for record in list(self._records.values()):
            if record.retirement is not None:
                record.retirement.join(max(0.0, deadline_s - time.monotonic()))
                in_time = in_time and not record.retirement.is_alive()
            record.let_go()
        return in_time

    # --- what would be loaded ---------------------------------------------------------------------------------------

    def _make_plans(self, order: LoadOrder) -> None:
        """Read a model and its members from the stores. Raises InferError: INTERNAL unless it could be read."""
        try:
            self._plan(order, order.name, order.override)
        except Exception as error:
            if isinstance(error, InferError) and error.code is ErrorCode.PERMISSION_DENIED:
                raise  # the command is refused, the model is as it was
            reason = reason_of(error)
            if self.catalog.is_served(order.name):
                self.catalog.note_failure(order.name, reason)
            elif isinstance(error, UnloadableError) and not order.is_by_client:
                self.catalog.note_failure(order.name, reason, counts=True)
            else:
                _log.error("Poll failed for model '%s': %s", order.name, reason)
            if isinstance(error, UnloadableError):
                raise invalid_argument(f"load failed for model '{excerpt(order.name)}': {reason}\n") from None
            # Triton: INTERNAL, whether the client, its files or the server is at fault.
            known = error.code if isinstance(error, InferError) else ErrorCode.INTERNAL
            raise InferError(
                known if known in (ErrorCode.NOT_FOUND, ErrorCode.INVALID_ARG) else ErrorCode.INTERNAL,
                f"failed to load '{excerpt(order.name)}', failed to poll from model repository: {reason}",
                triton_code=ErrorCode.INTERNAL,
            ) from None
        self._plan_members(order, order.name)

    def _names_of(self, order: LoadOrder) -> Collection[str]:
        """Return the models of a command, as what is loaded now makes it: it may have changed since the last call."""
        for name in order.borrowed & order.plans.keys():
            record = self._records.get(name)
            if record is not None and record.plan is order.plans[name]:
                continue
            try:
                self._plan(order, name, None)
            except Exception as error:  # its load reports it
                _log.debug("'%s' cannot be read any more: %s", name, reason_of(error))
            else:
                self._plan_members(order, name)
        return order.plans.keys()

    def _plan_members(self, order: LoadOrder, name: str) -> None:
        """Read the members of an ensemble, and theirs, as far as it has not been done."""
        waiting = list(member_names(order.plans[name].config))
        while waiting:
            member = waiting.pop()
            if member in order.plans:
                continue
            try:
                self._plan(order, member, None)
            except Exception as error:
                # The ensemble's own failure follows from it, unless the served version is still good.
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
            entry = self.catalog.stores.find(name)
            order.note_opened(entry)
            order.files_seen[name] = file_state(entry)
            if override is not None:
                order.replaced_config = config_of_files(entry)
                if override.is_limited:
                    override = replace(override, config=self._limited(name, entry, override.config))
                entry = with_config(entry, override)
        record = self._records.get(name)
        if record is not None and name not in self._to_load(order, [name]):
            order.plans[name] = record.plan
            order.borrowed.add(name)
        else:
            order.plans[name] = self.catalog.plan(entry)
            order.borrowed.discard(name)

    def _limited(self, name: str, entry: ModelEntry, config: ModelConfig) -> ModelConfig:
        """Return a configuration of a client without permission with the owner's values. Raises InferError."""
        owner = owner_config(entry)
        record, served = self._records.get(name), self.catalog.served_config(name)
        known = [self.catalog.completed_config(entry)]
        if served is not None and record is not None and record.files is None:
            known.append(served)
        return limited_override(config, owner, known)

    def _to_load(self, order: LoadOrder, names: Iterable[str]) -> list[str]:
        """Return the `names` of a command that are not loaded as the command wants them, members first."""
        listing = {name: self._listed(order, name) for name in names if not self._keeps_override(order, name)}
        state = self.state(listing)
        steps = reconcile({*state, *listing}, listing, state, forced=order.forced)
        return [step.name for step in steps if step.name in listing]

    def _keeps_override(self, order: LoadOrder, name: str) -> bool:
        """Return whether a command has configured a member: loading an ensemble above it does not undo that."""
        record = self._records.get(name)
        is_member = name != order.name
        return is_member and record is not None and record.is_overridden and self.catalog.is_served(name)

    def _listed(self, order: LoadOrder, name: str) -> Listed:
        # Triton: an override stays until some file of the model has changed.
        files = order.files_seen[name] or _UPLOADED
        record = self._records.get(name)
        if record is None or (name in order.plans and name not in order.borrowed):
            plan = order.plans.get(name)
            return Listed(files, None if plan is None else frozenset(member_names(plan.config)))
        namespaces = self.catalog.namespaces
        if namespaces is None or not record.members:
            return Listed(files)
        return Listed(files, namespaces.links(name, {*map(name_of, record.members)}))

    # --- loading ----------------------------------------------------------------------------------------------------

    def _load(self, order: LoadOrder) -> None:
        failure: InferError | None = None
        plans = {plan.entry.key: plan for group in by_dependency(list(order.plans.values())) for plan in group}
        tried: set[str] = set()
        # Planned again after each step: whether an ensemble is loaded depends on what has become of its members.
        while left := [name for name in self._to_load(order, plans) if name not in tried]:
            name = left[0]
            tried.add(name)
            if order.stop.is_requested:
                raise invalid_argument(f"load failed for model '{order.name}': {order.stop.reason}\n")
            try:
                self._load_one(order, replace(self._own_plan(order, name), circle=plans[name].circle))
            except InferError as error:
                if name == order.name:
                    failure = error
        if failure is not None:
            raise failure
        self._records[order.name].is_explicit = True

    def _dry_run(self, order: LoadOrder) -> None:
        """Load what a load would, and release it again. Raises InferError as a load.

        An ensemble is matched with its served members.
        """
        for name in self._to_load(order, order.plans):
            self.catalog.dry_run(order.plans[name], order.stop)

    def _own_plan(self, order: LoadOrder, name: str) -> ModelPlan:
        """Return a plan to load from: a model that seemed current may be unloaded before it is locked."""
        if name in order.borrowed:
            self._plan(order, name, None)
        return order.plans[name]

    def _load_one(self, order: LoadOrder, plan: ModelPlan) -> None:
        name = plan.entry.key
        order.borrowed.add(name)  # from here on it is the catalog's
        previous = self._records.get(name)
        if previous is not None and previous.retirement is not None:
            # At most one old set of versions of a model exists, however often it is loaded.
            previous.retirement.join()
        is_requested = name == order.name
        record = LoadRecord(
            order.files_seen[name],
            plan,
            frozenset(member_names(plan.config)),
            member_generations=self._generations_of(member_names(plan.config)),
            is_explicit=previous is not None and previous.is_explicit,
            is_overridden=is_requested and order.override is not None,
        )
        before = self.catalog.served_config(name) if record.is_overridden else None
        try:
            unchanged = self._unchanged_versions(order, plan)
            replaced = self.catalog.load(plan, unchanged, counts=not order.is_by_client, stop=order.stop)
        except InferError:
            if not order.is_by_client:
                self._failed[name] = record
            raise
        self._failed.pop(name, None)
        order.loaded.add(name)
        if record.is_overridden:
            self._log_override(order, before)
        self._generations[name] += 1
        self._records[name] = record
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

    def _generations_of(self, names: Collection[str]) -> dict[str, int]:
        return {name: self._generations[name] if name in self._records else 0 for name in names}

    def _unchanged_versions(self, order: LoadOrder, plan: ModelPlan) -> set[int]:
        """Return the versions whose files are as they were loaded, if the configuration still fits them."""
        name = plan.entry.key
        record = self._records.get(name)
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
            above = [n for n, record in list(self._records.items()) if not record.members.isdisjoint(loaded)]
            state = self.state(above)
            loaded = [step.name for step in reconcile(state, {}, state)]
            for name in loaded:
                with self._locks.hold_planned(lambda name=name: self._with_ensembles_above(name)):  # type: ignore[misc]
                    self._match_with_members(name)

    def _with_ensembles_above(self, name: str) -> list[str]:
        return [name, *ensembles_above([name], self._all_state())]

    def _match_with_members(self, ensemble: str) -> None:
        """Load an ensemble whose name is locked as it is, if that is still to be done."""
        record = self._records.get(ensemble)
        state = self.state([ensemble])
        steps = reconcile(state, {}, state)
        if record is None or self._is_stopping or ensemble not in {step.name for step in steps}:
            return
        if record.retirement is not None:
            record.retirement.join()
        was_served = self.catalog.is_served(ensemble)
        record.member_generations = self._generations_of(record.members)
        try:
            replaced = self.catalog.load(record.plan, counts=False)
        except InferError as error:
            _log.error("ensemble '%s' does not fit its members any more: %s", ensemble, error.message)
            if was_served and self._lacks_member(record):
                self._suspend(
                    [*ensembles_above([ensemble], self._all_state()), ensemble],
                    "a version that is not served any more",
                )
            return
        if not was_served:
            self._generations[ensemble] += 1
        record.retirement = self._retire(ensemble, replaced.versions, None)

    def _lacks_member(self, record: LoadRecord) -> bool:
        """Return whether a version that an ensemble names is not served any more: it could answer no request."""
        for step in record.plan.config.ensemble_scheduling.step:
            versions = self.catalog.served_versions(model_key(step.model_namespace, step.model_name))
            if not versions or (step.model_version > 0 and step.model_version not in versions):
                return True
        return False

    def _suspend(self, ensembles: Iterable[str], because_of: str) -> None:
        """Take ensembles out of service, outer ones first, until their members are there again."""
        for ensemble in filter(self.catalog.is_served, ensembles):
            _log.info("unloading ensemble '%s', which contains %s", ensemble, because_of)
            self.catalog.unload(ensemble, self._settle, FINISH_TIMEOUT_S)

    def _retire(
        self, name: str, replaced: Sequence[LoadedVersion], previous: LoadRecord | None
    ) -> threading.Thread | None:
        """Let replaced versions finish their requests and stop them, while the new ones serve."""
        if not replaced:
            if previous is not None:
                previous.let_go()
            return None

        def stop() -> None:
            try:
                self._settle()
            except BaseException as error:
                report(f"waiting for the callers of model '{name}'", error)
            for version in replaced:
                stop_version(version, FINISH_TIMEOUT_S)
            trim_heap()
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

        self.catalog.unload(name, settle, FINISH_TIMEOUT_S)
        self._failed.pop(name, None)
        record = self._records.pop(name, None)
        if record is None:
            return
        if record.retirement is not None:
            record.retirement.join()
        record.let_go()


_UPLOADED = "uploaded"
"""In place of a fingerprint, of files that a command has uploaded."""
