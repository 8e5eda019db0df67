"""A port of a member: its connections were accepted by the supervisor."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from naiad.server.endpoint import Service
from naiad.server.ports import ServedConnections
from naiad.server.tls import HANDSHAKE_TIMEOUT_S, SHUTDOWN_TIMEOUT_S

_log = logging.getLogger(__name__)


class PassedConnections(Service):
    """Serves connections that are handed to it, and counts those that have closed."""

    def __init__(
        self, flag: str, connections: ServedConnections, tls: ssl.SSLContext | None, on_close: Callable[[], None]
    ) -> None:
        """`on_close` is called when connections have closed: `take_closed_count` tells how many."""
        self.connections = connections
        self._flag = flag
        self._protocol = connections.protocol
        connections.on_close = on_close
        self._tls = tls
        self._on_close = on_close
        self._tasks: set[asyncio.Task[None]] = set()
        self._left_count = 0
        """Connections that were adopted, less those that were told to have closed."""

    @property
    def flag(self) -> str:
        """The prefix of its flags."""
        return self._flag

    async def listen(self) -> None:
        """Nothing: the supervisor listens."""

    async def stop_listening(self) -> None:
        """Nothing: the supervisor accepts no more before it has members finish."""

    def close(self) -> None:
        """Nothing: the port is the supervisor's."""

    def adopt(self, connection: socket.socket) -> None:
        """Serve an accepted connection; called on the loop."""
        self._left_count += 1
        task = asyncio.get_running_loop().create_task(self._adopt(connection))
        self._tasks.add(task)
        task.add_done_callback(self._has_begun)

    def _has_begun(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._closed_count() > 0:  # it has closed already
            self._on_close()

    def take_closed_count(self) -> int:
        """Return how many connections have closed since the last call."""
        # What exists is counted, not what ends: on its way from one protocol to another a connection may seem to end.
        closed = max(0, self._closed_count())  # one that begins may be counted twice for a moment
        self._left_count -= closed
        return closed

    def _closed_count(self) -> int:
        return self._left_count - len(self._tasks) - self.connections.connection_count

    async def _adopt(self, connection: socket.socket) -> None:
        tls = self._tls
        try:
            # asyncio takes the timeouts only with a context.
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol,
                connection,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if tls else None,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S if tls else None,
            )
        except (OSError, TimeoutError) as error:
            # A peer that went away or did not finish its handshake; no protocol has seen it.
            _log.debug("a connection was lost before it began: %s", error)
            connection.close()

    async def settle(self, timeout_s: float) -> None:
        """Wait until connections that were handed over have begun, so that draining finds them."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
