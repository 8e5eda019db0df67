"""A server process: it gets its connections and its control calls from the supervisor."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from naiad.backend.cores import share_cores
from naiad.cluster.connection_passing import ConnectionReceiver
from naiad.cluster.member.all_processes import AllProcesses, OwnAnswers
from naiad.cluster.member.passed_connections import PassedConnections
from naiad.cluster.member.peers import Peers, SequenceModel
from naiad.cluster.member.sharing import ClusterOperations
from naiad.cluster.messages import (
    AskActivity,
    AskIndex,
    AskLive,
    AskMetrics,
    AskRollouts,
    AskStatistics,
    Failed,
    Finish,
    Listening,
    ModelControl,
    ModelsLoaded,
    OperationCall,
    RolloutControl,
    StopBeingReady,
    Welcome,
)
from naiad.cluster.process_channel import ClusterChannel, receive_first
from naiad.config.remote_settings import has_several_servers
from naiad.config.rollout.guard import RolloutCounts
from naiad.core.errors import InferError
from naiad.core.limits.request_limits import RequestBudget
from naiad.core.model import UNLOADED, ModelState
from naiad.engine.engine import Engine
from naiad.engine.serving.served import Served
from naiad.frontend.long_work.slice_runner import in_pieces
from naiad.options.options import ServerOptions
from naiad.repository.model_plan import ModelPlan
from naiad.server.app import Server
from naiad.server.parts import ServerParts
from naiad.server.ports.endpoint import Connections
from naiad.server.ports.ports import Ports
from naiad.server.process.process_environment import SIGNALS, StopSignal, run_to_status
from naiad.server.reporting.report import first_model
from naiad.server.rollout_guards import CountRollouts
from naiad.telemetry.last_resort import begin_task
from naiad.telemetry.logs import log

_log = logging.getLogger(__name__)

_REPORT_RETRY_S = 0.02
_SETTLE_S = 1.0
"""Time for passed connections to start before the rest is drained."""


def main(control_fd: int, connection_passing_fd: int) -> NoReturn:
    """Run a server process; the two descriptors are its ends of the supervisor's socket pairs."""
    # Programs that models start must not inherit them.
    for descriptor in (control_fd, connection_passing_fd):
        os.set_inheritable(descriptor, False)
    control = socket.socket(fileno=control_fd)
    try:
        welcome = receive_first(control)
    except EOFError:
        sys.exit(1)
    assert isinstance(welcome, Welcome)
    _show_name(f"naiad:{welcome.slot + 1}")
    share_cores(welcome.process_count)
    logging.disable(welcome.quiet_below)
    member = Member(welcome, control, socket.socket(fileno=connection_passing_fd))
    status = run_to_status(welcome.options, member.run)
    # The interpreter resets handlers at exit, and a late signal would look like a crash. Ignored signals stay
    # ignored, and no program is started any more that could inherit that.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(status)


def _show_name(name: str) -> None:
    """Set the name of the process in lists of processes (`ps -e`, `top`), at most 15 characters."""
    with contextlib.suppress(OSError):  # Linux only
        Path("/proc/self/comm").write_text(name)


