"""The server under attack, as an attack sees it: addresses, how much to send, and connections that count bytes."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from attack.connection import Connection, Http1Peer, Http2Peer

_SHORT_DIVISOR = 10


@dataclass
class Target:
    """A server, one of its protocols, and the size of the attack."""

    protocol: str
    http_port: int
    grpc_port: int
    is_short: bool = False
    most_s: float = 20.0
    """An attack ends after about this long, even if some of it is left."""

    def __post_init__(self) -> None:
        self.sent_bytes = 0
        self.connection_count = 0
        self._deadline_s = time.monotonic() + self.most_s

    @property
    def port(self) -> int:
        """The port of the protocol."""
        return self.grpc_port if self.protocol == "grpc" else self.http_port

    @property
    def is_time_over(self) -> bool:
        """Whether the attack has to end."""
        return time.monotonic() > self._deadline_s

    def count(self, full: int) -> int:
        """Return how often to do something that is done `full` times in the long form."""
        return max(1, full // _SHORT_DIVISOR) if self.is_short else full

    def rounds(self, full: int) -> Iterator[int]:
        """Count to `count(full)`, or until the time is over."""
        for number in range(self.count(full)):
            if self.is_time_over:
                return
            yield number

    @contextlib.contextmanager
    def counted(self, connection: Connection) -> Iterator[None]:
        """Close a connection in the end and add what it has sent."""
        try:
            yield
        finally:
            self.sent_bytes += connection.sent_bytes
            self.connection_count += 1
            connection.close()

    @contextlib.contextmanager
    def http1(self) -> Iterator[Http1Peer]:
        """Open an HTTP/1.1 connection."""
        peer = Http1Peer(self.port)
        with self.counted(peer):
            yield peer

    @contextlib.contextmanager
    def http2(self, settings: bytes = b"") -> Iterator[Http2Peer]:
        """Open an HTTP/2 connection; `settings` is the payload of its SETTINGS frame."""
        peer = Http2Peer(self.port, is_grpc=self.protocol == "grpc", settings=settings)
        with self.counted(peer):
            yield peer

    @contextlib.contextmanager
    def peer(self) -> Iterator[Http1Peer | Http2Peer]:
        """Open a connection of the protocol."""
        if self.protocol == "http1":
            with self.http1() as http1:
                yield http1
        else:
            with self.http2() as http2:
                yield http2
