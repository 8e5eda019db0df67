"""The end of a connection: how long its peer may take what was written before it was closed.

A transport that is closed goes on until all is sent, however long that takes, and over TLS until the peer says
goodbye as well. Neither ends by itself when a peer does nothing, so whoever closes a connection has its end watched.
"""

import array
import asyncio
import contextlib
import fcntl
import socket
import termios

FAREWELL_S = 5.0
"""How long a peer that has everything may take to close its side."""
_NS_PER_S = 1_000_000_000


def undelivered_bytes(transport: asyncio.Transport) -> int:
    """Return how much of what was written has not reached the peer's machine, as far as anybody knows.

    What the transport counts is too little: TLS hands all it has to another one below, and counts it no more.
    """
    count = transport.get_write_buffer_size()
    connected: socket.socket | None = transport.get_extra_info("socket")
    if connected is not None:
        sent = array.array("i", [0])
        with contextlib.suppress(OSError):  # closed, or a system that does not tell
            fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, sent)
            count += sent[0]
    return count


class Farewell:
    """Watches a connection that was closed, or that is read to its end before it is. Asked about every second."""

    __slots__ = ("_since_ns", "_stalled_ns", "_undelivered_bytes")

    def __init__(self, stalled_s: float, now_ns: int) -> None:
        """`stalled_s` is how long a peer may take nothing of what is left to be sent."""
        self._stalled_ns = int(stalled_s * _NS_PER_S)
        self._undelivered_bytes = -1
        self._since_ns = now_ns

    def is_over(self, undelivered: int, now_ns: int, delivered_s: float = FAREWELL_S) -> bool:
        """Tell whether the peer has had its time: to take more, or `delivered_s` to close once it has everything."""
        if undelivered != self._undelivered_bytes:
            self._undelivered_bytes = undelivered
            self._since_ns = now_ns
            return False
        limit_ns = self._stalled_ns if undelivered else int(delivered_s * _NS_PER_S)
        return now_ns - self._since_ns >= limit_ns
