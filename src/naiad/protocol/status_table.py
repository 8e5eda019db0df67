"""The table that maps error codes to HTTP statuses, gRPC statuses and log levels, and back."""

import logging
from dataclasses import dataclass

from naiad.core.errors import ErrorCode, InferError

NOT_BEGUN = b"naiad-not-begun"
"""Header field of a 503, and trailer of a call with UNAVAILABLE: the request was not begun, and another server may
execute it.
"""


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """The HTTP status, gRPC status and log level of an error."""

    http: int
    grpc: int
    """The gRPC status number."""
    log_level: int
    """A level of the standard `logging` module."""


_TABLE: dict[ErrorCode, ErrorStatus] = {
    ErrorCode.UNKNOWN: ErrorStatus(400, 2, logging.ERROR),
    ErrorCode.INTERNAL: ErrorStatus(500, 13, logging.ERROR),
    ErrorCode.NOT_FOUND: ErrorStatus(404, 5, logging.WARNING),
    ErrorCode.INVALID_ARG: ErrorStatus(400, 3, logging.WARNING),
    ErrorCode.UNAVAILABLE: ErrorStatus(503, 14, logging.WARNING),
    ErrorCode.UNSUPPORTED: ErrorStatus(501, 12, logging.WARNING),
    ErrorCode.ALREADY_EXISTS: ErrorStatus(400, 6, logging.WARNING),
    # Triton: 400, as for a wrong request.
    ErrorCode.CANCELLED: ErrorStatus(499, 1, logging.WARNING),
    ErrorCode.DEADLINE_EXCEEDED: ErrorStatus(504, 4, logging.WARNING),
    ErrorCode.PERMISSION_DENIED: ErrorStatus(403, 7, logging.WARNING),
}


_uses_triton_codes = False


def use_triton_codes(is_wanted: bool) -> None:
    """Set --triton-status-codes for this process, once, before it serves."""
    global _uses_triton_codes  # noqa: PLW0603 - one server a process, as with the log
    _uses_triton_codes = is_wanted


def status_of(error: InferError) -> ErrorStatus:
    """Return the statuses and the log level of an error.

    Triton reports some mistakes of clients as failures of the server (500, INTERNAL). Retries and alerts rely on the
    difference, so they get their own code here unless Triton's codes are wanted.
    """
    return _TABLE[error.triton_code if _uses_triton_codes else error.code]


_CODES_OF_GRPC = {
    **{status.grpc: code for code, status in _TABLE.items()},
    8: ErrorCode.UNAVAILABLE,  # RESOURCE_EXHAUSTED
    16: ErrorCode.PERMISSION_DENIED,  # UNAUTHENTICATED
}
_CODES_OF_HTTP = {
    400: ErrorCode.INVALID_ARG,
    401: ErrorCode.PERMISSION_DENIED,
    408: ErrorCode.DEADLINE_EXCEEDED,
    413: ErrorCode.INVALID_ARG,
    **{status.http: code for code, status in _TABLE.items() if status.http != 400},
}


def code_of_grpc(status: int) -> ErrorCode:
    """Return the error code that a gRPC status stands for; UNKNOWN for a status without one."""
    return _CODES_OF_GRPC.get(status, ErrorCode.UNKNOWN)


def code_of_http(status: int) -> ErrorCode:
    """Return the error code that an HTTP status stands for; several share 400, which is INVALID_ARG."""
    return _CODES_OF_HTTP.get(status, ErrorCode.UNKNOWN)
