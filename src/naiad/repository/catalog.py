"""The catalog: the models of all repositories, and the work of loading and unloading them."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.parsed_config import ParsedConfig
from naiad.config.validation_ensemble import find_ensemble_cycle
from naiad.core.errors import InferError, invalid_argument, not_found, unavailable
from naiad.core.model import UNLOADED, IndexEntry, ModelKey, ModelState, model_key, name_of
from naiad.repository import heap
from naiad.repository.agent_chain import AgentChain
from naiad.repository.fingerprint import content_digest
from naiad.repository.lifecycle import Lifecycle, LoadedVersion, Publish, ReadyRule, V
from naiad.repository.namespaces import Namespaces
from naiad.repository.store import ModelEntry, Sighting, Store, check_model_name

_log = logging.getLogger(__name__)

DUPLICATE = "model appears in two or more repositories"
"""Triton's reason for a model that is not unique."""


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What is going to be loaded of a model: its configuration, and the versions that the policy selects."""

    entry: ModelEntry
    config: ModelConfig
    """Completed and checked as far as possible without a look into the model itself."""
    versions: Sequence[int]
    source: ParsedConfig | None = None
    """The file that the configuration was read from, for the places of mistakes that only loading finds."""
    agents: AgentChain | None = None
    """The repository agents that have looked at the files."""
    circle: Sequence[str] = ()
    """The ensembles through which this one contains itself, from itself to itself; empty for what can be loaded."""


class Update(Protocol):
    """A change of a loaded version in place: it is prepared, and not made yet."""

    def commit(self) -> LoadedVersion | None:
        """Make the change; return what it leaves over, for the caller to stop."""

    def discard(self) -> None:
        """Give the change up and release what was prepared for it."""


class VersionLoader(Protocol[V]):
    """Turns what a store has into something that serves. Its methods are called from several threads."""

    def plan(self, entry: ModelEntry) -> ModelPlan:
        """Read the configuration and select the versions. Raises InferError."""

    def load(self, plan: ModelPlan, version: int) -> V:
        """Load one version. Raises InferError."""

    def update(self, plan: ModelPlan, version: int, loaded: V) -> Update | None:
        """Prepare to serve `plan` with what is loaded of a version; None when it must be loaded anew.

        Files and configuration are those that it was loaded from, but for instance groups and version policy.
        Raises InferError.
        """


@dataclass(frozen=True, slots=True)
class _Loaded(Generic[V]):
    """A version that can be put in place."""

    version: V
    update: Update | None = None
    """Set when it is in place already: the change that makes it what was asked for."""


@dataclass(slots=True)
class Look:
    """How all stores looked at one moment."""

    sightings: dict[str, list[tuple[str, Sighting]]] = field(default_factory=dict)
    """By name of the model, each with the location of the store."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Locations of stores that could not be read, with the reason."""


