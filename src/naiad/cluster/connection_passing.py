"""Connections: the supervisor accepts them and hands each to a member, as a descriptor over a socket pair.

Which process gets the next connection: the one that has the fewest on that port.

Connections of inference clients are few and live long, so chance would leave processes idle: with eight connections
and two processes, hashing gives both their four in a quarter of all cases.
"""

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence

from naiad.server.listener import Listener


class Balance:
    """Counts the open connections of each process by port."""

    def __init__(self, port_count: int) -> None:
        self._port_count = port_count
        self._open: dict[int, list[int]] = {}
        self._turn = 0
        self._last_turn: dict[int, int] = {}

    def add(self, slot: int) -> None:
        """Give connections to a process from now on."""
        self._open[slot] = [0] * self._port_count
        self._last_turn[slot] = 0

    def remove(self, slot: int) -> None:
        """Give nothing to a process any more; harmless when it got nothing."""
        self._open.pop(slot, None)

    def ranked(self, port: int) -> Sequence[int]:
        """Return the processes in the order in which to try them.

        Fewest connections on the port first; among equals the fewest in all, then the one whose turn is longest ago.
        """
        counts, turns = self._open, self._last_turn
        return sorted(counts, key=lambda slot: (counts[slot][port], sum(counts[slot]), turns[slot]))

    def handed(self, slot: int, port: int) -> None:
        """Count a connection that a process was given."""
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
"""A member that is so far behind gets no more until it has caught up."""
_RETRY_S = 0.02
_EXHAUSTED_RETRY_S = 0.5
_RECEIVE_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_DESCRIPTOR = struct.Struct("i")
_CONTROL_BYTES = socket.CMSG_SPACE(_DESCRIPTOR.size)
_PORTS = tuple(bytes((port,)) for port in range(256))
_NOTICE_BYTES = 1024
"""More than a notice has: four bytes for the confirmed, and four for the closed of each port."""

OnNotice = Callable[[Sequence[int]], None]
HandOver = Callable[[int, socket.socket], bool]
"""(position of the port, connection) to whether a member takes it; then the connection is no longer the caller's."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends for descriptors: messages keep their borders, so each carries one connection."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    return ends


class ConnectionSender:
    """The supervisor's end towards one member.

    A connection stays open here until the member has confirmed it, which it does before it reads from it. Those that
    it has not confirmed when it dies can be given to another: nobody has seen anything of them. A process that is
    dying is not known to be, while its clients already come again, so without this they could be lost twice.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._unconfirmed: deque[tuple[int, socket.socket]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_notice: OnNotice | None = None

    def start(self, on_notice: OnNotice) -> None:
        """Begin to listen to what the member says; `on_notice` gets how many connections of each port have closed."""
        self._on_notice = on_notice
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._end.fileno(), self._on_readable)

    def give(self, port: int, connection: socket.socket) -> bool:
        """Give a connection away; False when the member takes no more at the moment, or is gone."""
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
        """End this, and return the connections that were not confirmed, with the positions of their ports.

        Harmless a second time.
        """
        if self._end.fileno() < 0:
            return ()
        if self._loop is not None:
            self._loop.remove_reader(self._end.fileno())
            self._loop = None
        # What a member has confirmed with its last breath it may have read from.
        while self._take():
            pass
        self._end.close()
        left = list(self._unconfirmed)
        self._unconfirmed.clear()
        return left

    def _on_readable(self) -> None:
        # Notices tell of many connections when there are many, so another one seldom waits.
        self._take()

    def _take(self) -> bool:
        """Take one notice; whether there was one."""
        try:
            notice = self._end.recv(_NOTICE_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            # The member has died before it took all that it was given. The kernel tells that before it delivers what
            # the member had sent, and only once.
            return True
        if not notice:
            # The channel tells of the end as well, and has this closed.
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
    """Accepts the connections of one port and hands them over.

    While no member takes one nothing is accepted, and those that follow wait in the kernel's queue.
    """

    def __init__(self, listener: Listener, port: int, hand: HandOver) -> None:
        self._bound = listener
        self._listener = listener.socket
        self._port = port
        self._hand = hand
        self._waiting: deque[socket.socket] = deque()
        """One that was accepted last, and those that were given back."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Listen and begin to accept. Raises OSError when another process was faster to listen."""
        self._listener.listen(BACKLOG)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener.fileno(), self._on_readable)

    def block_new_connections(self) -> None:
        """Let no new connection begin; those that have begun are still handed over."""
        self._bound.block_new_connections()

    def finish(self) -> None:
        """Hand over what has begun, and close the port."""
        if self._loop is not None:
            self._waiting += self._bound.accept_waiting()
            while self._waiting and self._hand(self._port, self._waiting[0]):
                self._waiting.popleft()
        self.stop()

    def stop(self) -> None:
        """Accept no more, and close the port; harmless before `start` and a second time."""
        if self._loop is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._close_waiting()
        self._bound.close()

    def give_back(self, connection: socket.socket) -> None:
        """Take a connection that was handed over in vain, for another member."""
        self._waiting.append(connection)
        if self._loop is None:
            self._close_waiting()
        elif self._timer is None:
            self._pause(0.0)

    def resume(self) -> None:
        """Go on: members may take connections again."""
        if self._timer is not None and self._waiting:
            self._timer.cancel()
            self._on_timer()

    def _close_waiting(self) -> None:
        while self._waiting:
            self._waiting.popleft().close()

    def _on_readable(self) -> None:
        # Not all at once: others want to be heard, too.
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("cannot accept connections: %s", error.strerror)
                self._pause(_EXHAUSTED_RETRY_S)
                return
            if not self._hand(self._port, connection):
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
            if not self._hand(self._port, self._waiting[0]):
                self._timer = self._loop.call_later(_RETRY_S, self._on_timer)
                return
            self._waiting.popleft()
        self._loop.add_reader(self._listener.fileno(), self._on_readable)


