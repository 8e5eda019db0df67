"""The ports of a server process: the supervisor accepts their connections."""

import asyncio
import socket
import ssl
from collections.abc import Callable

from naiad.cluster.member.sharing import ClusterOperations
from naiad.core.request_limits import RequestBudget
from naiad.engine.engine import Engine
from naiad.frontend.dashboard.live_feed import AskLive
from naiad.frontend.http1.endpoint import Handle
from naiad.frontend.rest.metrics_port import metrics_route
from naiad.options.options import ServerOptions
from naiad.server.ports.endpoint import Connections, Service, serve_accepted
from naiad.server.ports.ports import Ports

MakeService = Callable[[str, Connections, ssl.SSLContext | None], "PassedConnections"]
"""Makes the service of a port from the prefix of its flags."""


class MemberPorts(Ports):
    """Ports with passed connections, whose queries and control calls are about all processes."""

    def __init__(
        self,
        options: ServerOptions,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        budget: RequestBudget,
        operations: ClusterOperations,
        make_service: MakeService,
    ) -> None:
        self._operations = operations
        self._make_passed = make_service
        super().__init__(options, engine, loop, budget, operations)
        operations.control_calls = self.control_calls

    def _open(self, flag: str, connections: Connections, tls: ssl.SSLContext | None = None) -> Service:
        return self._make_passed(flag, connections, tls)

    def _live_question(self) -> AskLive | None:
        return self._operations.live_answer

    def _metrics_route(self) -> Handle:
        return metrics_route(self._operations.answer_metrics, self._keys)


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
