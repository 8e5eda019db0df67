"""What the targets behind sockets share: connections that are opened again, and requests that wait for one."""

import asyncio
import os
import resource
import ssl
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar, cast

from naiad.client.connecting import ConnectionFailedError, Connector, default_tls, parse_address
from naiad.core.errors import invalid_argument
from naiad.core.tensor import Buffer
from naiad.tools.perf.perf_exchange import SentRequest
from naiad.tools.perf.perf_plan import ServerTarget
from naiad.tools.perf.targets.ending import CONNECTION, TIMEOUT, TargetDeadlines, fail
from naiad.wire.header_fields import check_field

_CONNECT_TIMEOUT_S = 10.0
_CONNECTS_AT_ONCE = 64
_LONGEST_OPEN_S = 60.0
"""Opening all connections takes no longer: a load that this machine or the server cannot take must end."""
_OTHER_FILES = 64
"""Open files of the process that are no connections of the target."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_CLOSE_S = 2.0
"""Closing waits for so long for connections that are being opened."""


class TargetConnection(asyncio.Protocol):
    """One connection of a target."""

    def __init__(self, target: "SocketTarget[Any]") -> None:
        self._target = target
        self.transport: asyncio.Transport | None = None
        self._descriptor = -1
        """Of the socket; -1 for TLS."""
        self.has_served = False
        """It has brought a response: the next connection is opened without a pause."""
        self.lost_reason = ""

    @property
    def outstanding(self) -> Iterable[SentRequest]:
        """The requests that it carries."""
        raise NotImplementedError

    async def wait_ready(self) -> None:
        """Wait until requests may be sent. Raises ConnectionFailedError."""

    def expire(self, before_ns: int, message: str) -> None:
        """Fail the requests that have started before `before_ns`."""
        raise NotImplementedError

    def fail_outstanding(self, kind: str, message: str) -> None:
        """Fail all requests."""
        raise NotImplementedError

    def abort(self, why: str = "") -> None:
        """Close the connection at once; its requests fail."""
        if self.transport is not None:
            self.lost_reason = self.lost_reason or why
            self.transport.abort()

    def write(self, data: Buffer) -> None:
        """Send bytes at once: the transport would wait until all events of this turn of the loop are handled."""
        # hot: bench/micro_perf.py
        transport = self.transport
        assert transport is not None
        if self._descriptor >= 0 and not transport.is_closing() and not transport.get_write_buffer_size():
            try:
                sent_bytes = os.write(self._descriptor, data)
            except OSError:
                sent_bytes = 0  # The socket is full, or the transport finds out that it is broken.
            if sent_bytes == len(data):
                return
            data = memoryview(data)[sent_bytes:]
        transport.write(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)
        self._target.connection_made(self)
        if transport.get_extra_info("sslcontext") is None:
            self._descriptor = transport.get_extra_info("socket").fileno()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the requests; the target opens another connection."""
        self.transport = None
        why = self.lost_reason or (f"the connection was lost: {exc}" if exc else "the server closed the connection")
        self._target.connection_lost(self)
        self.fail_outstanding(CONNECTION, why)


C = TypeVar("C", bound=TargetConnection)


