"""The server process: takes options, builds and runs everything, returns an exit status."""

import asyncio
import functools
import logging
import os
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from naiad.backend.cores import gpu_count
from naiad.core.errors import ErrorCode, InferError
from naiad.engine.cache.factory import open_store
from naiad.engine.serving.served import Served
from naiad.files.temporary import remove_abandoned
from naiad.options.options import RecordingOptions, ServerOptions
from naiad.repository.control.control_modes import RepositoryControl
from naiad.server.model_serving import ModelServing
from naiad.server.parts import ServerParts
from naiad.server.ports.ports import Ports
from naiad.server.process.common_ticks import next_tick
from naiad.server.process.drain import drain
from naiad.server.process.memory import FreedMemory
from naiad.server.process.process_environment import ServiceManager, StopSignal, run_to_status
from naiad.server.reporting.ready_file import ReadyFile
from naiad.server.reporting.report import failed_start, loading_text, log_backends, log_models
from naiad.server.reporting.rollout_metrics import show_rollouts
from naiad.server.reporting.server_metrics import show_cache, show_connections, show_responses
from naiad.server.rollout_follower import RolloutFollower
from naiad.server.rollout_guards import RolloutKeeper
from naiad.telemetry.last_resort import keep_running_task
from naiad.telemetry.metrics.gpus import GpuMeter
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.metrics.response_metrics import rejections
from naiad.telemetry.process_resources import trim_heap
from naiad.telemetry.trace.tracer import Tracer

if TYPE_CHECKING:
    from naiad.telemetry.traffic import Recorder

_log = logging.getLogger(__name__)

_CHECK_S = 1.0
"""Interval of checks for hung executions and slow clients."""
_PROGRESS_S = 5.0
"""Interval of log lines while models load."""
_STARTUP_UNLOAD_S = 1.0
"""Time for loaded models to unload when the start is aborted."""


def serve(options: ServerOptions) -> int:
    """Run a server until a signal stops it and return the exit status.

    0 after a graceful exit, 1 if it could not start or did not finish in time.
    """

    def run() -> Coroutine[object, object, int]:
        stop = StopSignal(log_format=options.log.format)
        parts = ServerParts(stop, ServiceManager(os.environ), ready_file=ReadyFile(options.ready_file))
        return Server(options, parts).run()

    return run_to_status(options, run)


