"""The supervisor: opens the ports, starts the server processes, replaces those that die, and ends all of them.

It serves no requests itself. It accepts connections and passes each to the process with the fewest connections, so
that the load is even for any number of connections; it sends queries to all processes and merges their answers; and
it broadcasts control calls.
"""

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence

from naiad.backend.cores import resolve_policies
from naiad.cluster.connection_passing import Acceptor, Balance
from naiad.cluster.messages import BroadcastRequest, Failed, Finish, Listening, ModelsLoaded, StopBeingReady, Welcome
from naiad.cluster.supervisor.control_broadcast import ControlBroadcast
from naiad.cluster.supervisor.member_process import MemberProcess, StartedProcess, end_unused, fork_members
from naiad.cluster.supervisor.restarts import Supervision, share_of
from naiad.cluster.supervisor.scatter_gather import ScatterGather
from naiad.core.errors import internal
from naiad.files.temporary import OwnDirectory
from naiad.options.options import ServerOptions
from naiad.server.ports.listener import HANDSHAKES_S, Listener, addresses, bind, has_tls, refused
from naiad.server.process.process_environment import ServiceManager, StopSignal, run_to_status
from naiad.server.reporting.ready_file import ReadyFile
from naiad.server.reporting.report import log_ready
from naiad.telemetry.last_resort import begin_task

_log = logging.getLogger(__name__)

_EXIT_GRACE_S = 5.0
"""Added to the exit timeout of the processes."""
_MAX_DIRECTORY = 92
_NOTE_SHARE = 100
"""Noting counters takes at most this fraction (1/n) of the time of the processes."""


def serve(options: ServerOptions, *, is_forking: bool = True) -> int:
    """Run a server of several processes until a signal ends it and return the exit status.

    Without `is_forking` each process has an interpreter of its own: this one has threads, of which a fork has none.
    """
    try:
        started = fork_members(options.process_count) if is_forking else []
    except OSError as error:
        print(f"naiad serve: --processes {options.process_count}: {error.strerror}", file=sys.stderr)
        return 1
    try:
        return run_to_status(options, lambda: Supervisor(options, started, ServiceManager(os.environ)).run())
    finally:
        end_unused(started)


