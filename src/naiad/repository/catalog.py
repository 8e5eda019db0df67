"""The catalog: the models of all repositories, and their loads and unloads."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic

from naiad.backend.load_stop import LoadStop
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.rollout.rollout_record import FoundRollout
from naiad.core.errors import (
    ErrorCode,
    InferError,
    MisfitError,
    UnloadableError,
    cause_of,
    internal,
    invalid_argument,
)
from naiad.core.model import MISFIT, UNLOADED, IndexEntry, ModelKey, ModelState
from naiad.repository.agents.chain import AgentChain
from naiad.repository.lifecycle import Lifecycle, LoadedVersion, Publish, ReadyRule, V
from naiad.repository.load_pool import LoadPool
from naiad.repository.loads import PreparedVersion, VersionLoads, reason_of, status_of, stop_version, traceback_of
from naiad.repository.model_plan import ModelPlan, VersionLoader, by_dependency
from naiad.repository.stores.namespaces import NamespacedStore, Namespaces
from naiad.repository.stores.store import ModelEntry, ModelListing, Store, warn_of_ignored
from naiad.repository.stores.stores import DUPLICATE, Stores
from naiad.telemetry.process_resources import trim_heap
from naiad.telemetry.trim_pace import heap_trims

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replaced:
    """The models replaced by a load, for the caller to stop."""

    versions: Sequence[LoadedVersion]
    """Whole versions, and agents."""
    left_over: Sequence[LoadedVersion]
    """The rest of versions changed in place, which continue to serve."""


class Catalog(Generic[V]):
    """Models of one or several stores; the package `control` decides when each is loaded."""

    def __init__(  # noqa: PLR0913 - what a catalog is made of
        self,
        stores: Sequence[Store],
        loader: VersionLoader[V],
        publish: Publish[V],
        *,
        load_thread_count: int = 4,
        load_retry_count: int = 0,
        ready_rule: ReadyRule | None = None,
        namespaces: Namespaces | None = None,
        declare_rollout: Callable[[str, FoundRollout | None], object] = lambda key, declared: None,
        load_timeout_s: float = 0.0,
    ) -> None:
        """With `namespaces`, the key of a model is a `ModelKey` in all methods, otherwise its name.

        `declare_rollout` gets what was found about the rollout of a model before its versions are put in place.
        `load_timeout_s` is the time limit of the load of a version, 0 for none.
        """
        self.stores = Stores(stores if namespaces is None else namespaces.stores)
        self.namespaces = namespaces
        self._loader = loader
        self.serves_without_stores = False
        """Whether the server starts although a store cannot be reached."""
        self._declare_rollout = declare_rollout
        self._lifecycle: Lifecycle[V] = Lifecycle(publish, ready_rule)
        self._loads = VersionLoads(loader, retry_count=load_retry_count, timeout_s=load_timeout_s)
        self._load_thread_count = load_thread_count
        self._failure_lock = threading.Lock()
        self.load_failure_count = 0
        """Failed loads: of models that could not be prepared, and of versions."""
        self._agents: dict[str, AgentChain] = {}
        """The agents of the loaded models; changed only by loads and unloads."""

    # --- stores -----------------------------------------------------------------------------------------------------

    def register(self, store: Store) -> None:
        """Add a repository. Raises InferError(ALREADY_EXISTS) if there is one of its location."""
        self.stores.add(store if self.namespaces is None else self.namespaces.add(store))

    def unregister(self, store: Store) -> None:
        """Remove a repository, and its models from the index."""
        self.stores.remove(store.location)
        if self.namespaces is not None:
            self.namespaces.remove(store.location)
            store = NamespacedStore(store)
        for name in store.list_models():
            self.forget(name)

    # --- queries --------------------------------------------------------------------------------------------------

    def index(self, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return a row per model version from the life cycle; never waits."""
        rows = self._lifecycle.rows()
        return [row for row in rows if row.state is ModelState.READY] if ready_only else rows

    def survey(self, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return the index with the models that the stores have and that were never loaded."""
        rows = list(self.index(ready_only))
        if not ready_only:
            known = {row.name for row in rows}
            rows += [IndexEntry(name) for name in self.stores.known_names() if name not in known]
            rows.sort(key=lambda row: row.name)  # stable: the versions of a model stay in order
        return rows

    def rows_named(self, name: str) -> Sequence[IndexEntry]:
        """Return the rows of the index for a name of a client; of several models with namespaces. Never waits."""
        return self._lifecycle.rows_named(name, has_namespaces=self.namespaces is not None)

    def is_removed(self, name: str) -> bool:
        """Return whether a model of that name has left its repository after it was loaded."""
        return self._lifecycle.is_removed(name)

    def is_ready(self, ill: Collection[str] = ()) -> bool:
        """Return whether the readiness rule holds, where the `ill` models are loaded and cannot execute."""
        if self.stores.is_any_missing and self._lifecycle.needs_all:
            return False
        return self._lifecycle.is_ready_without(ill) if ill else self._lifecycle.is_ready

    def served_config(self, name: str) -> ModelConfig | None:
        """Return the complete configuration of the newest loaded version of a model; None without one."""
        loaded = self._lifecycle.loaded_versions(name)
        return self._loader.config_of(loaded[max(loaded)]) if loaded else None

    def loading(self) -> Mapping[str, float]:
        """Return the names of the models that load now, and for how many seconds each has been loading."""
        return self._loads.durations()

    def loaded_versions(self, name: str) -> Mapping[int, V]:
        """Return the loaded versions of a model."""
        return self._lifecycle.loaded_versions(name)

    def note_cold(self, name: str, versions: Sequence[int]) -> None:
        """Show versions that are not loaded as such that their next request loads."""
        self._lifecycle.note_cold(name, versions)

    def end_on_demand(self, name: str) -> None:
        """Show a model as one that no request loads any more."""
        self._lifecycle.end_on_demand(name)

    def is_served(self, name: str) -> bool:
        """Return whether requests reach a version of a model."""
        return self._lifecycle.is_served(name)

    def served_versions(self, name: str) -> Collection[int]:
        """Return the versions of a model that requests reach."""
        return self._lifecycle.loaded_versions(name).keys()

    def may_start_without(self, locations: Collection[str]) -> bool:
        """Return whether the server may start although these stores cannot be read: they may return."""
        return self.serves_without_stores and set(locations) <= self.stores.away.keys()

    def names_at_start(self) -> list[str]:
        """Return the names of all models. Raises InferError for a store without which the server may not start."""
        if self.serves_without_stores:
            return [*self.stores.look().listings]
        return self.stores.list_names()

    def plan(self, entry: ModelEntry) -> ModelPlan:
        """Return the plan of a model's load. Raises InferError."""
        if entry.model_dir not in entry.version_dirs.values():  # not a bare model file
            with suppress(OSError):  # The load itself reports a directory that cannot be read.
                warn_of_ignored(entry.model_dir)
        plan = self._read_plan(entry)
        if self.namespaces is not None:
            try:
                self.namespaces.link(plan.entry.key, plan.config)
            except InferError:
                if plan.agents is not None:
                    plan.agents.load_failed()
                raise
        else:
            # Triton: the namespaces in the steps of a configuration are ignored.
            for step in plan.config.ensemble_scheduling.step:
                step.ClearField("model_namespace")
        return plan

    def completed_config(self, entry: ModelEntry) -> ModelConfig:
        """Return the configuration of a model's files, with what is known without loading it."""
        try:
            plan = self._read_plan(entry)
        except InferError:
            return ModelConfig()
        if plan.agents is not None:
            plan.agents.load_failed()
        return plan.config

    def _read_plan(self, entry: ModelEntry) -> ModelPlan:
        """Return what the loader plans, which may import a framework. Raises InferError and other exceptions."""
        try:
            return self._loader.plan(entry)
        except Exception:
            raise
        except BaseException as error:
            # SystemExit of a library, for example: it would end the server where a task waits for the load.
            raise internal(cause_of(error)) from error

    def named(self, name: str) -> list[str]:
        """Return the keys of the loadable models of a name; reads the stores."""
        return [name] if self.namespaces is None else self.namespaces.holders(name)

    def known_as(self, name: str) -> list[str]:
        """Return the keys of the models of a name with a load or an attempt of one."""
        if self.namespaces is None or isinstance(name, ModelKey):
            return [name]
        return self._lifecycle.known_as(name)

    # --- loading ----------------------------------------------------------------------------------------------------

    def load_all(self, defers: Callable[[ModelPlan], bool] = lambda plan: False) -> bool:
        """Load every model of every repository, in parallel; return whether all are ready.

        A model for which `defers` returns true is not loaded, and counts as ready. Raises InferError for an
        unreadable repository. The failure of a single model is logged and kept as the reason of its state.
        """
        entries, all_loaded = self._discover()
        with LoadPool(self._load_thread_count, "load") as pool:
            plans = [plan for plan in map(self._plan, entries) if plan is not None]
            all_loaded = all_loaded and len(plans) == len(entries)
            plans = [plan for plan in plans if not defers(plan)]
            for group in by_dependency(plans):
                loads = [(plan, self._begin_load(pool, plan)) for plan in group]
                for plan, futures in loads:
                    try:
                        self._finish_load(plan, futures, pool)
                    except InferError:
                        all_loaded = False
        trim_heap()
        return all_loaded

    def load(
        self,
        plan: ModelPlan,
        unchanged: Collection[int] = (),
        *,
        counts: bool = True,
        stop: LoadStop | None = None,
    ) -> Replaced:
        """Load the versions of one model and put them in place, all or none of them.

        Of the `unchanged` versions, a loaded one stays if it can serve the plan. Returns the replaced versions, for
        the caller to stop. `counts`: whether a failure makes a server unready that needs all its models. `stop` ends
        the load. Raises InferError with the failures.
        """
        self._loads.check_deserted(plan.entry.key)
        kept = {n: v for n, v in self._lifecycle.loaded_versions(plan.entry.key).items() if n in unchanged}
        pool = LoadPool(self._load_thread_count, "load")
        try:
            return self._finish_load(plan, self._begin_load(pool, plan, kept, counts=counts, stop=stop), pool)
        finally:
            pool.shutdown(wait=False)
            heap_trims.request()

    def dry_run(self, plan: ModelPlan, stop: LoadStop | None = None) -> None:
        """Load the versions of one model and release them, without any effect on served ones. Raises InferError."""
        failures = ""
        with ThreadPoolExecutor(self._load_thread_count, thread_name_prefix="dry_run") as pool:
            futures = self._loads.begin(pool, plan, stop=stop)
        self._loads.end(plan.entry.key)
        for version, future in futures.items():
            try:
                future.result().release()
            except Exception as error:
                reason = status_of(error)
                _log.error("dry run: '%s' version %d would not load: %s", plan.entry.key, version, reason)
                failures += f"version {version} would be at UNAVAILABLE state: {reason};\n"
        heap_trims.request()
        if failures:
            raise invalid_argument(f"load would fail for model '{plan.entry.key}': {failures}")

    def abandon(self) -> None:
        """Cancel loading: loads in progress end at their next step, waiting ones do not begin."""
        self._loads.abandon()

    def _discover(self) -> tuple[list[ModelEntry], bool]:
        """Return the unique models, and whether these are all models."""
        look = self.stores.look()
        for error in look.unreadable.values():
            if not self.serves_without_stores or error.code is not ErrorCode.UNAVAILABLE:
                raise error
        listings = look.listings
        unique: dict[str, ModelListing] = {}
        for name, found in sorted(listings.items()):
            if len(found) > 1:
                where = ", ".join(location for location, _ in found)
                _log.error("failed to poll model '%s': not unique across all model repositories: %s", name, where)
                self._lifecycle.fail_model(name, DUPLICATE, counts=False)
            else:
                unique[name] = found[0][1]
        with LoadPool(self._load_thread_count, "open") as pool:
            opened = pool.results([pool.submit(self._open, *each) for each in unique.items()])
            entries = [entry for entry in opened if entry is not None]
        return entries, len(entries) == len(listings) and not look.unreadable

    def _open(self, name: str, listing: ModelListing) -> ModelEntry | None:
        try:
            return listing.open()
        except (InferError, OSError) as error:
            self._fail_model(name, error)
            return None

    def _plan(self, entry: ModelEntry) -> ModelPlan | None:
        try:
            return self.plan(entry)
        except Exception as error:
            self._fail_model(entry.key, error)
        return None

    def _fail_model(self, name: str, error: Exception) -> None:
        # Triton: only models with an attempted load count.
        is_attempted = isinstance(error, UnloadableError)
        self.note_failure(name, reason_of(error), counts=is_attempted, cause=traceback_of(error))

    def note_failure(
        self,
        name: str,
        reason: str,
        *,
        counts: bool = False,
        cause: BaseException | None = None,
        is_known: bool = False,
    ) -> None:
        """Record the reason of a failed load; its served versions stay.

        `counts`: whether the failure makes a server unready that needs all its models. `cause` is logged.
        `is_known`: it was recorded before, and is neither counted nor logged again.
        """
        if not is_known:
            self._count_failure()
            _log.error("failed to load model '%s': %s", name, reason, exc_info=cause)
        self._lifecycle.fail_model(name, reason, counts=counts)

    def forgive_updates(self, name: str) -> None:
        """Drop the failures of updates of a model from the index: its files hold what is served again."""
        self._lifecycle.forgive_updates(name)

    def note_misfit(self, ensemble: str, problem: str) -> None:
        """Show why an ensemble left service: a `problem` with its members. The server stays ready without it."""
        self._lifecycle.note_misfit(ensemble, f"{MISFIT}: {problem}")

    def _count_failure(self) -> None:
        with self._failure_lock:
            self.load_failure_count += 1

    def forget(self, name: str) -> None:
        """Remove a model that no store has any more from the index."""
        self._lifecycle.forget(name)

    def _begin_load(
        self,
        pool: LoadPool,
        plan: ModelPlan,
        kept: Mapping[int, V] | None = None,
        *,
        counts: bool = True,
        stop: LoadStop | None = None,
    ) -> "dict[int, Future[PreparedVersion[V]]]":
        self._lifecycle.begin_load(plan.entry.key, plan.versions, counts=counts)
        return self._loads.begin(pool, plan, kept, stop=stop)

    def _finish_load(
        self, plan: ModelPlan, futures: "Mapping[int, Future[PreparedVersion[V]]]", pool: LoadPool
    ) -> Replaced:
        """Wait for the versions of one model, put them in place and return the replaced ones. Raises InferError."""
        name = plan.entry.key
        loaded: dict[int, PreparedVersion[V]] = {}
        failures = ""
        is_misfit = False
        for version, future in futures.items():
            try:
                loaded[version] = self._loads.result(name, future, pool.add_thread_if_slow)
            except Exception as error:
                reason = status_of(error)
                is_misfit = is_misfit or isinstance(error, MisfitError)
                self._count_failure()
                _log.error("failed to load '%s' version %d: %s", name, version, reason, exc_info=traceback_of(error))
                self._lifecycle.fail_version(name, version, reason)
                failures += f"version {version} is at UNAVAILABLE state: {reason};\n"
        self._loads.end(name)
        if self._loads.is_abandoned:
            failures = failures or "the server is stopping"
        if not failures:
            self._declare_rollout(name, plan.rollout)
            retired: list[LoadedVersion] = []
            retired += self._lifecycle.swap(name, {version: each.version for version, each in loaded.items()})
            left_over = [each.update.commit() for each in loaded.values() if each.update is not None]
            retired += self._change_agents(name, plan.agents)
            _log.info("successfully loaded '%s'", name)
            return Replaced(retired, [each for each in left_over if each is not None])
        # Triton: a set of versions is all or nothing; the loaded ones are released.
        for version, useless in loaded.items():
            useless.release()
            self._lifecycle.fail_version(name, version, UNLOADED)
        if plan.agents is not None and self._agents.get(name) is not plan.agents:
            plan.agents.load_failed()
        message = f"load failed for model '{name}': {failures}"
        raise MisfitError(ErrorCode.INVALID_ARG, message) if is_misfit else invalid_argument(message)

    # --- unloading --------------------------------------------------------------------------------------------------

    def unload_all(self, timeout_s: float) -> bool:
        """Unload everything in parallel; return whether every accepted request finished within `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        if not self._loads.wait_deserted(timeout_s):
            return False
        names = sorted({row.name for row in self._lifecycle.rows() if row.state is ModelState.READY})
        if not names:
            return True
        with ThreadPoolExecutor(min(len(names), 32), thread_name_prefix="unload") as pool:
            return all(list(pool.map(lambda name: self._unload(name, deadline_s), names)))

    def unload(self, name: str, settle: Callable[[], object], timeout_s: float, *, misfit: str = "") -> None:
        """Take a model out of service and release it once its requests have finished.

        `misfit`: why an ensemble leaves, if it does not fit its members; its requests and the index say so at once.
        `settle` waits until no caller can be about to submit to a version that it looked up before.
        """
        unloading = self._lifecycle.begin_unload(name, withdraw=True, reason=f"{MISFIT}: {misfit}" if misfit else "")
        chains = self._change_agents(name, None)
        if unloading:
            settle()
        for version, loaded in unloading.items():
            if not stop_version(loaded, timeout_s):
                _log.warning("requests of '%s' version %d did not finish within %g s", name, version, timeout_s)
            _log.info("successfully unloaded '%s' version %d", name, version)
        heap_trims.request()
        for chain in chains:
            stop_version(chain, timeout_s)
        if misfit:
            self.note_misfit(name, misfit)
            return
        self._lifecycle.end_unload(name, list(unloading))
        self._lifecycle.forgive(name)

    def _unload(self, name: str, deadline_s: float) -> bool:
        unloading = self._lifecycle.begin_unload(name)
        chains = self._change_agents(name, None)
        finished = True
        for version, loaded in unloading.items():
            in_time = stop_version(loaded, max(0.0, deadline_s - time.monotonic()))
            finished = finished and in_time
            _log.info("successfully unloaded '%s' version %d", name, version)
        for chain in chains:
            stop_version(chain, 0.0)
        self._lifecycle.end_unload(name, list(unloading))
        return finished

    def _change_agents(self, name: str, agents: AgentChain | None) -> list[AgentChain]:
        """Put the agents of a new load in place; return the replaced ones, to be stopped later."""
        if agents is not None and self._agents.get(name) is agents:
            return []
        before = self._agents.pop(name, None)
        if agents is not None:
            self._agents[name] = agents
            agents.load_complete()
        if before is None:
            return []
        before.unload()
        return [before]