class SupervisedStop(StopSignal):
    """Stops when the supervisor says so. Signals are for the supervisor: a terminal sends them to every process."""

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ignore signals; programs that models start handle them as usual."""
        # Not the loop's handlers, which end with the loop; not SIG_IGN, which programs would inherit.
        for number in SIGNALS:
            signal.signal(number, lambda number, frame: None)

    def set(self) -> None:
        """Stop."""
        self._event.set()


class Member:
    """One of several server processes, with its side of the channel. Implements `channel.Peer`."""

    def __init__(self, welcome: Welcome, control: socket.socket, connection_passing: socket.socket) -> None:
        self._supervised = SupervisedStop()
        self._processes = AllProcesses()
        self._server = Server(
            welcome.options,
            ServerParts(
                self._supervised,
                processes=self._processes,
                make_ports=self._make_ports,
                wrap_version=self._share_sequences,
                on_listening=self._listens,
                on_serving=self._serves,
                # The log of the first process says it; the other logs are silent until all serve.
                removes_abandoned=welcome.slot == 0 or welcome.is_successor,
                rollout_counts=self._rollout_counts,
            ),
        )
        self._engine = self._server.engine
        self._engine.phase.started_ms = welcome.started_ms or self._engine.phase.started_ms
        self._own = OwnAnswers(self._engine)
        self._welcome = welcome
        self._control = control
        self._channel = ClusterChannel(self)
        self._operations = ClusterOperations(self._engine, self._processes, self._channel.ask)
        self._ports = list(welcome.ports)
        self._services: dict[int, PassedConnections] = {}
        self._receiver = ConnectionReceiver(connection_passing, len(self._ports), self._adopt)
        self._is_reporting = False
        self._closed = [0] * len(self._ports)
        """Closed connections that are not reported yet, by port."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._peers = Peers(self._engine, Path(welcome.directory), welcome.slot)
        self._processes.sequences_elsewhere = self._peers.live_sequence_count

    async def run(self) -> int:
        """Serve until the supervisor stops it and return the exit status."""
        await self._channel.connect(self._control)
        try:
            status = await self._server.run()
            await self._peers.close()
            return status
        except InferError as error:
            self._channel.send(Failed(f"{error.message}{self._failures()}"))
            raise
        finally:
            self._channel.close()

    def _failures(self) -> str:
        reasons = [
            f"model '{row.name}'{row.version and ' version '}{row.version}: {row.reason}"
            for row in self._engine.views.repository_index()
            if row.state is ModelState.UNAVAILABLE and row.reason != UNLOADED
        ]
        return f": {'; '.join(reasons)}" if reasons else ""

    # --- the parts in which it differs from a server of one process -------------------------------------------------

    def _make_ports(
        self, options: ServerOptions, engine: Engine, loop: asyncio.AbstractEventLoop, budget: RequestBudget
    ) -> Ports:
        operations = self._operations
        shared = (operations.answer_metrics, operations.live_answer)
        ports = Ports(options, engine, loop, budget, operations, self._service, *shared)
        operations.control_calls = ports.control_calls
        return ports

    def _share_sequences(self, plan: ModelPlan, served: Served) -> Served:
        """Route the sequences of a model to their processes: on several other servers, one knows which has it."""
        if not (served.config.HasField("sequence_batching") or has_several_servers(served.config)):
            return served
        return SequenceModel(plan.entry.key, served, self._welcome, self._peers)

    def _listens(self) -> None:
        # The other processes serve meanwhile: clients need not wait for the models of a replacement.
        if not self._welcome.is_successor:
            self._accept()
            self._channel.send(Listening())

    def _serves(self, options: ServerOptions, engine: Engine, ports: Ports) -> None:
        logging.disable(logging.NOTSET)
        self._operations.connect()
        if self._welcome.is_successor:
            self._accept()
        self._channel.send(ModelsLoaded(engine.views.is_ready(), first_model(engine)))

    def _rollout_counts(self, engine: Engine) -> CountRollouts | None:
        # One process decides for all of them, on the counts of all of them.
        return None if self._welcome.slot else self._count_rollouts

    async def _count_rollouts(self) -> Mapping[str, RolloutCounts]:
        return await self._operations.merged_answer(AskRollouts())  # type: ignore[return-value]  # the answer to it

    def _accept(self) -> None:
        self._peers.listen()
        self._receiver.start()

    # --- passed connections -----------------------------------------------------------------------------------------

    def _service(self, flag: str, connections: Connections, tls: ssl.SSLContext | None) -> PassedConnections:
        service = PassedConnections(flag, self._welcome.ports[flag], connections, tls, self._on_close)
        self._services[self._ports.index(flag)] = service
        return service

    def _adopt(self, port: int, connection: socket.socket) -> None:
        self._services[port].adopt(connection)

    def _on_close(self) -> None:
        if not self._is_reporting:
            # Connections often close together; one message reports all that close in this turn of the loop.
            self._is_reporting = True
            asyncio.get_running_loop().call_soon(self._report_closed)

    def _report_closed(self) -> None:
        self._is_reporting = False
        for port, service in self._services.items():
            self._closed[port] += service.take_closed_count()
        if not any(self._closed):
            return
        if self._receiver.report_closed(self._closed):
            self._closed = [0] * len(self._ports)
        else:  # The supervisor has not read earlier notices; perhaps no further connection closes.
            asyncio.get_running_loop().call_later(_REPORT_RETRY_S, self._on_close)

    # --- Peer -------------------------------------------------------------------------------------------------------

    def on_message(self, message: object) -> None:
        """Handle a message of the supervisor."""
        if isinstance(message, StopBeingReady):
            self._engine.phase.is_draining = True
        elif isinstance(message, Finish):
            begin_task("the end of this process", self._finish(), self._tasks)

    async def _finish(self) -> None:
        self._engine.phase.is_draining = True
        # Metrics stay readable until the end, so their connections may still arrive; all other connections have
        # arrived.
        self._receiver.catch_up()
        for service in self._services.values():
            await service.settle(_SETTLE_S)
        self._supervised.set()

    async def on_query(self, query: object) -> object:
        """Answer for this process alone, or execute a control call."""
        if isinstance(query, OperationCall | ModelControl | RolloutControl):
            return await self._operations.execute_here(query)
        if isinstance(query, AskActivity):
            return self._own.activity()
        if isinstance(query, AskIndex):
            return await asyncio.to_thread(self._own.answer, query)  # it reads the repository
        if isinstance(query, (AskStatistics, AskMetrics, AskLive)):
            return await in_pieces(self._own.answer_in_slices(query))
        return self._own.answer(query)  # type: ignore[arg-type]  # nothing else is asked

    def on_lost(self) -> None:
        """Exit at once: without the supervisor nothing manages this process."""
        _log.error("the supervisor has exited; exiting")
        shutil.rmtree(self._welcome.directory, ignore_errors=True)
        log.shut_down()
        os._exit(1)
