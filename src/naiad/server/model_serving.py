"""The engine of a process and the repository whose models it serves: a server without its ports and its life."""

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from naiad.backend.api import Backend
from naiad.backend.cores import gpu_count, resolve_policies, usable_cores
from naiad.backend.custom_metrics import CustomMetrics
from naiad.backend.registry import BackendRegistry
from naiad.core.errors import InferError
from naiad.engine.cache.response_store import ResponseStore
from naiad.engine.engine import Engine
from naiad.engine.loading.loader import ModelLoader
from naiad.engine.model_calls import ModelCalls
from naiad.engine.processes import Processes
from naiad.engine.regions.regions import SharedMemory
from naiad.engine.serving.served import Served
from naiad.files.private_folder import make_private_folder
from naiad.options.artificial_delays import read_artificial_delays
from naiad.options.bare_models import BareModelOptions
from naiad.options.options import REPOSITORY, RepositoryOptions, ServerOptions
from naiad.protocol.status_table import use_triton_codes
from naiad.repository.catalog import Catalog
from naiad.repository.control.control_modes import RepositoryControl, explicit_control, no_control, poll_control
from naiad.repository.control.on_demand.on_demand_models import OnDemandModels
from naiad.repository.lifecycle import ReadyRule
from naiad.repository.model_plan import ModelPlan
from naiad.repository.open_repository import CacheSettings, open_repository, rollout_cache
from naiad.repository.rollout_records import RolloutRecords
from naiad.repository.stores.bare_files import BareFilesStore
from naiad.repository.stores.namespaces import Namespaces
from naiad.repository.stores.store import SingleModelStore, Store
from naiad.repository.stores.stores import Stores
from naiad.server.on_demand_parts import hold_limits, on_demand_settings, show_on_demand, version_use
from naiad.server.process.memory import open_budget, overload_options, usable_memory_bytes
from naiad.server.remote_servers import GrpcServers
from naiad.server.reporting.ready_set import ReadySetPublisher, settle
from naiad.server.reporting.server_metrics import open_resources
from naiad.telemetry.metrics.exposition import Row, format_rows
from naiad.telemetry.metrics.metrics import Registry

_log = logging.getLogger(__name__)

_DEVELOPMENT_POLL_S = 0.3
_DEVELOPMENT_SETTLE_S = 0.2


