"""Detects peers that are too slow: least rates, and peers that do not read, before a connection is closed and after.

A closed transport continues until all data is sent, however long that takes, and with TLS until the peer closes as
well. Neither ends by itself if a peer does nothing, so every closed connection is watched until its end.
"""

import array
import asyncio
import contextlib
import fcntl
import socket
import struct
import termios

LINGER_S = 5.0
"""Time in which a peer that has received everything must close its side."""
MIN_BYTES_PER_S = 1024
"""Minimum rate at which a peer must read waiting bytes."""
_RECENT_NS = 5_000_000_000
"""A response sent before this time has been read, unless the peer's machine has not even received it."""
_NS_PER_S = 1_000_000_000
_TCP_INFO_BYTES = 128
_ACKNOWLEDGED = struct.Struct("@Q")
_ACKNOWLEDGED_AT = 120
"""tcpi_bytes_acked of struct tcp_info (linux/tcp.h)."""


def undelivered_bytes(transport: asyncio.Transport) -> int:
    """Return how many written bytes have not reached the peer's machine, as far as the system can report.

    The transport's own count is too low: TLS passes all data to an inner transport and no longer counts it.
    """
    count = transport.get_write_buffer_size()
    connected: socket.socket | None = transport.get_extra_info("socket")
    if connected is not None:
        sent = array.array("i", [0])
        with contextlib.suppress(OSError):  # closed, or not supported by the system
            fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, sent)
            count += sent[0]
    return count


def acknowledged_bytes(transport: asyncio.Transport) -> int:
    """Return how many bytes the peer's machine has acknowledged since the connection was made; 0 if unknown."""
    connected: socket.socket | None = transport.get_extra_info("socket")
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return 0
    try:
        state = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return 0
    return int(_ACKNOWLEDGED.unpack_from(state, _ACKNOWLEDGED_AT)[0]) if len(state) == _TCP_INFO_BYTES else 0


class RecentOutput:
    """Knows whether a peer may still be reading a response, by the number of frames sent so far."""

    __slots__ = ("_count", "_moved_ns", "_noted_ns")

    def __init__(self, now_ns: int) -> None:
        self._count = 0
        self._moved_ns = self._noted_ns = now_ns
        """Last time at which more frames were sent, and last time at which they were counted."""

    def note(self, count: int, now_ns: int) -> None:
        """Note the number of frames; called about every second."""
        self._noted_ns = now_ns
        if count != self._count:
            self._count = count
            self._moved_ns = now_ns

    def may_be_unread(self, count: int) -> bool:
        """Return whether frames were sent in the last seconds; `count` is their number now."""
        if not count:
            return False
        return count != self._count or self._noted_ns - self._moved_ns < _RECENT_NS


class LeastRate:
    """Judges a growing count of bytes: a body that arrives, or responses that are read. Time is an argument.

    A peer begins with a grace. Time uses it up, bytes earn it back at the rate, and never more than the whole of it:
    a fast beginning does not pay for a long silence later.
    """

    __slots__ = ("_bytes_per_s", "_grace_ns", "_left_ns", "_seen_bytes", "_seen_ns")

    def __init__(self, bytes_per_s: int, grace_s: float, now_ns: int = 0) -> None:
        """Without `now_ns` the grace begins with the first check."""
        self._bytes_per_s = bytes_per_s
        self._grace_ns = self._left_ns = int(grace_s * 1e9)
        self._seen_bytes = 0
        self._seen_ns = now_ns

    def is_too_slow(self, total_bytes: int, now_ns: int) -> bool:
        """Record `total_bytes` so far; return whether the grace is used up."""
        elapsed_ns = now_ns - self._seen_ns if self._seen_ns else 0
        earned_ns = max(0, total_bytes - self._seen_bytes) * 1_000_000_000 // self._bytes_per_s
        self._left_ns = min(self._grace_ns, self._left_ns - elapsed_ns + earned_ns)
        self._seen_bytes = total_bytes
        self._seen_ns = now_ns
        return self._left_ns <= 0

    def excuse(self, now_ns: int) -> None:
        """Exclude the time since the last check: the peer could not continue."""
        self._seen_ns = now_ns


class ReadRateCheck:
    """Checks whether a peer reads waiting bytes at a minimum rate. Called about every second; costs nothing in
    between.
    """

    __slots__ = ("_grace_s", "_rate", "_undelivered_bytes")

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._rate: LeastRate | None = None
        self._undelivered_bytes = -1

    def is_too_slow(self, transport: asyncio.Transport, undelivered: int, now_ns: int) -> bool:
        """Return whether the peer has fallen behind the minimum rate by the whole grace time; `undelivered` bytes
        wait.
        """
        if not undelivered:
            self._rate = None
            return False
        if self._rate is None:
            self._rate = LeastRate(MIN_BYTES_PER_S, self._grace_s)
        taken = acknowledged_bytes(transport)
        if not taken and undelivered != self._undelivered_bytes:
            # A Unix socket, for example: the number of bytes is unknown, only that some were read.
            self._rate = LeastRate(MIN_BYTES_PER_S, self._grace_s)
        self._undelivered_bytes = undelivered
        return self._rate.is_too_slow(taken, now_ns)


class LingeringClose:
    """Watches a connection that was closed, or that is read to its end before. Called about every second."""

    __slots__ = ("_delivered_ns", "_response_queue")

    def __init__(self, grace_s: float) -> None:
        """`grace_s` is how far a peer may fall behind with the remaining bytes."""
        self._response_queue = ReadRateCheck(grace_s)
        self._delivered_ns = 0

    def is_over(self, transport: asyncio.Transport, now_ns: int, delivered_s: float = LINGER_S) -> bool:
        """Return whether the peer's time is over: to read more, or `delivered_s` to close after it has everything."""
        undelivered = undelivered_bytes(transport)
        if undelivered:
            self._delivered_ns = 0
            return self._response_queue.is_too_slow(transport, undelivered, now_ns)
        if not self._delivered_ns:
            self._delivered_ns = now_ns
        return now_ns - self._delivered_ns >= int(delivered_s * _NS_PER_S)