class Catalog(Generic[V]):
    """Models of one or several stores; when each is loaded is for others to say, see `control`."""

    def __init__(
        self,
        stores: Sequence[Store],
        loader: VersionLoader[V],
        publish: Publish[V],
        *,
        load_thread_count: int = 4,
        load_retry_count: int = 0,
        ready_rule: ReadyRule | None = None,
        namespaces: Namespaces | None = None,
    ) -> None:
        """With `namespaces`, models are known by a `ModelKey` in all that follows, otherwise by their names."""
        self._stores = stores if namespaces is None else namespaces.stores
        self.namespaces = namespaces
        self._loader = loader
        self._lifecycle: Lifecycle[V] = Lifecycle(publish, ready_rule)
        self._load_thread_count = load_thread_count
        self._load_retry_count = load_retry_count
        self._abandoned = False
        self._last_names: dict[str, list[str]] = {}
        """By location, as `known_names` found them."""
        self._agents: dict[str, AgentChain] = {}
        """The agents of what is in place, by model; changed only by who loads or unloads it."""

    # --- questions --------------------------------------------------------------------------------------------------

    def index(self, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return a row per model version, as the life cycle knows it; never waits."""
        rows = self._lifecycle.rows()
        return [row for row in rows if row.state is ModelState.READY] if ready_only else rows

    def is_ready(self, ill: Collection[str] = ()) -> bool:
        """Tell whether the readiness rule is met, while the `ill` models are loaded and cannot execute."""
        return self._lifecycle.is_ready_without(ill) if ill else self._lifecycle.is_ready

    def is_served(self, name: str) -> bool:
        """Tell whether requests reach a version of a model."""
        return self._lifecycle.is_served(name)

    def list_names(self) -> list[str]:
        """Return the names of all models in all stores, sorted. Reads them. Raises InferError when it cannot."""
        return sorted({name for store in self._stores for name in store.list_models()})

    def known_names(self) -> list[str]:
        """Return the names as `list_names`, of a store that cannot be read those it had when it could."""
        for store in self._stores:
            try:
                self._last_names[store.location] = list(store.list_models())
            except InferError as error:
                _log.error("the index lacks what is new in %s: %s", store.location, error.message)
        return sorted({name for names in self._last_names.values() for name in names})

    def find(self, name: str) -> ModelEntry:
        """Return a model as the stores have it; whoever gets it releases it.

        Raises InferError when none or several have it. One that cannot be read does not keep the models of others.
        """
        check_model_name(name_of(name))
        if len(self._stores) == 1:
            return self._stores[0].open_model(name)
        found: list[tuple[str, Sighting]] = []
        unreadable: InferError | None = None
        for store in self._stores:
            try:
                sighting = store.sight(name)
            except InferError as error:
                _log.error("looking for model '%s': %s", name, error.message)
                unreadable = error
                continue
            if sighting is not None:
                found.append((store.location, sighting))
        if not found:
            where = ", ".join(store.location for store in self._stores)
            raise unreadable or not_found(f"no model '{name_of(name)}' in {where}")
        if len(found) > 1:
            raise invalid_argument(f"{DUPLICATE}: {', '.join(location for location, _ in found)}")
        return found[0][1].open()

    def contents(self, name: str) -> bytes:
        """Return what is the same as long as a model's files hold the same. Raises InferError, OSError."""
        entry = self.find(name)
        try:
            return content_digest(entry)
        finally:
            entry.release()

    def look(self) -> Look:
        """Return how all models look now, with one question to each store."""
        look = Look()
        for store in self._stores:
            try:
                models = store.look()
            except InferError as error:
                look.unreadable[store.location] = error.message
                continue
            for name, sighting in models.items():
                look.sightings.setdefault(name, []).append((store.location, sighting))
        return look

    def plan(self, entry: ModelEntry) -> ModelPlan:
        """Return what is to be loaded of a model. Raises InferError."""
        plan = self._loader.plan(entry)
        if self.namespaces is not None:
            try:
                self.namespaces.link(plan.entry.key, plan.config)
            except InferError:
                if plan.agents is not None:
                    plan.agents.load_failed()
                raise
        else:
            # Triton: what a configuration says of the namespaces of its steps is not heeded.
            for step in plan.config.ensemble_scheduling.step:
                step.ClearField("model_namespace")
        return plan

    def named(self, name: str) -> list[str]:
        """Return what the models of a name that can be loaded are known by; reads the stores."""
        return [name] if self.namespaces is None else self.namespaces.holders(name)

    def known_as(self, name: str) -> list[str]:
        """Return what the models of a name are known by that were loaded, or should have been."""
        if self.namespaces is None or isinstance(name, ModelKey):
            return [name]
        return self._lifecycle.known_as(name)

    # --- loading ----------------------------------------------------------------------------------------------------

    def load_all(self) -> bool:
        """Load every model of every repository, in parallel; whether all of them are ready.

        Raises InferError when a repository cannot be read. What fails about a single model is logged and kept as the
        reason of its state.
        """
        entries, all_loaded = self._discover()
        with ThreadPoolExecutor(self._load_thread_count, thread_name_prefix="load") as pool:
            plans = [plan for plan in map(self._plan, entries) if plan is not None]
            all_loaded = all_loaded and len(plans) == len(entries)
            for group in by_dependency(plans):
                loads = [(plan, self._start_load(pool, plan)) for plan in group]
                for plan, futures in loads:
                    try:
                        self._finish_load(plan, futures)
                    except InferError:
                        all_loaded = False
        heap.trim()
        return all_loaded

    def load(self, plan: ModelPlan, unchanged: Collection[int] = ()) -> list[LoadedVersion]:
        """Load the versions of one model and put them in place, all or none of them.

        Of the `unchanged` versions, what is in place stays if it can serve the plan. Returns what is replaced, for
        the caller to stop. Raises InferError that says what failed.
        """
        kept = {n: v for n, v in self._lifecycle.loaded_versions(plan.entry.key).items() if n in unchanged}
        try:
            with ThreadPoolExecutor(self._load_thread_count, thread_name_prefix="load") as pool:
                return self._finish_load(plan, self._start_load(pool, plan, kept))
        finally:
            heap.trim()

    def rehearse(self, plan: ModelPlan) -> None:
        """Load the versions of one model and let go of them; nothing that is served notices. Raises InferError."""
        failures = ""
        with ThreadPoolExecutor(self._load_thread_count, thread_name_prefix="rehearse") as pool:
            futures = {version: pool.submit(self._load_version, plan, version) for version in plan.versions}
        for version, future in futures.items():
            try:
                stop_version(future.result(), 0.0)
            except Exception as error:
                _log.error("rehearsal: '%s' version %d would not load: %s", plan.entry.key, version, reason_of(error))
                failures += f"version {version} would be at UNAVAILABLE state: {reason_of(error)};\n"
        heap.trim()
        if failures:
            raise invalid_argument(f"load would fail for model '{plan.entry.key}': {failures}")

    def abandon(self) -> None:
        """Give up loading: what is being loaded finishes, what waits is not begun."""
        self._abandoned = True

    def _discover(self) -> tuple[list[ModelEntry], bool]:
        """Return the models that are unique, and whether that was all of them."""
        sightings: dict[str, list[tuple[str, Sighting]]] = {}
        for store in self._stores:
            for name, sighting in store.look().items():
                sightings.setdefault(name, []).append((store.location, sighting))
        unique: dict[str, Sighting] = {}
        for name, found in sorted(sightings.items()):
            if len(found) > 1:
                where = ", ".join(location for location, _ in found)
                _log.error("failed to poll model '%s': not unique across all model repositories: %s", name, where)
                self._lifecycle.fail_model(name, DUPLICATE)
            else:
                unique[name] = found[0][1]
        with ThreadPoolExecutor(self._load_thread_count, thread_name_prefix="open") as pool:
            entries = [entry for entry in pool.map(self._open, unique, unique.values()) if entry is not None]
        return entries, len(entries) == len(sightings)

    def _open(self, name: str, sighting: Sighting) -> ModelEntry | None:
        try:
            return sighting.open()
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
        reason = reason_of(error)
        _log.error("failed to load model '%s': %s", name, reason, exc_info=_traceback_of(error))
        self._lifecycle.fail_model(name, reason)

    def note_failure(self, name: str, reason: str) -> None:
        """Record why a model cannot be loaded as it is now; what is served of it stays."""
        _log.error("failed to load model '%s': %s", name, reason)
        self._lifecycle.fail_model(name, reason)

    def forget(self, name: str) -> None:
        """Remove a model that is not in any store any more from the index."""
        self._lifecycle.forget(name)

    def _start_load(
        self, pool: ThreadPoolExecutor, plan: ModelPlan, kept: Mapping[int, V] | None = None
    ) -> "dict[int, Future[_Loaded[V]]]":
        self._lifecycle.begin_load(plan.entry.key, plan.versions)
        kept = kept or {}
        return {number: pool.submit(self._bring, plan, number, kept.get(number)) for number in plan.versions}

    def _bring(self, plan: ModelPlan, version: int, kept: V | None) -> _Loaded[V]:
        """Load a version, or prepare what is in place to go on as the plan says."""
        if kept is not None:
            update = self._loader.update(plan, version, kept)
            if update is not None:
                return _Loaded(kept, update)
        return _Loaded(self._load_version(plan, version))

    def _load_version(self, plan: ModelPlan, version: int) -> V:
        name = plan.entry.key
        retries_left = self._load_retry_count
        while True:
            if self._abandoned:
                raise unavailable("loading was abandoned because the server is stopping")
            _log.info("loading: %s:%d", name, version)
            try:
                return self._loader.load(plan, version)
            except Exception as error:
                if not retries_left:
                    raise
                retries_left -= 1
                _log.warning("failed to load '%s' version %d, trying again: %s", name, version, reason_of(error))

    def _finish_load(self, plan: ModelPlan, futures: "Mapping[int, Future[_Loaded[V]]]") -> list[LoadedVersion]:
        """Wait for the versions of one model, put them in place and return what they replace. Raises InferError."""
        name = plan.entry.key
        loaded: dict[int, _Loaded[V]] = {}
        failures = ""
        for version, future in futures.items():
            try:
                loaded[version] = future.result()
            except Exception as error:
                reason = reason_of(error)
                _log.error("failed to load '%s' version %d: %s", name, version, reason, exc_info=_traceback_of(error))
                self._lifecycle.fail_version(name, version, reason)
                failures += f"version {version} is at UNAVAILABLE state: {reason};\n"
        if self._abandoned:
            failures = failures or "the server is stopping"
        if not failures:
            retired: list[LoadedVersion] = []
            retired += self._lifecycle.swap(name, {version: each.version for version, each in loaded.items()})
            left_over = [each.update.commit() for each in loaded.values() if each.update is not None]
            retired += [each for each in left_over if each is not None]
            retired += self._change_agents(name, plan.agents)
            _log.info("successfully loaded '%s'", name)
            return retired
        # Triton: a set of versions is all or nothing; what did load is released.
        for version, useless in loaded.items():
            if useless.update is not None:
                useless.update.discard()
            else:
                stop_version(useless.version, 0.0)
            self._lifecycle.fail_version(name, version, UNLOADED)
        if plan.agents is not None and self._agents.get(name) is not plan.agents:
            plan.agents.load_failed()
        raise invalid_argument(f"load failed for model '{name}': {failures}")

    # --- unloading --------------------------------------------------------------------------------------------------

    def unload_all(self, timeout_s: float) -> bool:
        """Unload everything in parallel; whether every accepted request finished within `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        names = sorted({row.name for row in self._lifecycle.rows() if row.state is ModelState.READY})
        if not names:
            return True
        with ThreadPoolExecutor(min(len(names), 32), thread_name_prefix="unload") as pool:
            return all(list(pool.map(lambda name: self._unload(name, deadline_s), names)))

    def unload(self, name: str, settle: Callable[[], object], timeout_s: float) -> None:
        """Take a model out of service and release it once its requests have finished.

        `settle` waits until nobody can be about to submit to a version that was found before.
        """
        unloading = self._lifecycle.begin_unload(name, withdraw=True)
        chains = self._change_agents(name, None)
        if unloading:
            settle()
        for version, loaded in unloading.items():
            if not stop_version(loaded, timeout_s):
                _log.warning("requests of '%s' version %d did not finish within %g s", name, version, timeout_s)
            _log.info("successfully unloaded '%s' version %d", name, version)
        heap.trim()
        for chain in chains:
            stop_version(chain, timeout_s)
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
        """Put the agents of a new load in place; return those of what it replaces, to be stopped after that."""
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


def by_dependency(plans: Sequence[ModelPlan]) -> Iterator[Sequence[ModelPlan]]:
    """Yield groups of plans, each of which needs models of earlier groups only.

    Ensembles that contain each other in a circle, and those that need them, come last; their loading fails.
    """
    left = {plan.entry.key: plan for plan in plans}
    while left:
        ready = [plan for plan in left.values() if not any(name in left for name in member_names(plan.config))]
        if not ready:
            yield _with_circles(left)
            return
        yield ready
        for plan in ready:
            del left[plan.entry.key]


def _with_circles(plans: Mapping[str, ModelPlan]) -> list[ModelPlan]:
    members = {name: sorted(member_names(plan.config)) for name, plan in plans.items()}
    return [replace(plan, circle=find_ensemble_cycle(members, name)) for name, plan in plans.items()]


def member_names(config: ModelConfig) -> set[str]:
    """Return what the models of an ensemble's steps are known by; none for any other model."""
    return {model_key(step.model_namespace, step.model_name) for step in config.ensemble_scheduling.step}


def stop_version(loaded: LoadedVersion, timeout_s: float) -> bool:
    """Stop a version; a failure on the way out is logged, for nothing can be done about it any more."""
    try:
        return loaded.stop(timeout_s)
    except Exception:
        _log.exception("stopping a model version failed")
        return True


def reason_of(error: Exception) -> str:
    """Return the text that says why a load failed: the message of an InferError, type and text of anything else."""
    return error.message if isinstance(error, InferError) else f"{type(error).__name__}: {error}"


def _traceback_of(error: Exception) -> Exception | None:
    """Return what to log a traceback of: only failures that nobody foresaw have one worth reading."""
    return None if isinstance(error, InferError) else error
