"""The service of a port whose connections the supervisor accepts and passes."""

import asyncio
import socket
import ssl
from collections.abc import Callable

from naiad.server.ports.endpoint import Connections, serve_accepted


class PassedConnections:
    """Serves passed connections, and counts the closed ones. Implements `endpoint.Service`."""

    is_shared = False
    """The supervisor decides when the port opens."""

    def __init__(
        self,
        flag: str,
        port: int,
        connections: Connections,
        tls: ssl.SSLContext | None,
        on_close: Callable[[], None],
    ) -> None:
        """`port` is the supervisor's. `on_close` is called after connections have closed: `take_closed_count` returns
        their number.
        """
        self.flag = flag
        self.port = port
        self.connections = connections
        self._protocol = connections.protocol
        connections.on_close = on_close
        self._tls = tls
        self._on_close = on_close
        self._tasks: set[asyncio.Task[None]] = set()
        self._left_count = 0
        """Adopted connections less the reported closed ones."""

    async def listen(self) -> None:
        """Do nothing: the supervisor listens."""

    async def stop_listening(self) -> None:
        """Do nothing: the supervisor stops accepting before processes finish."""

    def close(self) -> None:
        """Do nothing: the supervisor owns the port."""

    def adopt(self, connection: socket.socket) -> None:
        """Serve an accepted connection; called on the loop."""
        self._left_count += 1
        task = asyncio.get_running_loop().create_task(serve_accepted(self._protocol, connection, self._tls))
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

    async def settle(self, timeout_s: float) -> None:
        """Wait until passed connections have started, so that draining finds them."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
