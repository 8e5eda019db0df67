"""Accounts of HTTP requests, over both versions of HTTP: a layer between transport and routes."""

import re
from collections.abc import Callable, Sequence

from naiad.core.errors import Rejection
from naiad.core.tensor import Buffer
from naiad.frontend.accounting.exchange import Accounting, Exchange
from naiad.frontend.context import CancelReason, HttpContext, HttpContextLayer, OnCancel, RejectEarly
from naiad.frontend.router import refuse
from naiad.protocol.json.infer.infer import leading_id
from naiad.telemetry.logs.access_log import AccessEntry
from naiad.telemetry.metrics.response_metrics import rejections
from naiad.wire.header_fields import Headers

CLIENT_CLOSED = 499
"""The status of a request whose client has disconnected."""
_MODEL = re.compile(r"/v2/(?:repository/)?models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?(?:/|$)")
_LOOKED_AT_BYTES = 1024
_REQUEST_ID = b"triton-request-id"


class HttpAccounting:
    """Wraps the handler of HTTP requests of one port."""

    def __init__(self, accounting: Accounting, handle: Callable[[HttpContext], None], reject: RejectEarly) -> None:
        self._accounting = accounting
        self._handle = handle
        self._reject = reject

    def handle(self, context: HttpContext) -> None:
        """Account for a request and pass it on, or refuse it because its key has reached a limit."""
        exchange = self._open(context, len(context.body))
        exceeded = exchange.begin()
        counted = AccountedContext(context, exchange)
        if exceeded is not None:
            rejections.count(Rejection.KEY_LIMIT)
            refuse(counted, 429, exceeded.message, ((b"Retry-After", b"%d" % exceeded.retry_after_s),))
            return
        try:
            self._handle(counted)
        except Exception:
            exchange.finish(500)
            raise

    def reject(self, context: HttpContext) -> None:
        """Account for a request that is refused without its body; others count when they are complete."""
        exchange = self._open(context, 0)
        exchange.usage = None
        self._reject(AccountedContext(context, exchange))

    def _open(self, context: HttpContext, size: int) -> Exchange:
        entry = AccessEntry(protocol="HTTP", method=context.method, path=context.path, status=0, bytes_in=size)
        credentials = context.headers.get(b"authorization")
        exchange = self._accounting.open(entry, context.client, credentials, context.arrival_ns)
        if self._accounting.log is not None:
            _name(entry, context, is_sampled=exchange.is_sampled)
        return exchange


def _name(entry: AccessEntry, context: HttpContext, *, is_sampled: bool) -> None:
    """Add the model and the request's id, as far as path and the beginning of the body contain them."""
    found = _MODEL.match(context.path)
    if found is not None and found["model"] != "stats":
        entry.model = found["model"]
        entry.version = found["version"] or ""
        if is_sampled:
            entry.request_id = leading_id(bytes(context.body[:_LOOKED_AT_BYTES]))


class AccountedContext(HttpContextLayer):
    """A context that accounts for its response."""

    __slots__ = ("_exchange", "_on_disconnect", "_status")

    def __init__(self, context: HttpContext, exchange: Exchange) -> None:
        HttpContextLayer.__init__(self, context)
        self._exchange = exchange
        self._on_disconnect: OnCancel | None = None
        self._status = 200
        context.on_disconnect = self._disconnected

    @property
    def key_name(self) -> str:
        """The name of the client's API key; empty without one."""
        return self._exchange.entry.key

    def note_control(self) -> None:
        """Note that the request changes something: it is always logged."""
        self._exchange.is_control = True

    @property
    def on_disconnect(self) -> OnCancel | None:
        """Called when the peer disconnects."""
        return self._on_disconnect

    @on_disconnect.setter
    def on_disconnect(self, callback: OnCancel | None) -> None:
        self._on_disconnect = callback

    def _disconnected(self, why: CancelReason) -> None:
        callback, self._on_disconnect = self._on_disconnect, None
        try:
            if callback is not None:
                callback(why)
        finally:
            self._exchange.finish(CLIENT_CLOSED)

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Send a response with a complete body."""
        exchange = self._exchange
        self._on_disconnect = None
        exchange.send(sum(map(len, parts)))
        self._context.respond(status, headers, parts)
        if status >= 400 and exchange.is_sampled:
            for name, value in headers:
                if name == _REQUEST_ID:
                    exchange.entry.request_id = value.decode("latin-1")
        exchange.finish(status)

    def start_stream(self, status: int, headers: Headers) -> None:
        """Start a response of unknown length."""
        self._status = status
        self._context.start_stream(status, headers)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send a piece of a streamed response."""
        self._exchange.send(sum(map(len, parts)))
        self._context.send(parts)

    def end(self) -> None:
        """End a streamed response."""
        self._on_disconnect = None
        self._context.end()
        self._exchange.finish(self._status)
