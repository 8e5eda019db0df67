"""A connection of the load generator that carries gRPC calls, unary ones or streams."""

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from naiad.client.connecting import ConnectionFailedError
from naiad.client.transport.grpc_connection import CallRefusedError, ClientCall, GrpcConnection
from naiad.core.errors import InferError
from naiad.tools.perf.perf_exchange import SentRequest
from naiad.tools.perf.targets.connections import TargetConnection
from naiad.tools.perf.targets.ending import CONNECTION
from naiad.wire.http2.connection_limits import Http2Limits

if TYPE_CHECKING:
    import asyncio

    from naiad.tools.perf.targets.connections import SocketTarget

_LIMITS = Http2Limits()


class TargetCall(ClientCall):
    """A call that carries requests of the load generator."""

    __slots__ = ()

    @property
    def outstanding(self) -> Iterable[SentRequest]:
        """The requests that it carries."""
        raise NotImplementedError

    def expire(self, before_ns: int, message: str) -> None:
        """Fail the requests that have started before `before_ns`."""
        raise NotImplementedError


def kind_of(error: InferError) -> str:
    """Return the kind of failure as reports name it: a broken connection, or the code of the error."""
    if isinstance(error, ConnectionFailedError) and not isinstance(error, CallRefusedError):
        return CONNECTION
    return error.code.name.lower()


class TargetGrpcConnection(TargetConnection, GrpcConnection[TargetCall]):
    """One connection, which notes when requests were sent."""

    def __init__(self, target: "SocketTarget[Any]") -> None:
        TargetConnection.__init__(self, target)
        GrpcConnection.__init__(self, _LIMITS)
        self._unsent: list[tuple[TargetCall, SentRequest]] = []

    @property
    def outstanding(self) -> Iterator[SentRequest]:
        """The requests that it carries."""
        for call in self.http2.streams.values():
            yield from call.outstanding

    async def wait_ready(self) -> None:
        """Wait for the server's SETTINGS, which limit the calls."""
        await self.ready

    def send_soon(self, call: TargetCall, exchange: SentRequest) -> None:
        """Write once for all requests that begin while data is handled, or else in this turn of the loop."""
        self._unsent.append((call, exchange))
        if not self._flushes_later:
            self._flushes_later = True
            self._loop.call_soon(self._flush)

    def expire(self, before_ns: int, message: str) -> None:
        """Fail the requests that have started before `before_ns`."""
        for call in list(self.http2.streams.values()):
            call.expire(before_ns, message)
        self._flush()
        if self.http2.is_retired:
            self._retire()

    def fail_outstanding(self, kind: str, message: str) -> None:
        """Fail all requests: the connection is lost."""
        self._end_calls(message)

    def connection_made(self, transport: "asyncio.BaseTransport") -> None:
        """Send the preface."""
        TargetConnection.connection_made(self, transport)
        GrpcConnection.connection_made(self, transport)

    def _flush(self) -> None:
        GrpcConnection._flush(self)
        if self._unsent:
            now_ns = time.monotonic_ns()
            unsent, self._unsent = self._unsent, []
            for call, exchange in unsent:
                if call.queue is None:
                    exchange.sent_ns = now_ns
                else:
                    self._unsent.append((call, exchange))  # A window of the server is closed.

    def _fail(self, why: str) -> None:
        self.abort(why)

    def _retire(self) -> None:
        """Have the target open another connection; close when no request is left."""
        self._target.retire(self)
        if next(iter(self.outstanding), None) is None:
            self.abort()
