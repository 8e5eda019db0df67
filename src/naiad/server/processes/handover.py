"""Connections: the supervisor accepts them and hands each to a member, as a descriptor over a socket pair."""

import asyncio
import logging
import socket
from collections.abc import Callable

_log = logging.getLogger(__name__)

BACKLOG = 1024
_ACCEPTS_PER_TURN = 64
_RETRY_S = 0.02
_EXHAUSTED_RETRY_S = 0.5
_RECEIVE_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

HandOver = Callable[[int, socket.socket], bool]
"""(position of the port, connection) to whether a member took it."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends for descriptors: messages keep their borders, so each carries one connection."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    return ends


def hand_over(end: socket.socket, port: int, connection: socket.socket) -> bool:
    """Give a connection away; False when the other end takes no more at the moment, or is gone."""
    try:
        socket.send_fds(end, [bytes((port,))], [connection.fileno()])
    except OSError:
        return False
    return True


class Acceptor:
    """Accepts the connections of one port and hands them over.

    While no member takes one it is held, and those behind it wait in the kernel's queue.
    """

    def __init__(self, listener: socket.socket, port: int, hand: HandOver) -> None:
        self._listener = listener
        self._port = port
        self._hand = hand
        self._held: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Listen and begin to accept. Raises OSError when another process was faster to listen."""
        self._listener.listen(BACKLOG)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener.fileno(), self._on_readable)

    def stop(self) -> None:
        """Accept no more, and close the port; harmless before `start` and a second time."""
        if self._loop is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._loop = None
        if self._timer is not None:
            self._timer.cancel()
        if self._held is not None:
            self._held.close()
            self._held = None
        self._listener.close()

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
                self._held = connection
                self._pause(_RETRY_S)
                return
            connection.close()

    def _pause(self, delay_s: float) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._timer = self._loop.call_later(delay_s, self._resume)

    def _resume(self) -> None:
        if self._loop is None:
            return
        if self._held is not None:
            if not self._hand(self._port, self._held):
                self._timer = self._loop.call_later(_RETRY_S, self._resume)
                return
            self._held.close()
            self._held = None
        self._loop.add_reader(self._listener.fileno(), self._on_readable)


class Receiver:
    """A member's end: takes connections and passes each to its port."""

    def __init__(self, end: socket.socket, adopt: Callable[[int, socket.socket], None]) -> None:
        """`adopt` gets the position of a port and a connection to it."""
        self._end = end
        self._adopt = adopt
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin to take connections."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._end.fileno(), self._on_readable)

    def catch_up(self) -> None:
        """Take at once whatever has been handed over before."""
        while self._take():
            pass

    def _on_readable(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            if not self._take():
                return

    def _take(self) -> bool:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._end, 1, 1, _RECEIVE_FLAGS)
        except BlockingIOError:
            return False
        if not message:
            # The supervisor is gone; the channel says so as well, and has the member end.
            if self._loop is not None:
                self._loop.remove_reader(self._end.fileno())
            return False
        if not descriptors:
            _log.error("a connection could not be taken over: too many open files in this process")
            return True
        connection = socket.socket(fileno=descriptors[0])
        connection.setblocking(False)
        self._adopt(message[0], connection)
        return True
