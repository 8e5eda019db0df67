"""Requests from web pages of other origins (the CORS protocol of the Fetch standard); off unless origins are
configured.

Preflight requests are handled here, before routes and access rules: browsers send them without credentials.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from naiad.core.errors import excerpt
from naiad.core.tensor import Buffer
from naiad.frontend.exchange import HttpContext, HttpContextLayer, Refuse
from naiad.wire.header_fields import Headers

_log = logging.getLogger(__name__)

ANY = "*"
_METHODS = b"GET, HEAD, POST, OPTIONS"
_EXPOSED = b"Inference-Header-Content-Length, triton-request-id, endpoint-load-metrics, WWW-Authenticate"
_PREFLIGHT_VALID_S = b"7200"  # the maximum in browsers
_VARY_PREFLIGHT = b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers"
_MAX_REQUESTED_BYTES = 4096


class Cors:
    """Wraps a handler of HTTP requests."""

    def __init__(self, origins: Collection[str], handle: Callable[[HttpContext], None], refuse: Refuse) -> None:
        """`origins` as browsers write them, or `*` for all."""
        self._handle = handle
        self._refuse = refuse
        self._any = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)
        # With the same response for all origins a cache needs no Vary field.
        self._vary: Headers = () if self._any else ((b"Vary", b"Origin"),)

    def handle(self, exchange: HttpContext) -> None:
        """Respond to a preflight request; pass on all others, with fields that let the page read the response."""
        self._pass(exchange, self._handle)

    def refuse(self, exchange: HttpContext) -> None:
        """Do the same for a request without its body, which is rejected if its headers are enough for that."""
        self._pass(exchange, self._refuse)

    def _pass(self, exchange: HttpContext, handle: Callable[[HttpContext], object]) -> None:
        origin = exchange.headers.get(b"origin")
        allowed = origin is not None and (self._any or origin in self._origins)
        if origin is not None and not allowed:
            _log.debug(
                "HTTP request of origin '%s', which --http-cors-origin does not name",
                excerpt(origin.decode("latin-1")),
            )
        if not allowed or origin is None:
            handle(_Annotated(exchange, self._vary) if self._vary else exchange)
            return
        answer_origin = (b"Access-Control-Allow-Origin", b"*" if self._any else origin)
        if exchange.method == "OPTIONS" and b"access-control-request-method" in exchange.headers:
            # Not 204, which must not have a Content-Length.
            exchange.respond(200, (answer_origin, *_preflight(exchange.headers)), ())
        else:
            exposed = (b"Access-Control-Expose-Headers", _EXPOSED)
            handle(_Annotated(exchange, (answer_origin, exposed, *self._vary)))


def _preflight(headers: Mapping[bytes, bytes]) -> Headers:
    answer = [
        (b"Access-Control-Allow-Methods", _METHODS),
        (b"Access-Control-Max-Age", _PREFLIGHT_VALID_S),
        (b"Vary", _VARY_PREFLIGHT),
    ]
    # Accept all requested fields: operators choose the names of restrictions and forwarded fields.
    requested = headers.get(b"access-control-request-headers", b"")
    if requested and len(requested) <= _MAX_REQUESTED_BYTES:
        answer.append((b"Access-Control-Allow-Headers", requested))
    return tuple(answer)


class _Annotated(HttpContextLayer):
    """A context that adds header fields to its response."""

    __slots__ = ("_more",)

    def __init__(self, exchange: HttpContext, more: Headers) -> None:
        HttpContextLayer.__init__(self, exchange)
        self._more = more

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Send a response with a complete body."""
        self._exchange.respond(status, (*headers, *self._more), parts)

    def start_stream(self, status: int, headers: Headers) -> None:
        """Start a response of unknown length."""
        self._exchange.start_stream(status, (*headers, *self._more))
