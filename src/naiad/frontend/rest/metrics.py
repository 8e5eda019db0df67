"""The metrics port: Prometheus text at `/metrics`."""

import functools
import logging
from collections.abc import Callable, Generator, Sequence

from naiad.frontend.access import AccessRule
from naiad.frontend.context import HttpContext
from naiad.frontend.router import respond_error
from naiad.options.network.access import METRICS

_log = logging.getLogger(__name__)

Slices = Generator[None, None, Sequence[bytes]]
"""Work in slices that yields to the loop and returns the parts of an exposition."""

_SIGNPOST = b"# metrics are at /metrics; models are served on other ports\n"
_HEADERS = ((b"Content-Type", b"text/plain; charset=utf-8"),)


class MetricsRoute:
    """Handles every request of the metrics port."""

    def __init__(self, metrics_text: Callable[[], bytes], rule: AccessRule | None = None) -> None:
        self._metrics_text = metrics_text
        self._rule = rule

    def handle(self, context: HttpContext) -> None:
        """Respond to `GET /metrics`. Triton: other paths get 200 with a short hint, other methods 405."""
        rejection = None if self._rule is None else self._rule.rejection(METRICS, context.headers.get)
        if rejection is not None:
            respond_error(context, rejection.http_status, rejection.message, rejection.headers)
        elif context.method not in ("GET", "HEAD"):
            respond_error(context, 405, "Method Not Allowed")
        elif context.path == "/metrics":
            self._respond(context)
        else:
            context.respond(200, _HEADERS, (_SIGNPOST,))

    def _respond(self, context: HttpContext) -> None:
        respond_metrics(context, self._metrics_text())


class SlicedMetricsRoute(MetricsRoute):
    """Renders on the event loop, which serves its sockets between two slices of the work."""

    def __init__(
        self,
        slices: Callable[[], Slices],
        call_soon: Callable[[Callable[[], object]], object],
        rule: AccessRule | None = None,
    ) -> None:
        """`call_soon` of the loop: it calls back after the loop has polled its sockets."""
        super().__init__(bytes, rule)
        self._slices = slices
        self._call_soon = call_soon

    def _respond(self, context: HttpContext) -> None:
        self._advance(context, self._slices())

    def _advance(self, context: HttpContext, work: Slices) -> None:
        try:
            next(work)
        except StopIteration as end:
            context.respond(200, _HEADERS, end.value)
        except Exception:
            _log.exception("rendering the metrics failed")
            respond_error(context, 500, "internal error; see the server log")
        else:
            self._call_soon(functools.partial(self._advance, context, work))


def respond_metrics(context: HttpContext, text: bytes) -> None:
    """Respond with an exposition."""
    context.respond(200, _HEADERS, (text,))