class ModelServing:
    """The engine and what it serves. It is made from the options; `open` connects it to the repository."""

    def __init__(
        self,
        options: ServerOptions,
        *,
        backends: Sequence[Backend] = (),
        processes: Processes | None = None,
        wrap_version: Callable[[ModelPlan, Served], Served] | None = None,
    ) -> None:
        """`backends`: objects for backends that no package has, see `BackendRegistry`.

        `processes`: all processes of the server, if it has several. `wrap_version` returns what serves in place of a
        version.
        """
        self._options = options
        use_triton_codes(options.uses_triton_codes)
        self.registry = Registry(options.metrics)
        """The metrics of the process."""
        self._custom_metrics = CustomMetrics(self.registry.has_family)
        self.registry.add_families(self._custom_metrics.render)
        shared_memory = SharedMemory(
            is_allowed=options.shared_memory.is_allowed, max_regions=options.shared_memory.max_regions
        )
        self.engine = Engine(
            server_id=options.server_id, metrics=self.registry, shared_memory=shared_memory, processes=processes
        )
        self.engine.models.suggests_models = options.access.shows_index_to_all
        self.backends = BackendRegistry(directory=_backend_directory(options.backend_directory), backends=backends)
        self.budget = open_budget(options, self.registry)
        """The budget of request bytes."""
        self.records = open_records(options.repository)
        """The records of rollouts."""
        self.delays = read_artificial_delays(os.environ)
        self._wrap_version = wrap_version

    def open(self, store: ResponseStore | None = None) -> RepositoryControl[Served]:
        """Open the repository and connect the engine with it; called once, on the loop. Raises InferError."""
        loop = asyncio.get_running_loop()
        control = self._make_control(self._make_catalog(self._make_loader(loop, store)), loop)
        self.engine.attach(control, loop, hold_limits(self._options, self.budget))
        if control.on_demand is not None and self.engine.models.held is not None:
            show_on_demand(self.registry, control.on_demand, self.engine.models.held)
        return control

    def _make_loader(self, loop: asyncio.AbstractEventLoop, store: ResponseStore | None) -> ModelLoader:
        options = self._options
        return ModelLoader(
            loop=loop,
            backends=self.backends,
            usable_cores=usable_cores(),
            auto_complete=options.repository.auto_complete,
            backend_config=options.backend_settings,
            router=self.engine.inference,
            index=self.engine.models.index,
            wrap=self._wrap_version,
            response_store=store,
            resources=open_resources(self._options.rate_limit, self.registry),
            port=ModelCalls(self.engine, loop, self._options.call_wait_timeout_s),
            metrics=self._custom_metrics,
            gpu_count=gpu_count(),
            host_policies=resolve_policies(options.host_policies),
            execute_timeout_s=options.execute_timeout_s,
            delays=self.delays,
            overload=overload_options(options.overload, self.budget),
            limits=options.load_limits.resolved(
                memory_bytes=usable_memory_bytes() // options.process_count, cores=usable_cores()
            ),
            rollouts=self.engine.rollouts,
            records=self.records,
            remote=GrpcServers(loop),
        )

    def _make_catalog(self, loader: ModelLoader) -> Catalog[Served]:
        options = self._options.repository
        stores = open_stores(options, self._options.bare_models)
        catalog = Catalog(
            stores,
            loader,
            ReadySetPublisher(self.engine, self.registry).publish,
            load_thread_count=options.load_thread_count,
            load_retry_count=options.load_retry_count,
            ready_rule=ReadyRule(options.ready_rule),
            namespaces=Namespaces(stores) if options.has_namespaces else None,
            declare_rollout=self.engine.rollouts.declare,
            load_timeout_s=self._options.load_limits.max_s,
        )
        self.registry.add_callback(
            "naiad_model_load_failures_total",
            "counter",
            "Loads of models or versions that failed",
            lambda: catalog.load_failure_count,
        )
        catalog.serves_without_stores = not options.exit_on_error
        self.registry.add_families(functools.partial(_repositories_away, catalog.stores))
        return catalog

    def _make_control(self, catalog: Catalog[Served], loop: asyncio.AbstractEventLoop) -> RepositoryControl[Served]:
        options = self._options.repository
        waits = functools.partial(settle, loop)
        make = functools.partial(OnDemandModels, settings=on_demand_settings(self._options), use_of=version_use)
        if options.is_development:
            polls, settles = _DEVELOPMENT_POLL_S, _DEVELOPMENT_SETTLE_S
            return poll_control(catalog, waits, poll_s=polls, settle_s=settles, make_on_demand=make)
        if options.control_mode == "none":
            return no_control(catalog, needs_models=options.exit_on_error, settle=waits, make_on_demand=make)
        if options.control_mode == "poll" and options.poll_s:
            polls, settles = options.poll_s, options.settle_s
            return poll_control(catalog, waits, poll_s=polls, settle_s=settles, make_on_demand=make)
        if options.control_mode == "poll":
            return no_control(catalog, settle=waits, make_on_demand=make)
        return explicit_control(catalog, waits, options.load_models, make_on_demand=make)


def open_records(options: RepositoryOptions) -> RolloutRecords:
    """Return the records of rollouts, where the operator wants them."""
    place = options.rollout_state
    cache: Path | None = rollout_cache(os.environ)
    try:
        if cache is not None and cache.exists():
            make_private_folder(cache)
    except OSError as error:
        _log.warning("rollouts are not kept in the cache: %s: %s", cache, error.strerror)
        cache = None
    return RolloutRecords(None if place == REPOSITORY else Path(place).absolute(), cache)


def open_stores(options: RepositoryOptions, bare: BareModelOptions) -> list[Store]:
    """Return the stores of the repositories. Raises InferError."""
    stores = _open_stores(options, bare)
    if bare.is_specific:
        kinds = (SingleModelStore, BareFilesStore)
        entries = [store.open_model(name) for store in stores if isinstance(store, kinds) for name in store.look()]
        bare.check_names([entry.name for entry in entries if entry.default_max_batch_size is not None])
    return stores


def _open_stores(options: RepositoryOptions, bare: BareModelOptions) -> list[Store]:
    cache = CacheSettings(options.cloud_cache_directory, options.cloud_cache_max_bytes)
    try:
        return [
            open_repository(
                path,
                config_name=options.model_config_name,
                bare=bare,
                cache=cache,
            )
            for path in options.paths
        ]
    except InferError as error:
        if not options.variable:
            raise
        raise InferError(error.code, f"{options.variable}: {error.message}") from None


def _backend_directory(text: str) -> Path | None:
    if not text:
        return None
    directory = Path(text)
    if not directory.is_dir():
        _log.warning("--backend-directory=%s is not a directory; only installed packages provide backends", text)
        return None
    return directory.resolve()


def _repositories_away(stores: Stores) -> list[str]:
    """Return the family of metrics that says which model repositories cannot be reached."""
    away = stores.away
    rows: list[Row] = [({"repository": location}, int(location in away)) for location in stores.locations]
    text = "Whether a model repository could not be reached the last time (its models are served from the cache)"
    return [format_rows("naiad_model_repository_away", "gauge", text, rows)]