class Supervisor:
    """The parent of all server processes. Implements `member_process.Listener`."""

    def __init__(
        self,
        options: ServerOptions,
        started: list[StartedProcess] | None = None,
        service_manager: ServiceManager | None = None,
    ) -> None:
        """`started` are processes to use, removed from the list; further ones are started."""
        self._service_manager = service_manager or ServiceManager({})
        self._ready_file = ReadyFile(options.ready_file)
        self._started = [] if started is None else started
        resolve_policies(options.host_policies)  # raises once, not in every process
        self._options = options
        self._addresses = list(addresses(options).values())
        self._count = options.process_count
        self._supervision = Supervision(self._count)
        self._balance = Balance(len(self._addresses))
        self._members: dict[int, MemberProcess] = {}
        self._starts = [0] * self._count
        self._started_ms = time.time_ns() // 1_000_000
        self._ended: list[MemberProcess] = []
        """Processes that have ended before the server was open, or while it exits."""
        self._scatter_gather = ScatterGather(self._serving, self._supervision)
        self._control_broadcast = ControlBroadcast(self._serving)
        self._acceptors: dict[str, Acceptor] = {}
        self._stop = StopSignal(self._exit_now, log_format=options.log.format)
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_leaving = False
        self._directory = ""
        self._bound: Mapping[str, int] = {}
        """The bound ports by the prefixes of their flags, in the order of the addresses."""
        self._loaded: dict[int, ModelsLoaded] = {}
        """The first report of each slot."""

    async def run(self) -> int:
        """Start, serve until a signal, drain; return the exit status. Raises InferError when it cannot start."""
        self._stop.install(asyncio.get_running_loop())
        self._service_manager.watch(asyncio.get_running_loop())
        held = _make_directory()
        self._directory = str(held.path)
        try:
            return await self._run()
        finally:
            held.remove()

    async def _run(self) -> int:
        listeners = [bind(address) for address in self._addresses]
        self._bound = {listener.address.flag: listener.port for listener in listeners}
        for port, (address, listener) in enumerate(zip(self._addresses, listeners, strict=True)):
            self._acceptors[address.flag] = Acceptor(listener, port, self._hand_over)
        stopping = self._spawn(self._wait_for_stop())
        noting = None
        try:
            # Probes are answered while the models load. The kernel divides the connections of a shared port among
            # servers, each of which must be ready.
            self._open([listener for listener in listeners if not listener.address.reuse_port])
            if not await self._start_all():
                return 0 if self._stop.is_set else 1
            self._open([listener for listener in listeners if listener.address.reuse_port])
            is_ready = all(loaded.is_ready for loaded in self._loaded.values())
            log_ready(self._options, self._bound, is_ready=is_ready, model=self._loaded[0].model)
            self._ready_file.write(self._options, self._bound, is_ready=is_ready)
            self._service_manager.ready()
            noting = self._spawn(self._note_regularly())
            await self._supervise(lambda: False)
            return await self._leave()
        finally:
            for task in (stopping, noting):
                if task is not None:
                    task.cancel()
            for acceptor in self._acceptors.values():
                acceptor.stop()
            self._is_leaving = True
            self._kill_all()
            # No process may be left behind, and the closed loop no longer notices their exits.
            await self._wait_for_ends(_EXIT_GRACE_S)

    def _spawn(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        return begin_task("a task of the supervisor", work, self._tasks)

    def _serving(self) -> Sequence[MemberProcess]:
        return [member for member in self._members.values() if member.is_serving]

    # --- start ------------------------------------------------------------------------------------------------------

    async def _start_all(self) -> bool:
        """Start every process; return whether all serve.

        Raises InferError for a failed start that no process has logged.
        """
        _log.info("starting %d server processes", self._count)
        await self._supervise(lambda: self._supervision.is_open)
        if self._supervision.is_open or self._stop.is_set:
            return self._supervision.is_open
        # The first process logs its errors, the other processes log nothing: a model that one process cannot load,
        # the first most likely cannot load either.
        # It logs after its channel has closed, hence the wait for its exit.
        first = next((member for member in (*self._members.values(), *self._ended) if member.slot == 0), None)
        while first is not None and first.exit_status is None and not first.is_serving and not self._stop.is_set:
            await self._wait_for_news()
        if first is not None and first.failure:
            return False
        raise internal(self._supervision.verdict)

    async def _start(self, slot: int) -> None:
        is_first_time = not self._supervision.is_open
        self._starts[slot] += 1
        loud = logging.NOTSET if slot == 0 else logging.CRITICAL
        welcome = Welcome(
            options=share_of(self._options, slot, self._starts[slot]),
            slot=slot,
            process_count=self._count,
            ports=self._bound,
            directory=self._directory,
            is_successor=self._starts[slot] > 1,
            quiet_below=loud if is_first_time else logging.INFO,
            started_ms=self._started_ms,
        )
        self._supervision.started(slot)
        try:
            member = MemberProcess(welcome, self, self._started.pop(0) if self._started else None)
        except OSError as error:
            self._died(slot, f"it could not be started: {error.strerror}")
            return
        self._members[slot] = member
        if not is_first_time:
            self._scatter_gather.restart_count += 1
        await member.connect()

    def _open(self, listeners: Sequence[Listener]) -> None:
        """Begin to accept and log the addresses. Raises InferError when another process already listens."""
        for listener in listeners:
            address = listener.address
            try:
                self._acceptors[address.flag].start()
            except OSError as error:
                raise refused(address, error) from error
            tls = " with TLS" if has_tls(self._options, address.flag) else ""
            for service in address.services:
                _log.info("Started %s at %s%s for %d processes", service, listener.name, tls, self._count)

    def _hand_over(self, port: int, connection: socket.socket) -> bool:
        for slot in self._balance.ranked(port):
            if self._members[slot].connections.pass_connection(port, connection):
                self._balance.passed(slot, port)
                return True
        return False

    # --- watch ------------------------------------------------------------------------------------------------------

    async def _supervise(self, is_over: Callable[[], bool]) -> None:
        """Start due processes until `is_over`, a signal, or a failure that makes a restart pointless."""
        while not (is_over() or self._stop.is_set or self._supervision.verdict):
            for slot in self._supervision.due(time.monotonic_ns()):
                await self._start(slot)
            await self._wait_for_news(self._supervision.wake_ns())

    async def _wait_for_news(self, until_ns: int = 0) -> None:
        delay_s = max(0.0, (until_ns - time.monotonic_ns()) / 1e9) if until_ns else None
        try:
            async with asyncio.timeout(delay_s):
                await self._news.wait()
        except TimeoutError:
            return
        self._news.clear()

    async def _wait_for_stop(self) -> None:
        await self._stop.wait()
        self._news.set()

    async def _note_regularly(self) -> None:
        interval_s = self._options.metrics.interval_ms / 1000
        while True:
            await asyncio.sleep(interval_s)
            began_s = time.monotonic()
            await self._scatter_gather.note_all()
            interval_s = max(self._options.metrics.interval_ms / 1000, (time.monotonic() - began_s) * _NOTE_SHARE)

    def _died(self, slot: int, cause: str) -> None:
        self._supervision.died(slot, time.monotonic_ns(), cause)
        self._news.set()

    # --- member_process.Listener ------------------------------------------------------------------------------------

    def on_message(self, member: MemberProcess, message: object) -> None:
        """Handle a message of a process."""
        if isinstance(message, Failed):
            member.failure = message.reason
        elif isinstance(message, Listening):
            self._pass_connections(member)
        elif isinstance(message, ModelsLoaded):
            self._loaded.setdefault(member.slot, message)
            self._spawn(self._catch_up(member))

    async def on_query(self, member: MemberProcess, query: object) -> object:
        """Return the answer to a query of a process."""
        if isinstance(query, BroadcastRequest):
            return await self._control_broadcast.broadcast(query)
        return await self._scatter_gather.answer(query)  # type: ignore[arg-type]  # nothing else is asked

    def on_lost(self, member: MemberProcess) -> None:
        """Remove a process and restart it if its slot is due."""
        self._balance.remove(member.slot)
        self._scatter_gather.exited_counters.retire(member.slot)
        self._scatter_gather.live_totals.retire(member.slot)
        for port, connection in member.connections.close():
            self._acceptors[self._addresses[port].flag].take_back(connection)
        self._spawn(self._reap(member))

    def _on_notice(self, member: MemberProcess, closed: Sequence[int]) -> None:
        self._balance.closed(member.slot, closed)
        # There is room again for connections that every process had rejected.
        for acceptor in self._acceptors.values():
            acceptor.resume()

    def _pass_connections(self, member: MemberProcess) -> None:
        self._balance.add(member.slot)
        member.connections.start(lambda counts: self._on_notice(member, counts))
        for acceptor in self._acceptors.values():
            acceptor.resume()

    async def _catch_up(self, member: MemberProcess) -> None:
        await self._control_broadcast.catch_up(member)
        if member.is_alive:
            was_open = self._supervision.is_open
            member.is_serving = member.has_served = True
            if member.slot not in self._balance:
                self._pass_connections(member)
            self._supervision.serves(member.slot, time.monotonic_ns())
            if was_open:
                _log.info("%s serves", member.name)
            self._news.set()

    async def _reap(self, member: MemberProcess) -> None:
        await member.wait()
        if self._members.get(member.slot) is member:
            del self._members[member.slot]
        if self._is_leaving:
            self._ended.append(member)
            self._news.set()
            return
        is_replaced = self._supervision.is_open
        if not is_replaced:
            self._ended.append(member)
        self._died(member.slot, member.cause)
        if is_replaced:
            _log.error(
                "%s has ended: %s; %s; %d of %d processes serve",
                member.name,
                member.cause,
                self._supervision.outlook(member.slot),
                len(self._serving()),
                self._count,
            )

    # --- exit -------------------------------------------------------------------------------------------------------

    async def _leave(self) -> int:
        """Drain all processes; return 0 if all of them finished in time and no process was missing."""
        self._ready_file.remove()
        self._service_manager.stopping()
        verdict = self._supervision.verdict
        if verdict:
            _log.error("%s. Exiting.", verdict)
        self._is_leaving = True
        self._ended.clear()
        for member in self._members.values():
            member.send(StopBeingReady())
        if self._options.drain_s and not verdict:
            _log.info("no longer ready; serving for another %g s", self._options.drain_s)
            await asyncio.sleep(self._options.drain_s)
        acceptors = [acceptor for flag, acceptor in self._acceptors.items() if flag != "metrics"]
        for acceptor in acceptors:
            acceptor.block_new_connections()
        await asyncio.sleep(HANDSHAKES_S)
        for acceptor in acceptors:
            acceptor.finish()
        for member in list(self._members.values()):
            if member.is_serving:
                member.send(Finish())
            else:
                member.kill()
        in_time = await self._wait_for_ends(self._options.exit_timeout_s + _EXIT_GRACE_S)
        if not in_time:
            _log.error("Exit timeout expired. Exiting immediately.")
        clean = in_time and not verdict and all(not member.exit_status for member in self._ended if member.has_served)
        return 0 if clean else 1

    async def _wait_for_ends(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while self._members:
                    await self._wait_for_news()
        except TimeoutError:
            return False
        return True

    def _kill_all(self) -> None:
        for member in self._members.values():
            member.kill()

    def _exit_now(self, status: int) -> None:
        self._kill_all()
        os._exit(status)


def _make_directory() -> OwnDirectory:
    """Make the directory of the sockets between processes. Raises InferError."""
    try:
        directory = OwnDirectory("sockets")
        if len(str(directory.path)) > _MAX_DIRECTORY:  # the path of a socket must fit into 108 bytes
            directory.remove()
            directory = OwnDirectory("sockets", "/tmp")
    except OSError as error:
        raise internal(
            f"no directory for the sockets between processes can be made: {error.strerror}; name a writable one in "
            "the environment variable TMPDIR"
        ) from error
    return directory
