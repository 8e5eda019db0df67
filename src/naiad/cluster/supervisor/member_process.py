"""A member as the supervisor sees it: a child process, a channel to it, a socket to hand it connections.

The first members are forked from the supervisor before it has an event loop or threads of its own: they share the
memory of all modules, and none is imported twice. Those that replace a dead one are started anew, because by then
forking would copy locks that other threads hold.
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

from naiad.cluster.channel import Channel, send_first
from naiad.cluster.connection_passing import ConnectionSender, socket_pair
from naiad.cluster.messages import Welcome

_EXIT_TIMEOUT_S = 5.0
"""How long a process that has closed its channel may take to end."""
_WAIT_POLL_S = 0.01

# Ctrl-C in a terminal reaches every process, also before it has learned to leave it to the supervisor. The modules
# are those of the supervisor, wherever it has them from.
_PROGRAM = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.path[:] = {path!r}; "
    "from naiad.cluster.member.process import main; main({control}, {connection_passing})"
)


class Process(Protocol):
    """What a member needs of its process; `subprocess.Popen` has it."""

    pid: int
    returncode: int | None

    def kill(self) -> None:
        """End it at once."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, negative for a signal. Raises subprocess.TimeoutExpired."""


class ForkedProcess:
    """A child that was forked. It may be killed while another thread waits for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        # The number of a process that has been waited for may be that of another one.
        self._lock = threading.Lock()

    def kill(self) -> None:
        """End it at once; harmless when it has ended."""
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

    process: Process
    control: socket.socket
    connection_passing: socket.socket

    def close(self) -> None:
        """Close the sockets: the process ends when it has got no message before."""
        self.control.close()
        self.connection_passing.close()


def fork_members(count: int) -> list[StartedProcess]:
    """Fork so many members; call it before the process has threads of its own. Raises OSError.

    Returns in the supervisor only: a member exits with SystemExit.
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
            # The end of the supervisor must be the end of its connections.
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


class Listener(Protocol):
    """Who learns what a member says."""

    def told(self, member: "MemberProcess", message: object) -> None:
        """Take a message of a member."""

    async def asked(self, member: "MemberProcess", question: object) -> object:
        """Return the answer to a member's question."""

    def lost(self, member: "MemberProcess") -> None:
        """A member has ended, or is about to."""


class MemberProcess:
    """One process. Implements `channel.Peer`."""

    def __init__(self, welcome: Welcome, listener: Listener, started: StartedProcess | None = None) -> None:
        """Start the process, or take one that has started. Raises OSError."""
        self.slot = welcome.slot
        self.is_alive = True
        """False as soon as the channel has closed."""
        self.is_serving = False
        self.has_served = False
        self.failure = ""
        """Why it cannot start, in its own words."""
        self._listener = listener
        started = started or _spawn(welcome.slot)
        self._process = started.process
        self.connections = ConnectionSender(started.connection_passing)
        """Where its connections go."""
        try:
            send_first(started.control, welcome)
        except OSError:
            end_unused([started])
            raise
        self._control = started.control
        self._channel: Channel | None = None

    async def connect(self) -> None:
        """Open the channel."""
        self._channel = await Channel.open(self._control, self)

    @property
    def name(self) -> str:
        """`process 1 (pid 123)`; numbers begin with 1."""
        return f"process {self.slot + 1} (pid {self._process.pid})"

    def tell(self, message: object) -> None:
        """Send a message."""
        if self._channel is not None:
            self._channel.tell(message)

    async def ask(self, question: object, timeout_s: float | None = None) -> object:
        """Return the answer to a question. Raises ChannelError."""
        assert self._channel is not None
        return await self._channel.ask(question, timeout_s)

    def kill(self) -> None:
        """End the process at once; harmless when it has ended."""
        if self._process.returncode is None:
            self._process.kill()

    async def wait(self) -> None:
        """Wait for the end of a process whose channel has closed; it has little time."""
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
        """Why the process has ended."""
        status = self._process.returncode
        if self.failure:
            return self.failure
        if status is not None and status < 0:
            return f"killed by {_signal_name(-status)}"
        return f"exited with status {status}"

    # --- channel.Peer -----------------------------------------------------------------------------------------------

    def told(self, message: object) -> None:
        """Pass a message on."""
        self._listener.told(self, message)

    async def asked(self, question: object) -> object:
        """Pass a question on."""
        return await self._listener.asked(self, question)

    def lost(self) -> None:
        """Pass the end on."""
        self.is_alive = self.is_serving = False
        self._listener.lost(self)


def _spawn(slot: int) -> StartedProcess:
    """Start a member with an interpreter of its own. Raises OSError."""
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
