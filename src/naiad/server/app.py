"""The server process: takes options, builds and runs everything, returns an exit status."""

import asyncio
import functools
import gc
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from naiad.backend.api import Backend
from naiad.backend.cores import gpu_count, resolve_policies, usable_cores
from naiad.backend.custom_metrics import CustomMetrics
from naiad.backend.registry import BackendRegistry
from naiad.config.rollout.guard import RolloutCounts
from naiad.core.errors import ErrorCode, InferError
from naiad.engine.cache.factory import open_store
from naiad.engine.cache.store import ResponseStore
from naiad.engine.calls import ModelCalls
from naiad.engine.inference import Engine
from naiad.engine.loading.loader import ModelLoader
from naiad.engine.serving.served import Served
from naiad.files.temporary import remove_abandoned
from naiad.memory.regions import SharedMemory
from naiad.options.artificial_delays import read_artificial_delays
from naiad.options.bare_models import BareModelOptions
from naiad.options.options import REPOSITORY, RecordingOptions, RepositoryOptions, ServerOptions
from naiad.protocol.status import use_triton_codes
from naiad.repository.catalog import Catalog
from naiad.repository.control.triggers import RepositoryControl, explicit_control, no_control, poll_control
from naiad.repository.lifecycle import ReadyRule
from naiad.repository.opening import CacheSettings, open_repository, rollout_cache
from naiad.repository.rollout_records import RolloutRecords
from naiad.repository.stores.bare_files import BareFilesStore
from naiad.repository.stores.namespaces import Namespaces
from naiad.repository.stores.store import SingleModelStore, Store
from naiad.repository.stores.stores import Stores
from naiad.server.ports.ports import Ports
from naiad.server.process.drain import drain
from naiad.server.process.memory import FreedMemory, open_budget, overload_options, usable_memory_bytes
from naiad.server.process.runner import ServiceManager, StopSignal, run_to_status
from naiad.server.reporting.metrics import (
    open_resources,
    show_cache,
    show_connections,
    show_responses,
)
from naiad.server.reporting.ready_file import ReadyFile
from naiad.server.reporting.ready_set import ReadySetPublisher, settle
from naiad.server.reporting.report import failed_start, first_model, loading_text, log_backends, log_models, log_ready
from naiad.server.reporting.rollouts import show_rollouts
from naiad.server.rollout_follower import RolloutFollower
from naiad.server.rollouts import CountRollouts, RolloutKeeper
from naiad.telemetry.last_resort import keep_running_task
from naiad.telemetry.logs import log
from naiad.telemetry.metrics.exposition import Row, format_rows
from naiad.telemetry.metrics.gpus import GpuMeter
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.metrics.responses import rejections
from naiad.telemetry.process import trim_heap
from naiad.telemetry.trace.tracer import Tracer
from naiad.telemetry.traffic import Recorder, RingFile, TrafficWriter

_log = logging.getLogger(__name__)

_DEVELOPMENT_POLL_S = 0.3
_DEVELOPMENT_SETTLE_S = 0.2
_CHECK_S = 1.0
"""Interval of checks for hung executions and slow clients."""
_PROGRESS_S = 5.0
"""Interval of log lines while models load."""
_STARTUP_UNLOAD_S = 1.0
"""Time for loaded models to unload when the start is aborted."""
_COLLECTOR_THRESHOLDS = (700, 10, 100)
"""Full collections run after ten times as many new objects as by default, about 700,000.

One blocks the event loop for about 10 us per open connection. Connections and requests are freed without it.
"""


def serve(options: ServerOptions) -> int:
    """Run a server until a signal stops it and return the exit status.

    0 after a graceful exit, 1 if it could not start or did not finish in time.
    """
    return run_to_status(options, lambda: Server(options, service_manager=ServiceManager(os.environ)).run())


