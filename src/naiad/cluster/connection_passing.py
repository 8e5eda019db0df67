"""Connection passing: the supervisor accepts connections and passes each to a server process.

Theory of operation. Connections of inference clients are few and long-lived. SO_REUSEPORT would leave processes idle:
with eight connections and two processes, hashing gives both their four in only a quarter of all cases. Therefore the
supervisor accepts every connection (`Acceptor`), chooses the process with the fewest connections on that port
(`Balance`), and passes the descriptor over a socket pair (SCM_RIGHTS). `ConnectionSender` is the supervisor's end of
a pair, `ConnectionReceiver` the end of the process.

- A message of the supervisor is one connection: the position of its port and its descriptor.
- A notice of the process is a number of confirmed connections, and for each port a number of closed ones.
- The process confirms connections before it reads from them. The supervisor keeps its copy of the descriptor open
  until then. If the process dies, unconfirmed connections are unread, so another process can get them, and their
  clients notice nothing. Confirmed connections end with their process.
- Back pressure: a process with `_UNCONFIRMED_LIMIT` unconfirmed connections gets no more. If no process accepts a
  connection, the acceptor pauses, and new connections wait in the backlog of the kernel.
- A process without free descriptors loses a connection that it receives: the kernel closes it. It reports it closed.
- Both ends belong to the event loops of their processes; there are no locks.
"""

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence

from naiad.server.ports.listener import Listener


class Balance:
    """Counts the open connections of each process by port."""

    def __init__(self, port_count: int) -> None:
        self._port_count = port_count
        self._open: dict[int, list[int]] = {}
        self._turn = 0
        self._last_turn: dict[int, int] = {}

    def add(self, slot: int) -> None:
        """Add a process that accepts connections from now on."""
        self._open[slot] = [0] * self._port_count
        self._last_turn[slot] = 0

    def __contains__(self, slot: int) -> bool:
        return slot in self._open

    def remove(self, slot: int) -> None:
        """Remove a process; no effect for an unknown one."""
        self._open.pop(slot, None)

    def ranked(self, port: int) -> Sequence[int]:
        """Return the processes in the order in which to try them.

        Fewest connections on the port first; among equals the fewest in total, then the least recently chosen.
        """
        counts, turns = self._open, self._last_turn
        return sorted(counts, key=lambda slot: (counts[slot][port], sum(counts[slot]), turns[slot]))

    def passed(self, slot: int, port: int) -> None:
        """Count a connection that was passed to a process."""
        self._open[slot][port] += 1
        self._turn += 1
        self._last_turn[slot] = self._turn

    def closed(self, slot: int, counts: Sequence[int]) -> None:
        """Count connections that a process has closed, by port."""
        held = self._open.get(slot)
        if held is not None:
            for port, count in enumerate(counts):
                held[port] -= count


_log = logging.getLogger(__name__)

BACKLOG = 1024
_ACCEPTS_PER_TURN = 64
_UNCONFIRMED_LIMIT = 128
"""Unconfirmed connections of one process; it gets no more until it has caught up."""
_RETRY_S = 0.02
_EXHAUSTED_RETRY_S = 0.5
_RECEIVE_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_DESCRIPTOR = struct.Struct("i")
_CONTROL_BYTES = socket.CMSG_SPACE(_DESCRIPTOR.size)
_PORTS = tuple(bytes((port,)) for port in range(256))
_NOTICE_BYTES = 1024
"""Upper bound of a notice: four bytes for the confirmed connections, and four for the closed ones of each port."""

