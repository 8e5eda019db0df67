"""Failed inference requests: one log line, and one response or status with the same id."""

from http import HTTPStatus
from typing import Protocol
from urllib.parse import quote

from naiad.core.errors import MAX_EXCERPT_CHARACTERS, UNKNOWN_ID, ErrorCode, InferError, Rejection
from naiad.core.request import InferRequest
from naiad.core.tensor import Buffer
from naiad.engine.engine import Engine
from naiad.engine.on_demand.held_requests import ColdModelError
from naiad.frontend.context import CancelReason, HttpContext, version_of
from naiad.frontend.reply_headers import JSON_HEADERS, REFUSED, RETRY_AFTER
from naiad.protocol.error_body import error_body
from naiad.protocol.json.document import SHORT_BYTES
from naiad.protocol.json.infer.infer import leading_id
from naiad.protocol.json.tree import parse_infer_document
from naiad.protocol.status_table import status_of
from naiad.telemetry.logs.log import log_request_failure, new_request_id
from naiad.telemetry.metrics.response_metrics import rejections
from naiad.wire.header_fields import Headers

_ID_SAFE = " !#$&'()*+,-./:;<=>?@[]^_`{|}~"
"""Printable ASCII that may stand in a header value unchanged; the rest is percent-encoded."""
_TRAILER_SAFE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
"""The same for a trailer."""
_REQUEST_ID = b"triton-request-id"
_LOOKED_AT_BYTES = 1024


def respond(context: HttpContext, request_id: str, model: str, version: str, error: InferError) -> None:
    """Log a failure and respond with it; a request without an id gets one.

    A model on demand that is not loaded is no failure: its error is raised, and the router holds the request.
    """
    if isinstance(error, ColdModelError):
        raise error
    refuse(context, request_id, model, version, error)


def refuse(context: HttpContext, request_id: str, model: str, version: str, error: InferError) -> None:
    """Log a failure of any kind and respond with it."""
    request_id, message = log("HTTP", request_id, model, version, error, getattr(context, "key_name", ""))
    status = status_of(error).http
    headers: Headers = (*JSON_HEADERS, id_header(request_id))
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers = (*headers, RETRY_AFTER, REFUSED) if _is_refused(error) else (*headers, RETRY_AFTER)
    context.respond(status, headers, (error_body(context.path, status, message, error),))


def abandon(engine: Engine, request: InferRequest, why: CancelReason) -> None:
    """Cancel and log a request whose client has disconnected; there is no response."""
    waited = engine.inference.cancel(request)
    log("HTTP", request.id, request.header.model_name, version_of(request), why.error(waited=waited))


def log(
    protocol: str, request_id: str, model: str, version: str, error: InferError, key: str = ""
) -> tuple[str, str]:
    """Log a failure once; return the logged id (the client's, truncated, or a generated one), and the message.

    `key` is the name of the client's API key.
    """
    request_id = request_id or new_request_id()
    level = status_of(error).log_level
    rejections.count_error(error, model)
    log_request_failure(
        protocol=protocol, request_id=request_id, model=model, version=version, error=error, level=level, key=key
    )
    request_id = request_id[:MAX_EXCERPT_CHARACTERS]
    return request_id, error.message.replace(UNKNOWN_ID, request_id, 1)


def _is_refused(error: InferError) -> bool:
    """Return whether another server may execute a request; not if the time that it wanted to wait is over."""
    return not error.has_begun and error.code is ErrorCode.UNAVAILABLE and error.rejection is not Rejection.TIMEOUT


def id_header(request_id: str) -> tuple[bytes, bytes]:
    """Return the header field that carries the id of a request."""
    return _REQUEST_ID, quote(request_id, _ID_SAFE, errors="replace").encode()


def find_id(text: Buffer) -> str:
    """Return the id of a request whose JSON could not be decoded, or an empty text.

    Searches only the beginning of a long document, where clients write the id.
    """
    if len(text) > SHORT_BYTES:
        return leading_id(bytes(text[:_LOOKED_AT_BYTES]))
    try:
        found = parse_infer_document(text).get("id", "")
    except InferError:
        return ""
    return found if isinstance(found, str) else ""


class StatusReceiver(Protocol):
    """A destination of a status: a call, or a layer in front of it."""

    def finish(self, status: int, message: str = "", trailers: Headers = ()) -> None:
        """End the call with a gRPC status."""


def finish(call: StatusReceiver, error: InferError) -> None:
    """End a control call with the status of `error`; raise that of a model on demand that is not loaded."""
    if isinstance(error, ColdModelError):
        raise error
    call.finish(status_of(error).grpc, error.message)


def finish_infer(call: StatusReceiver, request_id: str, model: str, version: str, error: InferError) -> None:
    """End an inference call with the status of `error` and log the failure, once.

    The log line and the trailer `triton-request-id` contain the same id: the client's, or a generated one if the
    client sent none. A model on demand that is not loaded is no failure: its error is raised, and the service holds
    the call.
    """
    if isinstance(error, ColdModelError):
        raise error
    refuse_infer(call, request_id, model, version, error)


def refuse_infer(call: StatusReceiver, request_id: str, model: str, version: str, error: InferError) -> None:
    """End an inference call with the status of any `error`, and log the failure."""
    request_id, message = log("gRPC", request_id, model, version, error, getattr(call, "key_name", ""))
    # A header value is printable ASCII; an id is any text.
    trailers: Headers = ((_REQUEST_ID, quote(request_id, safe=_TRAILER_SAFE).encode()),)
    if _is_refused(error):
        trailers = (*trailers, REFUSED)
    call.finish(status_of(error).grpc, message, trailers)
