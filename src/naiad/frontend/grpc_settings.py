"""The gRPC calls LogSettings and TraceSetting."""

from collections.abc import Callable, Mapping

from naiad.core.tensor import Buffer
from naiad.frontend.rest_settings import TracedEngine
from naiad.protocol.settings_grpc import (
    decode_log_settings,
    decode_trace_settings,
    encode_log_settings,
    encode_trace_settings,
)
from naiad.telemetry import log


class SettingsCalls:
    """The handlers of the calls; a request that changes nothing asks only."""

    def __init__(self, engine: TracedEngine) -> None:
        self._engine = engine

    def handlers(self) -> Mapping[str, Callable[[Buffer], bytes]]:
        """Return the handlers by the names of their methods."""
        return {"LogSettings": self._log_settings, "TraceSetting": self._trace_settings}

    def _log_settings(self, message: Buffer) -> bytes:
        log.change(decode_log_settings(message, log.settings()))
        return encode_log_settings(log.settings())

    def _trace_settings(self, message: Buffer) -> bytes:
        model, changes = decode_trace_settings(message)
        if changes:
            self._engine.change_trace_settings(model, changes)
        return encode_trace_settings(self._engine.trace_settings(model))
