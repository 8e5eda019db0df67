"""Requests from web pages of other origins (the CORS protocol of the Fetch standard); off unless origins are
configured.

Preflight requests are handled here, before routes and access rules: browsers send them without credentials.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from naiad.core.errors import excerpt
from naiad.core.tensor import Buffer
from naiad.frontend.context import HttpContext, HttpContextLayer, RejectEarly
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

    def __init__(self, origins: Collection[str], handle: Callable[[HttpContext], None], reject: RejectEarly) -> None:
        """`origins` as browsers write them, or `*` for all."""
        self._handle = handle
        self._reject = reject
        self._any = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)
        # With the same response for all origins a cache needs no Vary field.
        self._vary: Headers = () if self._any else ((b"Vary", b"Origin"),)

    def handle(self, context: HttpContext) -> None:
        """Respond to a preflight request; pass on all others, with fields that let the page read the response."""
        self._pass(context, self._handle)

    def reject(self, context: HttpContext) -> None:
        """Do the same for a request without its body, which is rejected if its headers are enough for that."""
        self._pass(context, self._reject)

    def _pass(self, context: HttpContext, handle: Callable[[HttpContext], object]) -> None:
        origin = context.headers.get(b"origin")
        allowed = origin is not None and (self._any or origin in self._origins)
        if origin is not None and not allowed:
            _log.debug(
                "HTTP request of origin '%s', which --http-cors-origin does not name",
                excerpt(origin.decode("latin-1")),
            )
        if not allowed or origin is None:
            handle(_Annotated(context, self._vary) if self._vary else context)
            return
        fields: Headers = ((b"Access-Control-Allow-Origin", b"*"),)
        if not self._any:
            # Only origins that the operator names may send the cookies and keys of their users.
            fields = ((b"Access-Control-Allow-Origin", origin), (b"Access-Control-Allow-Credentials", b"true"))
        if context.method == "OPTIONS" and b"access-control-request-method" in context.headers:
            # Not 204, which must not have a Content-Length.
            context.respond(200, (*fields, *_preflight(context.headers)), ())
        else:
            exposed = (b"Access-Control-Expose-Headers", _EXPOSED)
            handle(_Annotated(context, (*fields, exposed, *self._vary)))


def _preflight(headers: Mapping[bytes, bytes]) -> Headers:
    fields = [
        (b"Access-Control-Allow-Methods", _METHODS),
        (b"Access-Control-Max-Age", _PREFLIGHT_VALID_S),
        (b"Vary", _VARY_PREFLIGHT),
    ]
    # Accept all requested fields: operators choose the names of restrictions and forwarded fields.
    requested = headers.get(b"access-control-request-headers", b"")
    if requested and len(requested) <= _MAX_REQUESTED_BYTES:
        fields.append((b"Access-Control-Allow-Headers", requested))
    return tuple(fields)


class _Annotated(HttpContextLayer):
    """A context that adds header fields to its response."""

    __slots__ = ("_more",)

    def __init__(self, context: HttpContext, more: Headers) -> None:
        HttpContextLayer.__init__(self, context)
        self._more = more

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Send a response with a complete body."""
        self._context.respond(status, (*headers, *self._more), parts)

    def start_stream(self, status: int, headers: Headers) -> None:
        """Start a response of unknown length."""
        self._context.start_stream(status, (*headers, *self._more))
