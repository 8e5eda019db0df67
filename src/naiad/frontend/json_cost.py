"""What large JSON bodies of inference cost: told to their clients, and now and then to the log."""

import logging
import time

_log = logging.getLogger(__name__)

LARGE_JSON_BYTES = 1 << 20
"""Shorter bodies are read in a few milliseconds at most, and nobody needs to be told."""
_PAUSE_NS = 60_000_000_000
"""At most one line of the log within this time, whatever the number of models and clients."""


class JsonCost:
    """Says how long large JSON bodies took to be read, which the binary form of the same tensors does not."""

    def __init__(self) -> None:
        self._quiet_until_ns = 0

    def tell(self, model: str, size_bytes: int, decode_ns: int) -> tuple[bytes, bytes]:
        """Return the field that tells the client what its JSON cost; log it if nothing was said lately."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._quiet_until_ns:
            self._quiet_until_ns = now_ns + _PAUSE_NS
            _log.info(
                "model '%s': %.1f MB of JSON took %.1f ms to read; the binary form of a tensor takes almost nothing: "
                "binary_data in tritonclient, Inference-Header-Content-Length over HTTP, or gRPC",
                model,
                size_bytes / 1e6,
                decode_ns / 1e6,
            )
        return b"Server-Timing", b"decode;dur=%.1f" % (decode_ns / 1e6)
