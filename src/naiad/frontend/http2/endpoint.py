"""Shared state of the connections of one HTTP/2 endpoint."""

from collections.abc import Callable

from naiad.core.ports import Loop
from naiad.core.request_limits import RequestBudget
from naiad.frontend.access import AccessRule
from naiad.frontend.connections.connection_register import ConnectionRegister
from naiad.frontend.connections.endpoint import C, Endpoint
from naiad.frontend.context import GrpcService
from naiad.frontend.http2.rest_headers import RestSide
from naiad.frontend.thread_pool import RunInThread, run_at_once
from naiad.wire.http2.limits import Http2Limits

_MAX_CONNECTIONS = 16_384


class Http2Endpoint(Endpoint[C]):
    """The service and the limits of the connections, and the open connections."""

    def __init__(
        self,
        service: GrpcService,
        loop: Loop,
        limits: Http2Limits | None = None,
        *,
        connections: ConnectionRegister[C] | None = None,
        rule: AccessRule | None = None,
        run_in_thread: RunInThread = run_at_once,
        rest: RestSide | None = None,
        budget: RequestBudget | None = None,
    ) -> None:
        """`connections` enforces the connection limits."""
        Endpoint.__init__(self, loop, connections or ConnectionRegister(_MAX_CONNECTIONS))
        self.service = service
        self.limits = limits or Http2Limits()
        self.rule = rule
        """Decides which gRPC calls are served; None for all."""
        self.rest = rest
        """Handles requests that are not gRPC; None if there is no REST."""
        self.run_in_thread = run_in_thread
        self.budget = budget or RequestBudget()
        """Budget of request bytes, shared with the other endpoints of the server."""
        self._dirty: list[Callable[[], object]] = []

    def set_date(self, wall_s: float) -> None:
        """Set the Date of the following REST responses."""
        if self.rest is not None:
            self.rest.response_headers.set_date(wall_s)

    def flush_soon(self, flush: Callable[[], object]) -> None:
        """Write the output of a connection after the current callback."""
        if not self._dirty:
            self.loop.call_soon(self._flush)
        self._dirty.append(flush)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for flush in dirty:
            flush()
