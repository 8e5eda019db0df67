"""REST routes of the logging and trace settings."""

from collections.abc import Mapping
from typing import Protocol

from naiad.config.trace import TraceOptions
from naiad.frontend.exchange import HttpExchange
from naiad.frontend.router import JSON_HEADERS, Route
from naiad.protocol.settings_json import (
    decode_log_settings,
    decode_trace_settings,
    encode_log_settings,
    encode_trace_settings,
)
from naiad.telemetry import log
from naiad.telemetry.trace_settings import Changes


class TracedEngine(Protocol):
    """What is asked of the engine about traces."""

    def trace_settings(self, model: str = "") -> TraceOptions:
        """Return the settings of a model, or of the server. Raises InferError for an unknown model."""

    def change_trace_settings(self, model: str, changes: Changes) -> None:
        """Change settings. Raises InferError."""


class SettingsRoutes:
    """The actions of `/v2/logging` and `/v2[/models/{model}]/trace/setting`."""

    def __init__(self, engine: TracedEngine) -> None:
        self._engine = engine

    def routes(self) -> "list[Route]":
        """Return the routes."""
        traces = {"GET": self.trace_settings, "POST": self.change_trace_settings}
        return [
            Route(r"/v2/logging", {"GET": self.log_settings, "POST": self.change_log_settings}),
            Route(r"/v2/trace/setting", traces),
            Route(r"/v2/models/(?P<model>[^/]+)/trace/setting", traces),
        ]

    def log_settings(self, exchange: HttpExchange, arguments: Mapping[str, str]) -> None:
        """Answer with the log settings."""
        exchange.respond(200, JSON_HEADERS, (encode_log_settings(log.settings()),))

    def change_log_settings(self, exchange: HttpExchange, arguments: Mapping[str, str]) -> None:
        """Change log settings and answer with all of them."""
        log.change(decode_log_settings(exchange.body, log.settings()))
        self.log_settings(exchange, arguments)

    def trace_settings(self, exchange: HttpExchange, arguments: Mapping[str, str]) -> None:
        """Answer with the trace settings of a model, or of the server."""
        options = self._engine.trace_settings(arguments.get("model", ""))
        exchange.respond(200, JSON_HEADERS, (encode_trace_settings(options),))

    def change_trace_settings(self, exchange: HttpExchange, arguments: Mapping[str, str]) -> None:
        """Change trace settings and answer with all of them."""
        self._engine.change_trace_settings(arguments.get("model", ""), decode_trace_settings(exchange.body))
        self.trace_settings(exchange, arguments)
