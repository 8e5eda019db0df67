"""A port of a server process: the supervisor accepts its connections."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from naiad.server.ports.endpoint import Service
from naiad.server.ports.ports import ServedConnections
from naiad.server.ports.tls import HANDSHAKE_TIMEOUT_S, SHUTDOWN_TIMEOUT_S

_log = logging.getLogger(__name__)


class PassedConnections(Service):
    """Serves passed connections, and counts the closed ones."""

    def __init__(
        self,
        flag: str,
        port: int,
        connections: ServedConnections,
        tls: ssl.SSLContext | None,
        on_close: Callable[[], None],
    ) -> None:
        """`port` is the supervisor's. `on_close` is called after connections have closed: `take_closed_count` returns
        their number.
        """
        self.connections = connections
        self._flag = flag
        self._port = port
        self._protocol = connections.protocol
        connections.on_close = on_close
        self._tls = tls
        self._on_close = on_close
        self._tasks: set[asyncio.Task[None]] = set()
        self._left_count = 0
        """Adopted connections less the reported closed ones."""

    @property
    def flag(self) -> str:
        """The prefix of its flags."""
        return self._flag

    @property
    def port(self) -> int:
        """The port of the supervisor; 0 for a Unix socket."""
        return self._port

    @property
    def is_shared(self) -> bool:
        """False: the supervisor decides when the port opens."""
        return False

    async def listen(self) -> None:
        """Do nothing: the supervisor listens."""

    async def stop_listening(self) -> None:
        """Do nothing: the supervisor stops accepting before processes finish."""

    def close(self) -> None:
        """Do nothing: the supervisor owns the port."""

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
        """Return the number of connections that have closed since the last call."""
        # It counts open connections, not closed ones: a change of protocol looks like a close.
        closed = max(0, self._closed_count())  # a new one may count twice briefly
        self._left_count -= closed
        return closed

    def _closed_count(self) -> int:
        return self._left_count - len(self._tasks) - self.connections.connection_count

    async def _adopt(self, connection: socket.socket) -> None:
        tls = self._tls
        try:
            # asyncio accepts the timeouts only with a context.
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol,
                connection,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if tls else None,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S if tls else None,
            )
        except (OSError, TimeoutError) as error:
            # The client disconnected or did not finish its handshake; no protocol has seen the connection.
            _log.debug("a connection was lost before it began: %s", error)
            connection.close()

    async def settle(self, timeout_s: float) -> None:
        """Wait until passed connections have started, so that draining finds them."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