OnNotice = Callable[[Sequence[int]], None]
PassConnection = Callable[[int, socket.socket], bool]
"""(position of the port, connection) to whether a process accepts it; then the caller no longer owns the
connection."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends for descriptors: messages keep their boundaries, so each carries one connection."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    return ends


class ConnectionSender:
    """The supervisor's end of the socket pair to one process.

    A connection stays open here until the process has confirmed it, which it does before it reads from the
    connection. Connections that are unconfirmed at its death can be passed to another process, because no byte of
    them was read. Without this a client could lose two connections in a row to a process whose death is not yet
    detected.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._unconfirmed: deque[tuple[int, socket.socket]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_notice: OnNotice | None = None

    def start(self, on_notice: OnNotice) -> None:
        """Start to read notices; `on_notice` gets the number of closed connections of each port."""
        self._on_notice = on_notice
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._end.fileno(), self._on_readable)

    def pass_connection(self, port: int, connection: socket.socket) -> bool:
        """Pass a connection; return False if the process is at its limit or has exited."""
        if len(self._unconfirmed) >= _UNCONFIRMED_LIMIT:
            return False
        control = (socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(connection.fileno()))
        try:
            self._end.sendmsg((_PORTS[port],), (control,))
        except OSError:
            return False
        self._unconfirmed.append((port, connection))
        return True

    def close(self) -> Sequence[tuple[int, socket.socket]]:
        """Close the socket, and return the unconfirmed connections with the positions of their ports.

        Has no effect a second time.
        """
        if self._end.fileno() < 0:
            return ()
        if self._loop is not None:
            self._loop.remove_reader(self._end.fileno())
            self._loop = None
        # The process may have read from connections that it confirmed just before its death.
        while self._take():
            pass
        self._end.close()
        left = list(self._unconfirmed)
        self._unconfirmed.clear()
        return left

    def _on_readable(self) -> None:
        # Under load one notice covers many connections, so a second one is rarely pending.
        self._take()

    def _take(self) -> bool:
        """Read one notice; return whether there was one."""
        try:
            notice = self._end.recv(_NOTICE_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            # The process died before it received all its connections. The kernel reports that once, and before it
            # delivers earlier notices.
            return True
        if not notice:
            # The channel detects the end as well, and its handler calls `close`.
            if self._loop is not None:
                self._loop.remove_reader(self._end.fileno())
            return False
        counts = struct.unpack(f"!{len(notice) // 4}I", notice)
        for _ in range(counts[0]):
            self._unconfirmed.popleft()[1].close()
        if self._on_notice is not None:
            self._on_notice(counts[1:])
        return True


class Acceptor:
    """Accepts the connections of one port and passes them to processes.

    While every process is at its limit, it accepts nothing, and new connections wait in the kernel's backlog.
    """

    def __init__(self, listener: Listener, port: int, pass_on: PassConnection) -> None:
        self._bound = listener
        self._listener = listener.socket
        self._port = port
        self._pass = pass_on
        self._waiting: deque[socket.socket] = deque()
        """The last accepted connection, and returned ones."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Listen and begin to accept. Raises OSError when another process already listens."""
        self._listener.listen(BACKLOG)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener.fileno(), self._on_readable)

    def block_new_connections(self) -> None:
        """Accept no new connection; accepted ones are still passed."""
        self._bound.block_new_connections()

    def finish(self) -> None:
        """Pass the accepted connections, and close the port."""
        if self._loop is not None:
            self._waiting += self._bound.accept_waiting()
            while self._waiting and self._pass(self._port, self._waiting[0]):
                self._waiting.popleft()
        self.stop()

    def stop(self) -> None:
        """Accept no more, and close the port; no effect before `start` and a second time."""
        if self._loop is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._close_waiting()
        self._bound.close()

    def take_back(self, connection: socket.socket) -> None:
        """Take back a connection after a failed passing, for another process."""
        self._waiting.append(connection)
        if self._loop is None:
            self._close_waiting()
        elif self._timer is None:
            self._pause(0.0)

    def resume(self) -> None:
        """Continue: processes may accept connections again."""
        if self._timer is not None and self._waiting:
            self._timer.cancel()
            self._on_timer()

    def _close_waiting(self) -> None:
        while self._waiting:
            self._waiting.popleft().close()

    def _on_readable(self) -> None:
        # Limited per turn, so that other events of the loop are handled.
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("cannot accept connections: %s", error.strerror)
                self._pause(_EXHAUSTED_RETRY_S)
                return
            if not self._pass(self._port, connection):
                self._waiting.append(connection)
                self._pause(_RETRY_S)
                return

    def _pause(self, delay_s: float) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._loop is None:
            return
        while self._waiting:
            if not self._pass(self._port, self._waiting[0]):
                self._timer = self._loop.call_later(_RETRY_S, self._on_timer)
                return
            self._waiting.popleft()
        self._loop.add_reader(self._listener.fileno(), self._on_readable)


class ConnectionReceiver:
    """The end of a process: receives connections, confirms them, passes each to its port, and reports closed ones."""

    def __init__(self, end: socket.socket, port_count: int, adopt: Callable[[int, socket.socket], None]) -> None:
        """`adopt` gets the position of a port and a connection to it."""
        self._end = end
        self._adopt = adopt
        self._notice = struct.Struct(f"!{port_count + 1}I")
        self._lost = [0] * port_count
        """Connections by port that could not be received without free descriptors."""
        self._unconfirmed: list[tuple[int, socket.socket]] = []
        self._unconfirmed_count = 0
        """Includes the lost ones."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start to receive connections."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._end.fileno(), self._on_readable)

    def catch_up(self) -> None:
        """Receive at once all connections passed before."""
        while self._on_readable():
            pass

    def report_closed(self, counts: Sequence[int]) -> bool:
        """Report the number of closed connections of each port; return False if the socket is full."""
        return self._send(0, counts)

    def _send(self, taken: int, closed: Sequence[int]) -> bool:
        try:
            self._end.send(self._notice.pack(taken, *closed))
        except OSError:
            return False
        return True

    def _on_readable(self) -> bool:
        """Receive some connections; return whether there were any."""
        count = 0
        taken: list[tuple[int, socket.socket]] = []
        while count < _ACCEPTS_PER_TURN and self._take(taken):
            count += 1
        self._unconfirmed_count += count
        self._unconfirmed += taken
        self._confirm()
        return count > 0

    def _confirm(self) -> None:
        """Confirm the received connections before using them: until then the supervisor may pass them to another
        process.
        """
        if not self._unconfirmed_count:
            return
        if not self._send(self._unconfirmed_count, self._lost):
            # The supervisor's socket buffer is full of notices.
            if self._loop is not None:
                self._loop.call_later(_RETRY_S, self._confirm)
            return
        taken, self._unconfirmed = self._unconfirmed, []
        self._unconfirmed_count = 0
        self._lost = [0] * len(self._lost)
        for port, connection in taken:
            self._adopt(port, connection)

    def _take(self, taken: list[tuple[int, socket.socket]]) -> bool:
        """Receive one connection; return whether there was one."""
        try:
            # Not socket.recv_fds, which ignores its flags: programs that models start would inherit the connections.
            message, control, _, _ = self._end.recvmsg(1, _CONTROL_BYTES, _RECEIVE_FLAGS)
        except BlockingIOError:
            return False
        if not message:
            # The supervisor has exited; the channel detects it as well and ends this process.
            if self._loop is not None:
                self._loop.remove_reader(self._end.fileno())
            return False
        if not control:
            _log.error("a connection could not be received: too many open files in this process")
            self._lost[message[0]] += 1
            return True
        connection = socket.socket(fileno=_DESCRIPTOR.unpack(control[0][2])[0])
        connection.setblocking(False)
        taken.append((message[0], connection))
        return True
