"""Shared state of the connections of one HTTP/2 endpoint, and the headers of REST requests and responses."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from naiad.core.environment.ports import Loop
from naiad.core.limits.request_limits import RequestBudget
from naiad.frontend.access.access import AccessRule
from naiad.frontend.access.refusal import NoteInvalid, note_invalid
from naiad.frontend.connections.endpoint import AddressLimit, C, Endpoint
from naiad.frontend.context import GrpcService, HttpContext, RejectEarly
from naiad.frontend.long_work.thread_pool import RunInThread, run_at_once
from naiad.frontend.reply_headers import http_date
from naiad.telemetry.metrics.response_metrics import http_responses
from naiad.wire.header_fields import HeaderFields, Headers
from naiad.wire.http1 import HttpError, decode_path
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.headers import RequestHead, encode_fields

if TYPE_CHECKING:
    from naiad.frontend.access.web_pages import WebPageRule

_CACHED_PREFIXES = 256


class RestHeaders:
    """The headers of a REST request; shared by all requests with the same header block."""

    __slots__ = (
        "binary_offset",
        "content_length",
        "expects_continue",
        "headers",
        "method",
        "path",
        "query",
        "refusal",
    )

    def __init__(self, head: RequestHead, pages: "WebPageRule | None" = None) -> None:
        self.method = head.method
        self.path = ""
        self.query = head.path.partition("?")[2]
        self.refusal: HttpError | None = None
        """Why all these requests are refused: the path is not valid text, or a foreign web page has sent them."""
        self.headers = HeaderFields()
        for name, value in head.fields:
            # RFC 9113 8.2.3: clients split cookies for better compression.
            self.headers.add(name, value, b"; " if name == b"cookie" else b", ")
        if head.authority:
            self.headers[b"host"] = head.authority.encode("latin-1")  # RFC 9113 8.3.1
        self.content_length = head.content_length
        self.expects_continue = self.headers.get(b"expect", b"").lower() == b"100-continue"
        offset = self.headers.get(b"inference-header-content-length", b"")
        self.binary_offset = int(offset) if offset.isdigit() and len(offset) < 20 else 0
        """Offset of the binary tensors in the body; 0 if unknown."""
        try:
            self.path = decode_path(head.path)
            if pages is not None:
                pages.check(self.method, self.path, self.headers.get)
        except HttpError as error:
            self.refusal = error.with_traceback(None)


class Http2ResponseHeaders:
    """Encodes and counts header blocks of responses; caches the blocks of successful responses, which repeat."""

    def __init__(self) -> None:
        self._prefixes: dict[object, bytes] = {}
        self._date = b""
        self.set_date(0.0)

    def set_date(self, wall_s: float) -> None:
        """Set the Date of the following responses; called about once a second."""
        self._date = encode_fields(((b"date", http_date(wall_s)),))

    def complete(self, status: int, headers: Headers, length: int) -> bytes:
        """Return the headers of a response of `length` bytes."""
        return self.streamed(status, headers) + encode_fields(((b"content-length", b"%d" % length),))

    def streamed(self, status: int, headers: Headers) -> bytes:
        """Return the headers of a response of unknown length."""
        http_responses[status] += 1
        key = (status, headers) if type(headers) is tuple and status == 200 else None
        prefix = self._prefixes.get(key)
        if prefix is None:
            # RFC 9113 8.2.1: names are lower case.
            fields = [(name.lower(), value) for name, value in headers]
            prefix = encode_fields([(b":status", b"%d" % status), *fields])
            if key is not None:
                if len(self._prefixes) >= _CACHED_PREFIXES:
                    self._prefixes.clear()
                self._prefixes[key] = prefix
        # Blocks without a dynamic table can be joined.
        return prefix + self._date


class RestSide:
    """What the connections of an endpoint share for REST: the route handler and the body limit."""

    def __init__(
        self, handle: Callable[[HttpContext], None], body_bytes: int = 1 << 34, reject: RejectEarly | None = None
    ) -> None:
        """`reject` checks requests before their bodies are read."""
        self.handle = handle
        self.reject = reject
        self.body_bytes = body_bytes
        self.note_invalid: NoteInvalid = note_invalid
        """Logs a request that is refused by its fields."""
        self.response_headers = Http2ResponseHeaders()


class Http2Endpoint(Endpoint[C]):
    """The service and the limits of the connections, and the open connections."""

    def __init__(
        self,
        service: GrpcService,
        loop: Loop,
        limits: Http2Limits | None = None,
        *,
        addresses: AddressLimit | None = None,
        rule: AccessRule | None = None,
        run_in_thread: RunInThread = run_at_once,
        rest: RestSide | None = None,
        budget: RequestBudget | None = None,
    ) -> None:
        """`addresses` counts the connections per address."""
        self.limits = limits = limits or Http2Limits()
        Endpoint.__init__(self, loop, limits.connections, addresses)
        self.service = service
        self.rule = rule
        """Decides which gRPC calls are served; None for all."""
        self.pages: WebPageRule | None = None
        """Refuses requests of foreign web pages; None for none."""
        self.rest = rest
        """Handles requests that are not gRPC; None if there is no REST."""
        self.call_type: Callable[..., Any] | None = None
        """The class of calls, if it is not `Http2Call` itself."""
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