class Server:
    """One server process: repository, engine, endpoints."""

    def __init__(self, options: ServerOptions, parts: ServerParts) -> None:
        self._options = options
        self._parts = parts
        self._models = ModelServing(
            options, backends=parts.backends, processes=parts.processes, wrap_version=parts.wrap_version
        )
        self._registry = self._models.registry
        self.engine = self._models.engine
        self.control: RepositoryControl[Served] | None = None
        """The repository, once it is open."""
        self._gpu_meter = _gpu_meter(options)
        if self._gpu_meter is not None:
            self._registry.add_families(self._gpu_meter.render)
            self.engine.live.gpus = self._gpu_meter.uses
        self._tracer = Tracer(options.trace)

    async def run(self) -> int:
        """Start, serve until a signal, drain; return the exit status. Raises InferError if it cannot start."""
        loop = asyncio.get_running_loop()
        self.engine.rollout_commands.keep(self._models.records, loop)
        self._parts.stop.install(loop)
        self._parts.service_manager.watch(loop)
        ports = self._parts.make_ports(self._options, self.engine, loop, self._models.budget)
        ports.delay_control(self._models.delays.grpc_response_s)
        show_connections(self._registry, ports.endpoints())
        show_responses(self._registry, ports.accounting)
        self._registry.add_callback(
            "naiad_live_streams", "gauge", "Open live streams of dashboards", lambda: ports.live.stream_count
        )
        show_rollouts(self._registry, self.engine.rollouts)
        rejections.is_known = self.engine.models.knows
        if self._parts.removes_abandoned:
            await asyncio.to_thread(remove_abandoned)
        store = open_store(self._options.cache_config)
        if store is not None:
            show_cache(self._registry, store)
        control = self.control = self._models.open(store)
        self.engine.inference.trace(self._tracer)
        self.engine.inference.recorder = open_recorder(self._options.recording, self._registry)
        try:
            # Probes and metrics are answered while the models load.
            await ports.listen()
            self._parts.on_listening()
            await self._load(control, ports)
            ports.check_models()
            await ports.listen_shared()
        except InferError:
            ports.abort()
            raise
        self.engine.phase.is_starting = False
        self._parts.tune()
        if self._gpu_meter is not None:
            self._gpu_meter.start()
        self._announce(ports)
        check = keep_running_task("the check of the models", self._check_models)
        checking = [asyncio.ensure_future(check), *self._keep_rollouts()]
        status = await self._serve_until_stop(control, ports)
        for task in checking:
            task.cancel()
        if store is not None:
            await store.close()
        return status

    def _announce(self, ports: Ports) -> None:
        """Report to programs and people that the start is over."""
        self._parts.on_serving(self._options, self.engine, ports)
        bound = {endpoint.flag: endpoint.port for endpoint in ports.endpoints()}
        self._parts.ready_file.write(self._options, bound, is_ready=self.engine.views.is_ready())
        self._parts.service_manager.ready()

    async def _serve_until_stop(self, control: RepositoryControl[Served], ports: Ports) -> int:
        await self._parts.stop.wait()
        self._parts.ready_file.remove()
        self._parts.service_manager.stopping()
        return await self._leave(control, ports)

    def _keep_rollouts(self) -> "list[asyncio.Future[None]]":
        """Return the tasks that decide about rollouts, if this process does."""
        count = self._parts.rollout_counts(self.engine)
        if count is None:
            return []
        follower = RolloutFollower(self.engine, self._models.records)
        return [asyncio.ensure_future(each.run()) for each in (RolloutKeeper(self.engine, count), follower)]

    async def _check_models(self) -> None:
        """Check running executions, also while the server drains, and return freed memory to the system."""
        freed = FreedMemory()
        while True:
            await next_tick(_CHECK_S)
            self.engine.in_flight.check(time.monotonic_ns())
            self.engine.live.expire(time.monotonic_ns())
            if freed.is_due(time.monotonic_ns(), time.process_time_ns()):
                await asyncio.to_thread(trim_heap)
                freed.note_returned(time.monotonic_ns())

    # --- start ------------------------------------------------------------------------------------------------------

    async def _load(self, control: RepositoryControl[Served], ports: Ports) -> None:
        """Load the models of the start. Raises InferError if the server cannot continue."""
        loading = asyncio.ensure_future(asyncio.to_thread(control.load_at_start))
        stopping = asyncio.ensure_future(self._parts.stop.wait())
        waited_s = 0.0
        while not (await asyncio.wait({loading, stopping}, timeout=_PROGRESS_S, return_when="FIRST_COMPLETED"))[0]:
            waited_s += _PROGRESS_S
            _log.info("still loading: %s", loading_text(control.catalog.loading(), waited_s))
        if self._parts.stop.is_set:
            # The server was never ready. A load cannot be interrupted, and its thread would keep the process alive.
            control.abandon()
            await asyncio.to_thread(control.unload_all, _STARTUP_UNLOAD_S)
            ports.abort()
            self._parts.end(0)
        stopping.cancel()
        all_loaded = await loading
        log_backends(self._models.backends.modules(), self._options.backend_settings)
        await asyncio.to_thread(log_models, self.engine, self._options.repository)
        if all_loaded or not self._options.repository.exit_on_error:
            return
        rows = self.engine.views.repository_index()
        await asyncio.to_thread(control.unload_all, _STARTUP_UNLOAD_S)
        raise await asyncio.to_thread(
            failed_start, rows, self._options.repository, self._models.backends.names(), gpu_count()
        )

    # --- exit -------------------------------------------------------------------------------------------------------

    async def _leave(self, control: RepositoryControl[Served], ports: Ports) -> int:
        in_time = await drain(
            self.engine,
            ports.services,
            control.unload_all,
            drain_s=self._options.drain_s,
            exit_timeout_s=self._options.exit_timeout_s,
            end_loads=control.abandon,
            end_streams=lambda: ports.live.close("the server shuts down"),
        )
        if self.engine.inference.recorder is not None:
            await asyncio.to_thread(self.engine.inference.recorder.close)
        if not in_time:
            _log.error("Exit timeout expired. Exiting immediately.")
            self._parts.end(1)
        ports.close()
        if self._gpu_meter is not None:
            await asyncio.to_thread(self._gpu_meter.close)
        await asyncio.to_thread(self._tracer.close)
        return 0


def _gpu_meter(options: ServerOptions) -> GpuMeter | None:
    metrics = options.metrics
    return GpuMeter(metrics.interval_ms / 1000) if metrics.allow and metrics.allow_gpu else None


def open_recorder(options: RecordingOptions, registry: Registry) -> "Recorder | None":
    """Return the recorder, whose file is open, and show its metrics; None without the flag.

    Raises InferError if the file cannot be written.
    """
    if not options.path:
        return None
    from naiad.telemetry.traffic import Recorder, RingFile, TrafficWriter  # few servers record

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