class ConnectionReceiver:
    """A member's end: takes connections, confirms them, passes each to its port, and tells how many have closed."""

    def __init__(self, end: socket.socket, port_count: int, adopt: Callable[[int, socket.socket], None]) -> None:
        """`adopt` gets the position of a port and a connection to it."""
        self._end = end
        self._adopt = adopt
        self._notice = struct.Struct(f"!{port_count + 1}I")
        self._none_closed = (0,) * port_count
        self._unconfirmed: list[tuple[int, socket.socket]] = []
        self._unconfirmed_count = 0
        """With those that could not be taken for want of descriptors."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin to take connections."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._end.fileno(), self._on_readable)

    def catch_up(self) -> None:
        """Take at once whatever has been handed over before."""
        while self._on_readable():
            pass

    def tell_closed(self, counts: Sequence[int]) -> bool:
        """Tell how many connections of each port have closed; False when that has to wait."""
        return self._send(0, counts)

    def _send(self, taken: int, closed: Sequence[int]) -> bool:
        try:
            self._end.send(self._notice.pack(taken, *closed))
        except OSError:
            return False
        return True

    def _on_readable(self) -> bool:
        """Take some connections; whether there were any."""
        count = 0
        taken: list[tuple[int, socket.socket]] = []
        while count < _ACCEPTS_PER_TURN and self._take(taken):
            count += 1
        self._unconfirmed_count += count
        self._unconfirmed += taken
        self._confirm()
        return count > 0

    def _confirm(self) -> None:
        """Confirm what was taken, and only then use it: until then the supervisor may give it to another."""
        if not self._unconfirmed_count:
            return
        if not self._send(self._unconfirmed_count, self._none_closed):
            # The supervisor has hundreds of notices to read first.
            if self._loop is not None:
                self._loop.call_later(_RETRY_S, self._confirm)
            return
        taken, self._unconfirmed = self._unconfirmed, []
        self._unconfirmed_count = 0
        for port, connection in taken:
            self._adopt(port, connection)

    def _take(self, taken: list[tuple[int, socket.socket]]) -> bool:
        """Take one connection; whether there was one."""
        try:
            # Not socket.recv_fds, which ignores its flags: programs that models start would inherit the connections.
            message, control, _, _ = self._end.recvmsg(1, _CONTROL_BYTES, _RECEIVE_FLAGS)
        except BlockingIOError:
            return False
        if not message:
            # The supervisor is gone; the channel says so as well, and has the member end.
            if self._loop is not None:
                self._loop.remove_reader(self._end.fileno())
            return False
        if not control:
            _log.error("a connection could not be taken over: too many open files in this process")
            return True
        connection = socket.socket(fileno=_DESCRIPTOR.unpack(control[0][2])[0])
        connection.setblocking(False)
        taken.append((message[0], connection))
        return True