class SocketTarget(Generic[C]):
    """Keeps a number of connections to one server.

    A connection that breaks is opened again: at once if it has brought a response, otherwise after pauses that
    double. Requests without a free connection wait. While the server cannot be reached at all, they fail at once.
    """

    def __init__(self, service: ServerTarget, *, is_grpc: bool) -> None:
        """Raises InferError(INVALID_ARG) for an address, a header or a TLS file that is wrong."""
        address = parse_address(service.url)
        if address.is_grpc is not is_grpc:
            expected = "grpc://HOST:PORT" if is_grpc else "http://HOST:PORT"
            raise invalid_argument(f"'{service.url}' is not an address of {service.protocol.value}; use {expected}")
        self._service = service
        self._headers = _checked_headers(service)
        self._address = address
        self._connector = Connector(address, default_tls(address, client_tls(service)), _CONNECT_TIMEOUT_S)
        self._connections: list[C] = []
        self._retired: list[C] = []
        """Connections that carry no new requests."""
        self._alive: set[TargetConnection] = set()
        """All that have a transport, also before they are ready: an attempt that is cancelled leaves none open."""
        self._waiting: deque[tuple[Any, SentRequest]] = deque()
        self._wanted = 0
        self._down = "the target is not open"
        """Why there is no connection and the last attempt to open one has failed; "" otherwise."""
        self._pause_s = 0.0
        self._is_closed = False
        self._repair: asyncio.Task[None] | None = None
        self._deadlines = TargetDeadlines(service.request_timeout_s, self._expire)

    async def open(self, connections: int) -> None:
        """Connect for a number of requests that are outstanding at once; more when it is called again.

        Raises ConnectionFailedError, also when the process may not open as many files or it takes over a minute.
        Connections that were open before stay.
        """
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        wanted = self._connection_count(connections)
        _check_files(wanted, connections)
        missing = wanted - len(self._connections)
        deadline_s = time.monotonic() + _LONGEST_OPEN_S
        try:
            # Those that break meanwhile are not opened again here: with a server that closes each, it has no end.
            while missing > 0:
                missing -= await self._connect(missing)
                if missing > 0 and time.monotonic() > deadline_s:
                    raise ConnectionFailedError(
                        f"the connections to {self._address.url} were not open after {_LONGEST_OPEN_S:g} s: "
                        "use a lower load"
                    )
        except BaseException as error:
            opened = len(self._connections)
            if not self._wanted:
                await self.close()
            if isinstance(error, ConnectionFailedError) and opened > 1:
                raise ConnectionFailedError(f"{error.message}; {opened} of {wanted} connections were open") from error
            raise
        self._wanted = max(wanted, self._wanted)
        self._deadlines.start()
        self.repair()

    async def close(self) -> None:
        """Close connections, also if the server does nothing; outstanding requests fail as `connection`."""
        self._is_closed = True
        self._wanted = 0
        self._deadlines.stop()
        if self._repair is not None:
            self._repair.cancel()
            await asyncio.wait((self._repair,), timeout=_CLOSE_S)
        self._set_down("the target was closed")
        connections = (*self._connections, *self._retired)
        self._connections.clear()
        self._retired.clear()
        for connection in connections:
            connection.abort("the target was closed")
            connection.fail_outstanding(CONNECTION, "the target was closed")
        for unready in list(self._alive):
            unready.abort("the target was closed")
        await asyncio.sleep(0)  # Requests that fail at once do so in the next turn of the loop.

    # For subclasses

    def _connection_count(self, outstanding: int) -> int:
        raise NotImplementedError

    def _make(self) -> C:
        raise NotImplementedError

    def _use(self, opened: Sequence[C]) -> None:
        """Send the requests that wait over connections that were opened, as far as they go."""
        raise NotImplementedError

    def _enqueue(self, prepared: object, exchange: SentRequest) -> None:
        """Keep a request until a connection is free."""
        if self._down:
            self._loop.call_soon(fail, exchange, CONNECTION, self._down)
        else:
            self._waiting.append((prepared, exchange))

    # Connections

    def connection_made(self, connection: TargetConnection) -> None:
        """Note a connection, or close one that comes too late."""
        self._alive.add(connection)
        if self._is_closed:
            connection.abort("the target was closed")

    def connection_lost(self, connection: C) -> None:
        """Take a connection out and have another opened."""
        self._alive.discard(connection)
        if connection in self._retired:
            self._retired.remove(connection)
        elif connection in self._connections:
            self._connections.remove(connection)
            self._pause_s = 0.0 if connection.has_served else _next_pause_s(self._pause_s)
            self.repair()

    def retire(self, connection: C) -> None:
        """Take a connection out, which ends what it carries, and have another opened."""
        if connection in self._connections:
            self._connections.remove(connection)
            self._retired.append(connection)
            self.repair()

    def repair(self) -> None:
        """Open the connections that are missing."""
        is_needed = not self._is_closed and len(self._connections) < self._wanted
        if is_needed and (self._repair is None or self._repair.done()):
            self._repair = self._loop.create_task(self._keep_connected())

    async def _keep_connected(self) -> None:
        while len(self._connections) < self._wanted:
            if self._pause_s:
                if not self._connections:
                    self._set_down(self._down or f"connections to {self._address.url} break before a response")
                await asyncio.sleep(self._pause_s)
            try:
                await self._connect(self._wanted - len(self._connections))
            except ConnectionFailedError as error:
                self._pause_s = _next_pause_s(self._pause_s)
                if not self._connections:
                    self._set_down(error.message)

    async def _connect(self, count: int) -> int:
        """Open up to `count` connections, at least one, and return how many.

        Raises ConnectionFailedError if one of them cannot be opened.
        """
        opened = 0
        attempts = [self._open_one() for _ in range(min(count, _CONNECTS_AT_ONCE))]
        failed: BaseException | None = None
        for found in await asyncio.gather(*attempts, return_exceptions=True):
            if isinstance(found, BaseException):
                failed = found
            elif found.transport is None:
                failed = ConnectionFailedError(f"{self._address.url} closes connections before a response")
            else:
                opened += 1
                self._connections.append(found)
                self._down = ""
        if opened:
            self._use(self._connections[-opened:])
        if failed is not None:
            raise failed
        return opened

    async def _open_one(self) -> C:
        connection = await self._connector.open(self._make)
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await connection.wait_ready()
        except TimeoutError:
            connection.abort()
            raise ConnectionFailedError(f"{self._address.url} does not respond as a server of its protocol") from None
        except BaseException:
            connection.abort()
            raise
        return connection

    def _set_down(self, why: str) -> None:
        self._down = why
        waiting, self._waiting = self._waiting, deque()
        for _, exchange in waiting:
            fail(exchange, CONNECTION, why)

    def _expire(self, before_ns: int, message: str) -> None:
        for connection in (*self._connections, *self._retired):
            connection.expire(before_ns, message)
        while self._waiting and self._waiting[0][1].start_ns < before_ns:
            fail(self._waiting.popleft()[1], TIMEOUT, message)


