"""The metrics port: Prometheus text at `/metrics`."""

import functools
import logging
from collections.abc import Callable, Generator, Sequence

from naiad.frontend.access.access import AccessRule
from naiad.frontend.context import HttpContext
from naiad.frontend.router import refuse, respond_error
from naiad.options.network.access_options import METRICS

_log = logging.getLogger(__name__)

Slices = Generator[None, None, Sequence[bytes]]
"""Work in slices that yields to the loop and returns the parts of an exposition."""

_SIGNPOST = b"# metrics are at /metrics; models are served on other ports\n"
_HEADERS = ((b"Content-Type", b"text/plain; charset=utf-8"),)


Respond = Callable[[HttpContext], object]
"""Responds to a request with an exposition."""


def metrics_route(respond: Respond, rule: AccessRule | None = None) -> Callable[[HttpContext], None]:
    """Return the function that handles every request of the metrics port.

    Triton: paths other than /metrics get 200 with a short hint, methods other than GET 405.
    """

    def handle(context: HttpContext) -> None:
        rejection = None if rule is None else rule.rejection(METRICS, context.headers.get)
        if rejection is not None:
            refuse(context, rejection.http_status, rejection.message, rejection.headers, rejection.key)
        elif context.method not in ("GET", "HEAD"):
            refuse(context, 405, "Method Not Allowed")
        elif context.path == "/metrics":
            respond(context)
        else:
            context.respond(200, _HEADERS, (_SIGNPOST,))

    return handle


def in_slices(slices: Callable[[], Slices], call_soon: Callable[[Callable[[], object]], object]) -> Respond:
    """Return a function that renders on the event loop, which serves its sockets between two slices of the work.

    `call_soon` of the loop: it calls back after the loop has polled its sockets.
    """

    def advance(context: HttpContext, work: Slices) -> None:
        try:
            next(work)
        except StopIteration as end:
            context.respond(200, _HEADERS, end.value)
        except Exception:
            _log.exception("rendering the metrics failed")
            respond_error(context, 500, "internal error; see the server log")
        else:
            call_soon(functools.partial(advance, context, work))

    return lambda context: advance(context, slices())


def respond_metrics(context: HttpContext, text: bytes) -> None:
    """Respond with an exposition."""
    context.respond(200, _HEADERS, (text,))
