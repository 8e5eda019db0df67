"""Compressed answers of gRPC inference (--grpc-infer-response-compression-level)."""

import functools
import logging
from collections.abc import Sequence

from naiad.core.errors import internal
from naiad.core.tensor import Buffer
from naiad.frontend import grpc_failure
from naiad.frontend.exchange import GrpcCall
from naiad.frontend.side_threads import RunAside
from naiad.wire.compression import MAX_INLINE_BYTES, WINDOW_BITS, compress
from naiad.wire.grpc import ENCODINGS

_log = logging.getLogger(__name__)

LEVELS = {"low": 1, "medium": 6, "high": 9}
"""Name of the flag to zlib's level."""
_ACCEPTS = b"grpc-accept-encoding"
_MIN_ANSWER_BYTES = 256
"""Smaller messages are sent as they are: compressed they would take longer, and as many packets."""


class GrpcCompression:
    """Answers unary calls with compressed messages, if their clients accept them."""

    def __init__(self, level: int, run_aside: RunAside) -> None:
        self._level = level
        self._run_aside = run_aside

    def respond(self, call: GrpcCall, parts: Sequence[Buffer]) -> None:
        """Answer a call; a large message is compressed beside the loop."""
        size = sum(map(len, parts))
        encoding = accepted_encoding(call) if size >= _MIN_ANSWER_BYTES else None
        if encoding is None:
            call.respond(parts)
            return
        work = functools.partial(compress, parts, WINDOW_BITS[encoding], self._level)
        if size <= MAX_INLINE_BYTES:
            call.respond_compressed(work(), encoding)
        else:
            self._run_aside(
                work,
                functools.partial(_respond, call, encoding),
                functools.partial(_failed, call),
            )


def _respond(call: GrpcCall, encoding: bytes, message: bytes) -> None:
    call.respond_compressed(message, encoding)


def _failed(call: GrpcCall, error: Exception) -> None:
    _log.error("compressing an answer to %s failed", call.path, exc_info=error)
    grpc_failure.finish(call, internal(f"internal error of the server in {call.path}; its log says more"))


def accepted_encoding(call: GrpcCall) -> bytes | None:
    """Return the encoding for the messages of a call's answer, None for none."""
    for name, value in call.metadata:
        if name == _ACCEPTS:
            accepted = [entry.strip() for entry in value.split(b",")]
            return next((encoding for encoding in ENCODINGS if encoding in accepted), None)
    return None
