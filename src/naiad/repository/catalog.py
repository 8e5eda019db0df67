"""The catalog: the models of all repositories, and the work of loading and unloading them."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, Protocol

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.pbtxt import ParsedConfig
from naiad.core.errors import InferError, invalid_argument, not_found, unavailable
from naiad.core.model import IndexEntry, ModelState
from naiad.repository.fingerprint import content_digest
from naiad.repository.lifecycle import UNLOADED, Lifecycle, LoadedVersion, Publish, ReadyRule, V, V_co
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


class VersionLoader(Protocol[V_co]):
    """Turns what a store has into something that serves. Its methods are called from several threads."""

    def plan(self, entry: ModelEntry) -> ModelPlan:
        """Read the configuration and select the versions. Raises InferError."""

    def load(self, plan: ModelPlan, version: int) -> V_co:
        """Load one version. Raises InferError."""


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
    ) -> None:
        self._stores = stores
        self._loader = loader
        self._lifecycle: Lifecycle[V] = Lifecycle(publish, ready_rule)
        self._load_thread_count = load_thread_count
        self._load_retry_count = load_retry_count
        self._abandoned = False
        self._last_names: dict[str, list[str]] = {}
        """By location, as `known_names` found them."""

    # --- questions --------------------------------------------------------------------------------------------------

    def index(self, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return a row per model version, as the life cycle knows it; never waits."""
        rows = self._lifecycle.rows()
        return [row for row in rows if row.state is ModelState.READY] if ready_only else rows

    def is_ready(self) -> bool:
        """Tell whether the readiness rule is met."""
        return self._lifecycle.is_ready

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
        check_model_name(name)
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
            raise unreadable or not_found(f"no model '{name}' in {where}")
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
        return self._loader.plan(entry)

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
        return all_loaded

    def load(self, plan: ModelPlan) -> list[V]:
        """Load the versions of one model and put them in place, all or none of them.

        Returns what they replace, for the caller to stop. Raises InferError that says what failed.
        """
        with ThreadPoolExecutor(self._load_thread_count, thread_name_prefix="load") as pool:
            return self._finish_load(plan, self._start_load(pool, plan))

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
            return self._loader.plan(entry)
        except Exception as error:
            self._fail_model(entry.name, error)
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

    def _start_load(self, pool: ThreadPoolExecutor, plan: ModelPlan) -> dict[int, "Future[V]"]:
        self._lifecycle.begin_load(plan.entry.name, plan.versions)
        return {version: pool.submit(self._load_version, plan, version) for version in plan.versions}

    def _load_version(self, plan: ModelPlan, version: int) -> V:
        name = plan.entry.name
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

    def _finish_load(self, plan: ModelPlan, futures: Mapping[int, "Future[V]"]) -> list[V]:
        """Wait for the versions of one model, put them in place and return what they replace. Raises InferError."""
        name = plan.entry.name
        loaded: dict[int, V] = {}
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
            retired = self._lifecycle.swap(name, loaded)
            _log.info("successfully loaded '%s'", name)
            return retired
        # Triton: a set of versions is all or nothing; what did load is released.
        for version, useless in loaded.items():
            stop_version(useless, 0.0)
            self._lifecycle.fail_version(name, version, UNLOADED)
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
        if unloading:
            settle()
        for version, loaded in unloading.items():
            if not stop_version(loaded, timeout_s):
                _log.warning("requests of '%s' version %d did not finish within %g s", name, version, timeout_s)
            _log.info("successfully unloaded '%s' version %d", name, version)
        self._lifecycle.end_unload(name, list(unloading))
        self._lifecycle.forgive(name)

    def _unload(self, name: str, deadline_s: float) -> bool:
        unloading = self._lifecycle.begin_unload(name)
        finished = True
        for version, loaded in unloading.items():
            in_time = stop_version(loaded, max(0.0, deadline_s - time.monotonic()))
            finished = finished and in_time
            _log.info("successfully unloaded '%s' version %d", name, version)
        self._lifecycle.end_unload(name, list(unloading))
        return finished


def by_dependency(plans: Sequence[ModelPlan]) -> Iterator[Sequence[ModelPlan]]:
    """Yield groups of plans, each of which needs models of earlier groups only.

    Ensembles that contain each other in a circle come last; their loading tells what is wrong.
    """
    left = {plan.entry.name: plan for plan in plans}
    while left:
        ready = [plan for plan in left.values() if not any(name in left for name in member_names(plan.config))]
        yield ready or list(left.values())
        for plan in ready or list(left.values()):
            del left[plan.entry.name]


def member_names(config: ModelConfig) -> set[str]:
    """Return the models of an ensemble's steps; none for any other model."""
    return {step.model_name for step in config.ensemble_scheduling.step}


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
