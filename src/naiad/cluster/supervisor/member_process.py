"""A server process in the supervisor: a child process, a channel to it, and a socket to pass connections.

The first processes are forked from the supervisor before it has an event loop or threads of its own: they share the
memory of all modules, and no module is imported twice. Replacements of dead processes run a new interpreter, because
forking would then copy locks that other threads hold.
"""

import asyncio
import contextlib
import gc
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from naiad.cluster.connection_passing import ConnectionSender, socket_pair
from naiad.cluster.messages import Welcome
from naiad.cluster.process_channel import ClusterChannel, send_first

_EXIT_TIMEOUT_S = 5.0
"""Time for a process to exit after it has closed its channel."""
_WAIT_POLL_S = 0.01

# Ctrl-C in a terminal reaches every process, even before it has installed its handlers. The modules come from the
# supervisor's path.
_PROGRAM = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.path[:] = {path!r}; "
    "from naiad.cluster.member.process import main; main({control}, {connection_passing})"
)


class ForkedProcess:
    """A forked child. It may be killed while another thread waits for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        # The number of a reaped process may belong to another process.
        self._lock = threading.Lock()

    def kill(self) -> None:
        """Kill it at once; no effect when it has exited."""
        with self._lock:
            if self.returncode is None:
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, negative for a signal. Raises subprocess.TimeoutExpired."""
        deadline_s = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if self.returncode is None:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                    self.returncode = os.waitstatus_to_exitcode(status) if pid else None
                if self.returncode is not None:
                    return self.returncode
            if time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired("naiad", timeout or 0.0)
            time.sleep(_WAIT_POLL_S)


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """A process that waits for its first message, and the supervisor's ends of its socket pairs."""

    process: "ForkedProcess | subprocess.Popen[bytes]"
    control: socket.socket
    connection_passing: socket.socket

    def close(self) -> None:
        """Close the sockets: the process exits if it has not got its first message."""
        self.control.close()
        self.connection_passing.close()


def fork_members(count: int) -> list[StartedProcess]:
    """Fork `count` processes; call it before the process has threads of its own. Raises OSError.

    Returns in the supervisor only: a child exits with SystemExit.
    """
    from naiad.cluster.member.process import main

    # A collection would write to the memory that the processes share.
    gc.freeze()
    started: list[StartedProcess] = []
    for _ in range(count):
        try:
            control, their_control = socket.socketpair()
            connection_passing, their_connection_passing = socket_pair()
            pid = os.fork()
        except OSError:
            end_unused(started)
            raise
        if not pid:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # A child without the supervisor's ends sees the end of the supervisor as the end of its connections.
            for other in (*started, StartedProcess(ForkedProcess(pid), control, connection_passing)):
                other.close()
            main(their_control.detach(), their_connection_passing.detach())
        started.append(StartedProcess(ForkedProcess(pid), control, connection_passing))
        their_control.close()
        their_connection_passing.close()
    return started


def end_unused(started: Sequence[StartedProcess]) -> None:
    """End processes that never got their first message."""
    for each in started:
        each.close()
        each.process.kill()
        each.process.wait()


class MemberListener(Protocol):
    """Receives the messages of server processes."""

    def on_message(self, member: "MemberProcess", message: object) -> None:
        """Handle a message of a process."""

    async def on_query(self, member: "MemberProcess", query: object) -> object:
        """Return the answer to a query of a process."""

    def on_lost(self, member: "MemberProcess") -> None:
        """Handle the end of a process."""


class MemberProcess:
    """One process. Implements `channel.Peer`."""

    def __init__(self, welcome: Welcome, listener: MemberListener, started: StartedProcess | None = None) -> None:
        """Start the process, or take one that has started. Raises OSError."""
        self.slot = welcome.slot
        self.is_alive = True
        """False once the channel has closed."""
        self.is_serving = False
        self.has_served = False
        self.failure = ""
        """Its own message about a failed start."""
        self._listener = listener
        started = started or _spawn(welcome.slot)
        self._process = started.process
        self.connections = ConnectionSender(started.connection_passing)
        """The socket for its connections."""
        try:
            send_first(started.control, welcome)
        except OSError:
            end_unused([started])
            raise
        self._control = started.control
        self._channel = ClusterChannel(self)

    async def connect(self) -> None:
        """Open the channel."""
        await self._channel.connect(self._control)

    @property
    def name(self) -> str:
        """`process 1 (pid 123)`; numbers begin with 1."""
        return f"process {self.slot + 1} (pid {self._process.pid})"

    def send(self, message: object) -> None:
        """Send a message."""
        self._channel.send(message)

    async def ask(self, query: object, timeout_s: float | None = None) -> object:
        """Return the answer to a query. Raises ChannelError."""
        return await self._channel.ask(query, timeout_s)

    def kill(self) -> None:
        """Kill the process at once; no effect when it has exited."""
        if self._process.returncode is None:
            self._process.kill()

    async def wait(self) -> None:
        """Wait for the exit of a process with a closed channel, for a limited time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, _EXIT_TIMEOUT_S)
        self.kill()
        await asyncio.to_thread(self._process.wait)

    @property
    def exit_status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._process.returncode

    @property
    def cause(self) -> str:
        """The reason of the exit."""
        status = self._process.returncode
        if self.failure:
            return self.failure
        if status is not None and status < 0:
            return f"killed by {_signal_name(-status)}"
        return f"exited with status {status}"

    # --- channel.Peer -----------------------------------------------------------------------------------------------

    def on_message(self, message: object) -> None:
        """Pass a message on."""
        self._listener.on_message(self, message)

    async def on_query(self, query: object) -> object:
        """Pass a query on."""
        return await self._listener.on_query(self, query)

    def on_lost(self) -> None:
        """Pass the end on."""
        self.is_alive = self.is_serving = False
        self._listener.on_lost(self)


def _spawn(slot: int) -> StartedProcess:
    """Start a process with an interpreter of its own. Raises OSError."""
    control, their_control = socket.socketpair()
    connection_passing, their_connection_passing = socket_pair()
    with their_control, their_connection_passing:
        program = _PROGRAM.format(
            path=sys.path, control=their_control.fileno(), connection_passing=their_connection_passing.fileno()
        )
        command = [sys.executable, "-c", program, "naiad", "serve", f"process={slot + 1}"]
        try:
            process = subprocess.Popen(command, pass_fds=(their_control.fileno(), their_connection_passing.fileno()))
        except OSError:
            control.close()
            connection_passing.close()
            raise
    return StartedProcess(process, control, connection_passing)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