def _check_files(connections: int, outstanding: int) -> None:
    """Raise ConnectionFailedError for more connections than the process may have open files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and connections + _OTHER_FILES > limit:
        raise ConnectionFailedError(
            f"{outstanding} outstanding requests need {connections} connections, and this process may open {limit} "
            "files (ulimit -n); use a lower load, raise the limit, or use -i grpc, where requests share connections"
        )


def _next_pause_s(pause_s: float) -> float:
    return min(2 * pause_s, _LONGEST_PAUSE_S) or _FIRST_PAUSE_S


def _checked_headers(service: ServerTarget) -> list[tuple[bytes, bytes]]:
    try:
        return [check_field(name, value) for name, value in service.headers.items()]
    except ValueError as error:
        raise invalid_argument(str(error)) from None


def client_tls(service: ServerTarget) -> ssl.SSLContext | None:
    """Return the TLS context of a service; None without TLS. Raises InferError(INVALID_ARG)."""
    if not parse_address(service.url).uses_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=service.ca_file or None)
        if service.certificate_file:
            context.load_cert_chain(service.certificate_file, service.key_file or None)
    except (OSError, ssl.SSLError) as error:
        files = [each for each in (service.ca_file, service.certificate_file, service.key_file) if each]
        raise invalid_argument(f"cannot read the TLS files {', '.join(files)}: {error}; expected PEM files") from None
    context.check_hostname = service.verifies_peer and service.verifies_host
    if not service.verifies_peer:
        context.verify_mode = ssl.CERT_NONE
    return context
