"""The metrics port: Prometheus text at `/metrics`."""

from collections.abc import Callable

from naiad.config.api_keys import METRICS
from naiad.frontend.access import AccessRule
from naiad.frontend.exchange import HttpExchange
from naiad.frontend.router import respond_error

_HEADERS = ((b"Content-Type", b"text/plain; charset=utf-8"),)


class MetricsRoute:
    """Answers every request of the metrics port."""

    def __init__(self, metrics_text: Callable[[], bytes], rule: AccessRule | None = None) -> None:
        self._metrics_text = metrics_text
        self._rule = rule

    def handle(self, exchange: HttpExchange) -> None:
        """Answer `GET /metrics`; Triton: other paths are 200 with nothing, other methods 405 everywhere."""
        refusal = None if self._rule is None else self._rule.refusal(METRICS, exchange.headers.get)
        if refusal is not None:
            respond_error(exchange, refusal.http_status, refusal.message, refusal.headers)
        elif exchange.method not in ("GET", "HEAD"):
            respond_error(exchange, 405, "Method Not Allowed")
        elif exchange.path == "/metrics":
            self._answer(exchange)
        else:
            exchange.respond(200, _HEADERS, ())

    def _answer(self, exchange: HttpExchange) -> None:
        respond_metrics(exchange, self._metrics_text())


def respond_metrics(exchange: HttpExchange, text: bytes) -> None:
    """Answer with an exposition."""
    exchange.respond(200, _HEADERS, (text,))