class Server:
    """One server process: repository, engine, endpoints."""

    _engine_type = Engine
    _loader_type = ModelLoader

    def __init__(
        self,
        options: ServerOptions,
        stop: StopSignal | None = None,
        service_manager: ServiceManager | None = None,
        backends: Sequence[Backend] = (),
    ) -> None:
        """`backends`: objects for backends that no package has, see `BackendRegistry`."""
        self._options = options
        use_triton_codes(options.uses_triton_codes)
        self._registry = Registry(options.metrics)
        self._custom_metrics = CustomMetrics(self._registry.has_family)
        self._registry.add_families(self._custom_metrics.render)
        self._gpu_meter = _gpu_meter(options)
        if self._gpu_meter is not None:
            self._registry.add_families(self._gpu_meter.render)
        shared_memory = SharedMemory(
            is_allowed=options.shared_memory.is_allowed, max_regions=options.shared_memory.max_regions
        )
        self._engine = self._engine_type(
            server_id=options.server_id, metrics=self._registry, shared_memory=shared_memory
        )
        self._engine.suggests_models = options.access.shows_index_to_all
        self._backends = BackendRegistry(directory=_backend_directory(options.backend_directory), backends=backends)
        self._delays = read_artificial_delays(os.environ)
        self._stop = stop or StopSignal(log_format=options.log.format)
        self._service_manager = service_manager or ServiceManager({})
        self._ready_file = ReadyFile(options.ready_file)
        self._tracer = Tracer(options.trace)
        self._budget = open_budget(options, self._registry)
        self._records = open_records(options.repository)

    async def run(self) -> int:
        """Start, serve until a signal, drain; return the exit status. Raises InferError if it cannot start."""
        loop = asyncio.get_running_loop()
        self._engine.keep_rollouts(self._records, loop)
        self._stop.install(loop)
        self._service_manager.watch(loop)
        ports = self._make_ports(loop)
        ports.delay_control(self._delays.grpc_response_s)
        show_connections(self._registry, ports.endpoints())
        show_responses(self._registry, ports.accounting)
        show_rollouts(self._registry, self._engine.rollouts)
        rejections.is_known = self._engine.knows
        await asyncio.to_thread(remove_abandoned)
        store = open_store(self._options.cache_config)
        if store is not None:
            show_cache(self._registry, store)
        control = self._make_control(self._make_catalog(self._make_loader(loop, store)), loop)
        self._engine.attach(control)
        self._engine.trace(self._tracer)
        self._engine.recorder = open_recorder(self._options.recording, self._registry)
        try:
            # Probes and metrics are answered while the models load.
            await ports.listen()
            self._listens()
            await self._load(control, ports)
            ports.check_models()
            await ports.listen_shared()
        except InferError:
            ports.abort()
            raise
        self._engine.set_started()
        self._settle()
        if self._gpu_meter is not None:
            self._gpu_meter.start()
        self._serves(ports)
        self._service_manager.ready()
        check = keep_running_task("the check of the models", self._check_models)
        checking = [asyncio.ensure_future(check), *self._keep_rollouts()]
        status = await self._serve_until_stop(control, ports)
        for task in checking:
            task.cancel()
        if store is not None:
            await store.close()
        return status

    async def _serve_until_stop(self, control: RepositoryControl[Served], ports: Ports) -> int:
        await self._stop.wait()
        self._ready_file.remove()
        self._service_manager.stopping()
        return await self._leave(control, ports)

    def _keep_rollouts(self) -> "list[asyncio.Future[None]]":
        """Return the task that decides about rollouts, if this process does."""

        async def count() -> Mapping[str, RolloutCounts]:
            return self._engine.rollout_counts()

        return self._start_keeping(count)

    def _start_keeping(self, count: CountRollouts) -> "list[asyncio.Future[None]]":
        follower = RolloutFollower(self._engine, self._records)
        return [asyncio.ensure_future(each.run()) for each in (RolloutKeeper(self._engine, count), follower)]

    async def _check_models(self) -> None:
        """Check running executions, also while the server drains, and return freed memory to the system."""
        freed = FreedMemory()
        while True:
            await asyncio.sleep(_CHECK_S)
            self._engine.check_models(time.monotonic_ns())
            if freed.is_due(time.monotonic_ns(), time.process_time_ns()):
                await asyncio.to_thread(trim_heap)
                freed.note_returned(time.monotonic_ns())

    # --- start ------------------------------------------------------------------------------------------------------

    def _make_ports(self, loop: asyncio.AbstractEventLoop) -> Ports:
        return Ports(self._options, self._engine, loop, self._budget)

    def _listens(self) -> None:
        """Called once, when the ports are open, before the models load."""

    def _serves(self, ports: Ports) -> None:
        """Called once, when the start is over."""
        bound = {endpoint.flag: endpoint.port for endpoint in ports.endpoints()}
        is_ready = self._engine.is_ready()
        log_ready(self._options, bound, is_ready=is_ready, model=first_model(self._engine))
        self._ready_file.write(self._options, bound, is_ready=is_ready)

    def _make_loader(self, loop: asyncio.AbstractEventLoop, store: ResponseStore | None) -> ModelLoader:
        options = self._options
        return self._loader_type(
            loop=loop,
            backends=self._backends,
            usable_cores=usable_cores(),
            auto_complete=options.repository.auto_complete,
            backend_config=options.backend_settings,
            router=self._engine,
            response_store=store,
            resources=open_resources(self._options.rate_limit, self._registry),
            port=ModelCalls(self._engine, loop, self._options.call_wait_timeout_s),
            metrics=self._custom_metrics,
            gpu_count=gpu_count(),
            host_policies=resolve_policies(options.host_policies),
            execute_timeout_s=options.execute_timeout_s,
            delays=self._delays,
            overload=overload_options(options.overload, self._budget),
            limits=options.load_limits.resolved(
                memory_bytes=usable_memory_bytes() // options.process_count, cores=usable_cores()
            ),
            rollouts=self._engine.rollouts,
            records=self._records,
        )

    def _make_catalog(self, loader: ModelLoader) -> Catalog[Served]:
        options = self._options.repository
        stores = open_stores(options, self._options.bare_models)
        catalog = Catalog(
            stores,
            loader,
            ReadySetPublisher(self._engine, self._registry).publish,
            load_thread_count=options.load_thread_count,
            load_retry_count=options.load_retry_count,
            ready_rule=ReadyRule(options.ready_rule),
            namespaces=Namespaces(stores) if options.has_namespaces else None,
            declare_rollout=self._engine.rollouts.declare,
            load_timeout_s=self._options.load_limits.max_s,
        )
        self._registry.add_callback(
            "naiad_model_load_failures_total",
            "counter",
            "Loads of models or versions that failed",
            lambda: catalog.load_failure_count,
        )
        catalog.serves_without_stores = not options.exit_on_error
        self._registry.add_families(functools.partial(_repositories_away, catalog.stores))
        return catalog

    def _make_control(self, catalog: Catalog[Served], loop: asyncio.AbstractEventLoop) -> RepositoryControl[Served]:
        options = self._options.repository
        if options.is_development:
            waits = functools.partial(settle, loop)
            return poll_control(catalog, waits, poll_s=_DEVELOPMENT_POLL_S, settle_s=_DEVELOPMENT_SETTLE_S)
        if options.control_mode == "none":
            return no_control(catalog, needs_models=options.exit_on_error, settle=functools.partial(settle, loop))
        if options.control_mode == "poll" and options.poll_s:
            waits = functools.partial(settle, loop)
            return poll_control(catalog, waits, poll_s=options.poll_s, settle_s=options.settle_s)
        if options.control_mode == "poll":
            return no_control(catalog, settle=functools.partial(settle, loop))
        return explicit_control(catalog, functools.partial(settle, loop), options.load_models)

    async def _load(self, control: RepositoryControl[Served], ports: Ports) -> None:
        """Load the models of the start. Raises InferError if the server cannot continue."""
        loading = asyncio.ensure_future(asyncio.to_thread(control.load_at_start))
        stopping = asyncio.ensure_future(self._stop.wait())
        waited_s = 0.0
        while not (await asyncio.wait({loading, stopping}, timeout=_PROGRESS_S, return_when="FIRST_COMPLETED"))[0]:
            waited_s += _PROGRESS_S
            _log.info("still loading: %s", loading_text(control.catalog.loading(), waited_s))
        if self._stop.is_set:
            # The server was never ready. A load cannot be interrupted, and its thread would keep the process alive.
            control.abandon()
            await asyncio.to_thread(control.unload_all, _STARTUP_UNLOAD_S)
            ports.abort()
            self._end(0)
        stopping.cancel()
        all_loaded = await loading
        log_backends(self._backends.modules(), self._options.backend_settings)
        await asyncio.to_thread(log_models, self._engine, self._options.repository)
        if all_loaded or not self._options.repository.exit_on_error:
            return
        rows = self._engine.repository_index()
        await asyncio.to_thread(control.unload_all, _STARTUP_UNLOAD_S)
        raise await asyncio.to_thread(
            failed_start, rows, self._options.repository, self._backends.names(), gpu_count()
        )

    def _settle(self) -> None:
        """Tune the interpreter for serving: existing objects stay, so the collector need not scan them again."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_COLLECTOR_THRESHOLDS)
        gc.enable()

    # --- exit -------------------------------------------------------------------------------------------------------

    def _end(self, status: int) -> None:
        """End the process although its threads are still working."""
        _end_process(status)

    async def _leave(self, control: RepositoryControl[Served], ports: Ports) -> int:
        in_time = await drain(
            self._engine,
            ports.services,
            control.unload_all,
            drain_s=self._options.drain_s,
            exit_timeout_s=self._options.exit_timeout_s,
            end_loads=control.abandon,
        )
        if self._engine.recorder is not None:
            await asyncio.to_thread(self._engine.recorder.close)
        if not in_time:
            _log.error("Exit timeout expired. Exiting immediately.")
            self._end(1)
        ports.close()
        if self._gpu_meter is not None:
            await asyncio.to_thread(self._gpu_meter.close)
        await asyncio.to_thread(self._tracer.close)
        return 0


def open_records(options: RepositoryOptions) -> RolloutRecords:
    """Return the records of rollouts, where the operator wants them."""
    place = options.rollout_state
    return RolloutRecords(None if place == REPOSITORY else Path(place).absolute(), rollout_cache(os.environ))


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


def _gpu_meter(options: ServerOptions) -> GpuMeter | None:
    metrics = options.metrics
    return GpuMeter(metrics.interval_ms / 1000) if metrics.allow and metrics.allow_gpu else None


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


def _end_process(status: int) -> None:
    """End the process although its threads are still working; the log is written first."""
    log.shut_down()
    os._exit(status)


def open_recorder(options: RecordingOptions, registry: Registry) -> Recorder | None:
    """Return the recorder, whose file is open, and show its metrics; None without the flag.

    Raises InferError if the file cannot be written.
    """
    if not options.path:
        return None
    try:
        writer = TrafficWriter(functools.partial(RingFile, options.path, options.size_bytes))
    except OSError as error:
        raise InferError(
            ErrorCode.INVALID_ARG,
            f"--record-traffic={options.path}: {error.filename or options.path}: {error.strerror}; choose a new file "
            "in a directory that can be written",
        ) from None
    registry.add_callback(
        "naiad_traffic_records_total", "counter", "Requests in the recording", lambda: writer.written_count
    )
    registry.add_callback(
        "naiad_traffic_records_dropped_total",
        "counter",
        "Requests that are missing in the recording",
        lambda: writer.dropped_count,
    )
    return Recorder(writer, has_payloads=options.has_payloads)
