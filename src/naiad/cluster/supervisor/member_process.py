"""A member as the supervisor sees it: a child process, a channel to it, a socket to hand it connections."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from typing import Protocol

from naiad.cluster.channel import Channel, send_first
from naiad.cluster.connection_passing import ConnectionSender, socket_pair
from naiad.cluster.messages import Welcome

_EXIT_TIMEOUT_S = 5.0
"""How long a process that has closed its channel may take to end."""

# Ctrl-C in a terminal reaches every process, also before it has learned to leave it to the supervisor. The modules
# are those of the supervisor, wherever it has them from.
_PROGRAM = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.path[:] = {path!r}; "
    "from naiad.cluster.member.process import main; main({control}, {handover})"
)


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

    def __init__(self, welcome: Welcome, listener: Listener) -> None:
        """Start the process. Raises OSError."""
        self.slot = welcome.slot
        self.is_alive = True
        """False as soon as the channel has closed."""
        self.is_serving = False
        self.has_served = False
        self.failure = ""
        """Why it cannot start, in its own words."""
        self._listener = listener
        control, their_control = socket.socketpair()
        connection_passing, their_connection_passing = socket_pair()
        self.connections = ConnectionSender(connection_passing)
        """Where its connections go."""
        try:
            self._process = _spawn(welcome.slot, their_control, their_connection_passing)
            send_first(control, welcome)
        except OSError:
            control.close()
            connection_passing.close()
            raise
        finally:
            their_control.close()
            their_connection_passing.close()
        self._control = control
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


def _spawn(slot: int, control: socket.socket, connection_passing: socket.socket) -> "subprocess.Popen[bytes]":
    program = _PROGRAM.format(path=sys.path, control=control.fileno(), connection_passing=connection_passing.fileno())
    # The words at the end are for those who look at a list of processes.
    command = [sys.executable, "-c", program, "naiad", "serve", f"process={slot + 1}"]
    return subprocess.Popen(command, pass_fds=(control.fileno(), connection_passing.fileno()))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
