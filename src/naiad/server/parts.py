"""What differs between servers: one in its own process, one inside a program, one of several processes."""

import asyncio
import gc
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from naiad.backend.api import Backend
from naiad.config.rollout.guard import RolloutCounts
from naiad.core.limits.request_limits import RequestBudget
from naiad.engine.engine import Engine
from naiad.engine.processes import Processes
from naiad.engine.serving.served import Served
from naiad.options.options import ServerOptions
from naiad.repository.model_plan import ModelPlan
from naiad.server.ports.ports import Ports
from naiad.server.process.process_environment import ServiceManager, StopSignal
from naiad.server.reporting.ready_file import ReadyFile
from naiad.server.reporting.report import first_model, log_ready
from naiad.server.rollout_guards import CountRollouts
from naiad.telemetry.logs import log

MakePorts = Callable[[ServerOptions, Engine, asyncio.AbstractEventLoop, RequestBudget], Ports]

_COLLECTOR_THRESHOLDS = (700, 10, 100)
"""Full collections run after ten times as many new objects as by default, about 700,000.

One blocks the event loop for about 10 us per open connection. Connections and requests are freed without it.
"""


def announce(options: ServerOptions, engine: Engine, ports: Ports) -> None:
    """Log where the server can be reached."""
    bound = {endpoint.flag: endpoint.port for endpoint in ports.endpoints()}
    log_ready(options, bound, is_ready=engine.views.is_ready(), model=first_model(engine))


def tune_collector() -> None:
    """Tune the interpreter for serving: existing objects stay, so the collector need not scan them again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)
    gc.enable()


def end_process(status: int) -> None:
    """End the process although its threads are still working; the log is written first."""
    log.shut_down()
    os._exit(status)


def own_counts(engine: Engine) -> CountRollouts:
    """Return what counts the rollouts of this process."""

    async def count() -> Mapping[str, RolloutCounts]:
        return engine.rollout_commands.counts()

    return count


@dataclass(frozen=True, slots=True)
class ServerParts:
    """The parts of a server; the defaults make a server that has the process for itself."""

    stop: StopSignal
    """Says when to exit."""
    service_manager: ServiceManager = field(default_factory=lambda: ServiceManager({}))
    ready_file: ReadyFile = field(default_factory=lambda: ReadyFile(""))
    """The file of `--ready-file`."""
    backends: Sequence[Backend] = ()
    """Objects for backends that no package has, see `BackendRegistry`."""
    processes: Processes = field(default_factory=Processes)
    """The processes of the server."""
    make_ports: MakePorts = Ports
    wrap_version: Callable[[ModelPlan, Served], Served] | None = None
    """Returns what serves in place of a loaded version."""
    on_listening: Callable[[], object] = lambda: None
    """Called once, when the ports are open, before the models load."""
    on_serving: Callable[[ServerOptions, Engine, Ports], object] = announce
    """Called once, when the start is over."""
    removes_abandoned: bool = True
    """Whether this process removes what killed processes have left: of several that start at once, one does."""
    rollout_counts: Callable[[Engine], CountRollouts | None] = own_counts
    """Returns what counts the rollouts, on which this process decides; None if another process does."""
    tune: Callable[[], object] = tune_collector
    """Called once, when the models are loaded."""
    end: Callable[[int], object] = end_process
    """Ends the server with an exit status although its threads are still working."""
