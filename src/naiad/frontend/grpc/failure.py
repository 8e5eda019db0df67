"""Failed gRPC calls: status, message and log line, connected by the request id."""

from typing import Protocol
from urllib.parse import quote

from naiad.core.errors import MAX_EXCERPT_CHARACTERS, UNKNOWN_ID, InferError
from naiad.protocol.status import status_of
from naiad.telemetry.logs.log import log_request_failure, new_request_id
from naiad.telemetry.metrics.responses import rejections
from naiad.wire.header_fields import Headers

REQUEST_ID_TRAILER = b"triton-request-id"

_PRINTABLE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")


class StatusReceiver(Protocol):
    """A destination of a status: a call, or a layer in front of it."""

    def finish(self, status: int, message: str = "", trailers: Headers = ()) -> None:
        """End the call with a gRPC status."""


def finish(call: StatusReceiver, error: InferError) -> None:
    """End a control call with the status of `error`."""
    call.finish(status_of(error).grpc, error.message)


def finish_infer(call: StatusReceiver, request_id: str, model: str, version: str, error: InferError) -> None:
    """End an inference call with the status of `error` and log the failure, once.

    The log line and the trailer `triton-request-id` contain the same id: the client's, or a generated one if the
    client sent none.
    """
    request_id, message = log(request_id, model, version, error)
    # A header value is printable ASCII; an id is any text.
    trailer = quote(request_id, safe=_PRINTABLE).encode()
    call.finish(status_of(error).grpc, message, ((REQUEST_ID_TRAILER, trailer),))


def log(request_id: str, model: str, version: str, error: InferError) -> tuple[str, str]:
    """Log a failure once; return the logged id (the client's, truncated, or a generated one), and the message."""
    request_id = request_id or new_request_id()
    level = status_of(error).log_level
    rejections.count_error(error, model)
    log_request_failure(
        protocol="gRPC", request_id=request_id, model=model, version=version, error=error, level=level
    )
    request_id = request_id[:MAX_EXCERPT_CHARACTERS]
    return request_id, error.message.replace(UNKNOWN_ID, request_id, 1)
