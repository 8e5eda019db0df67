"""Shared state of the connections of one HTTP/1.1 endpoint: limits, caches and response headers."""

import http
from collections.abc import Callable

from naiad.core.environment.ports import Loop
from naiad.core.limits.request_limits import RequestBudget
from naiad.frontend.access.refusal import NoteInvalid, note_invalid
from naiad.frontend.connections.endpoint import AddressLimit, Endpoint, EndpointConnection
from naiad.frontend.context import HttpContext, RejectEarly
from naiad.frontend.reply_headers import http_date
from naiad.telemetry.metrics.response_metrics import http_responses
from naiad.wire.header_fields import Headers
from naiad.wire.http1 import CheckHead, HeadCache, Http1Limits

_RECEIVE_BYTES = 65536
_STATUS_LINES = {status.value: b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in http.HTTPStatus}
_CACHED_PREFIXES = 256

Handle = Callable[[HttpContext], None]


class PhaseClock:
    """Shared by the parts of a connection: the part that starts a phase restarts the clock."""

    __slots__ = ("start_ns",)

    def __init__(self) -> None:
        self.start_ns = 0
        """Monotonic time of the first sweep in this phase, 0 before: no request pays for reading a clock."""

    def restart(self) -> None:
        """Start a new phase; the next sweep stores its time."""
        self.start_ns = 0

    def elapsed_s(self, now_ns: int) -> float | None:
        """Return the duration of the phase; None if it begins now."""
        if not self.start_ns:
            self.start_ns = now_ns
            return None
        return (now_ns - self.start_ns) / 1e9


class Http1ResponseHeaders:
    """Encodes response headers, and counts them; caches the headers of successful responses, which repeat."""

    def __init__(self) -> None:
        self._prefixes: dict[object, bytes] = {}
        self._framing = b""
        self.set_date(0.0)

    def set_date(self, wall_s: float) -> None:
        """Set the Date of the following responses; called about once a second."""
        self._framing = b"Date: %s\r\nContent-Length: %%d\r\n\r\n" % http_date(wall_s)

    def complete(self, status: int, headers: Headers, length: int, connection: bytes) -> bytes:
        """Return the headers of a response of `length` bytes; `connection` is a Connection option or empty."""
        http_responses[status] += 1
        key = (status, headers, connection) if type(headers) is tuple else None
        prefix = self._prefixes.get(key)
        if prefix is None:
            prefix = self._prefix(status, headers, connection)
            if key is not None and status == http.HTTPStatus.OK:
                if len(self._prefixes) >= _CACHED_PREFIXES:
                    self._prefixes.clear()
                self._prefixes[key] = prefix
        return prefix + self._framing % length

    def streamed(self, status: int, headers: Headers, connection: bytes, *, chunked: bool) -> bytes:
        """Return the headers of a response of unknown length."""
        http_responses[status] += 1
        date = self._framing.partition(b"\r\n")[0]
        coding = b"Transfer-Encoding: chunked\r\n" if chunked else b""
        return b"%s%s\r\n%s\r\n" % (self._prefix(status, headers, connection), date, coding)

    def _prefix(self, status: int, headers: Headers, connection: bytes) -> bytes:
        line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status
        fields = b"".join([b"%s: %s\r\n" % field for field in headers])
        return line + fields + (b"Connection: %s\r\n" % connection if connection else b"")


class Http1Endpoint(Endpoint[EndpointConnection]):
    """Limits, caches, the buffer to receive into, and the open connections."""

    def __init__(
        self,
        handle: Handle,
        loop: Loop,
        limits: Http1Limits | None = None,
        budget: RequestBudget | None = None,
        reject: RejectEarly | None = None,
        addresses: AddressLimit | None = None,
        check: CheckHead | None = None,
    ) -> None:
        """Each complete request goes to `handle`, on the loop.

        `budget` bounds the bodies of all connections together; without one only the limits of each connection apply.
        `reject` checks requests with large bodies before these are read. `addresses` counts the connections per
        address. `check` raises HttpError for heads that are refused.
        """
        self.limits = limits = limits or Http1Limits()
        Endpoint.__init__(self, loop, limits.connections, addresses)
        self.handle = handle
        self.reject = reject
        self.budget = budget or RequestBudget()
        self.heads = HeadCache(limits, check)
        self.response_headers = Http1ResponseHeaders()
        self.receive_bytes = _RECEIVE_BYTES
        self.receive_buffer = bytearray(_RECEIVE_BYTES)
        self.receive_view = memoryview(self.receive_buffer)
        self.last_arrival_ns = 0
        """After the start of a drain: responses to requests that came before are the last ones of their connections.
        """
        self.is_finishing = False
        """Idle connections are closed as well."""
        self.note_invalid: NoteInvalid = note_invalid
        """Logs a request that a connection refuses."""
        self.call_later = loop.call_later

    def set_date(self, wall_s: float) -> None:
        """Set the Date of the following responses."""
        self.response_headers.set_date(wall_s)
