"""Error codes, and the exception that carries one to the protocol's response."""

import enum

MAX_EXCERPT_CHARACTERS = 200
_MAX_TEXT_CHARACTERS = 65_536


def excerpt(text: str) -> str:
    """Return text of a client for error messages and log lines.

    It is truncated to 200 characters, and unprintable characters are escaped, so that a client controls neither the
    length of a line nor a terminal.
    """
    if len(text) <= MAX_EXCERPT_CHARACTERS and text.isprintable():
        return text
    shown = text[:MAX_EXCERPT_CHARACTERS]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
    if len(text) <= MAX_EXCERPT_CHARACTERS and len(shown) <= MAX_EXCERPT_CHARACTERS:
        return shown
    return f"{shown[:MAX_EXCERPT_CHARACTERS]}..."


def encodable(text: str) -> str:
    """Return a text that UTF-8 can encode: file names that are not UTF-8 contain halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode()


class ErrorCode(enum.Enum):
    """Triton's codes and two more; `status_table` maps each to an HTTP status, a gRPC status and a log level."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7
    DEADLINE_EXCEEDED = 8
    """naiad: Triton has no code of its own for it."""
    PERMISSION_DENIED = 9
    """naiad: the client has no permission for the request."""

    @property
    def words(self) -> str:
        """The code in Triton's logs and reasons: `Invalid argument`, `Not found`."""
        name = "INVALID_ARGUMENT" if self is ErrorCode.INVALID_ARG else self.name
        return name.replace("_", " ").capitalize()


UNKNOWN_ID = "<id_unknown>"
"""Triton: stands for the id of a request without one. Responses have the id of the header and of the log instead."""


def request_prefix(request_id: str) -> str:
    """Return the prefix of Triton's messages about requests; `UNKNOWN_ID` stands for an absent id."""
    return f"[request id: {excerpt(request_id) or UNKNOWN_ID}] "


class FailureReason(enum.Enum):
    """The `reason` label of `nv_inference_request_failure`, for failures that statistics count."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


class Rejection(enum.Enum):
    """Why the server has not executed a request: the `reason` label of `naiad_request_rejected_total`."""

    QUEUE_FULL = "queue_full"
    TIMEOUT = "timeout"
    OVERLOAD = "overload"
    MEMORY = "memory"
    """The request budget has no room for the bytes of the request."""
    NOT_READY = "not_ready"
    UNKNOWN_MODEL = "unknown_model"
    INVALID = "invalid"
    CANCELLED = "cancelled"
    UNAUTHORIZED = "unauthorized"
    KEY_LIMIT = "key_limit"
    """The client's API key has used one of its limits."""


_REJECTIONS = {
    ErrorCode.NOT_FOUND: Rejection.INVALID,
    ErrorCode.INVALID_ARG: Rejection.INVALID,
    ErrorCode.UNAVAILABLE: Rejection.NOT_READY,
    ErrorCode.UNSUPPORTED: Rejection.INVALID,
    ErrorCode.ALREADY_EXISTS: Rejection.INVALID,
    ErrorCode.CANCELLED: Rejection.CANCELLED,
    ErrorCode.DEADLINE_EXCEEDED: Rejection.TIMEOUT,
    ErrorCode.PERMISSION_DENIED: Rejection.UNAUTHORIZED,
}
"""INTERNAL and UNKNOWN are failures of models and of the server."""


class InferError(Exception):
    """A failure with a code that every protocol can encode.

    `message` is complete text for the client: what failed, where, and the fix. `detail` goes to the log only (a
    traceback, a path). `reason` is set if the request was queued, so that statistics count it. `triton_code` is the
    code that Triton reports for the same failure; by default `code`. `protocol.status_table` chooses between the two.
    `rejection` is the reason in metrics; by default it follows from `code`.
    """

    has_begun: bool = True
    """Whether the request may have been executed, or part of it. What sets it to False knows that it was not: then
    another server, or another worker, may get the request. `with_message` returns an error that does not know it.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        detail: str = "",
        reason: FailureReason | None = None,
        triton_code: ErrorCode | None = None,
        rejection: Rejection | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail = detail
        self.reason = reason
        self.triton_code = triton_code or code
        self.rejection = rejection or _REJECTIONS.get(code)

    def with_message(self, message: str) -> "InferError":
        """Return the same failure with another message."""
        return InferError(
            self.code,
            message,
            detail=self.detail,
            reason=self.reason,
            triton_code=self.triton_code,
            rejection=self.rejection,
        )

    def of_part(self) -> "InferError":
        """Return the failure of a whole of which this is one part: its other parts may have been executed."""
        return self if self.has_begun else self.with_message(self.message)

    def __repr__(self) -> str:
        return f"InferError({self.code.name}, {self.message!r})"


def shortened(text: str) -> str:
    """Return a text without its middle if it is long: a tensor in an exception must not fill logs and responses."""
    excess = len(text) - _MAX_TEXT_CHARACTERS
    if excess <= 0:
        return text
    half = _MAX_TEXT_CHARACTERS // 2
    return f"{text[:half]}\n... {excess} characters are left out ...\n{text[-half:]}"


def cause_of(error: BaseException) -> str:
    """Return type and text of an exception of code that is not ours; its `__str__` may fail as well."""
    try:
        text = shortened(str(error))
    except BaseException as other:
        text = f"its text cannot be read, __str__ has raised {type(other).__name__}"
    return f"{type(error).__name__}: {text}"


class UnknownSequenceError(InferError):
    """A request continues a sequence that has not begun, or has ended."""


class UnloadableError(InferError):
    """A model exists and its configuration can be read, but it cannot be loaded.

    Triton: a load request gets INVALID_ARG, whereas a model that cannot be read at all is INTERNAL.
    """


class MisfitError(InferError):
    """An ensemble does not fit the members that are served: names, datatypes or shapes of their tensors."""


def invalid_argument(message: str) -> InferError:
    """Return an INVALID_ARG error with `message`."""
    return InferError(ErrorCode.INVALID_ARG, message)


def wrong_request(message: str) -> InferError:
    """Return an INVALID_ARG error for a mistake of the client that Triton reports as INTERNAL, a failed server."""
    return InferError(ErrorCode.INVALID_ARG, message, triton_code=ErrorCode.INTERNAL)


def not_found(message: str, rejection: Rejection = Rejection.INVALID) -> InferError:
    """Return a NOT_FOUND error with `message`."""
    return InferError(ErrorCode.NOT_FOUND, message, rejection=rejection)


def unavailable(message: str, rejection: Rejection = Rejection.NOT_READY) -> InferError:
    """Return an UNAVAILABLE error with `message`."""
    return InferError(ErrorCode.UNAVAILABLE, message, rejection=rejection)


def rejected(message: str) -> InferError:
    """Return an UNAVAILABLE error of a request that was not begun: another server may execute it."""
    error = unavailable(message)
    error.has_begun = False
    return error


def permission_denied(message: str) -> InferError:
    """Return a PERMISSION_DENIED error with `message`."""
    return InferError(ErrorCode.PERMISSION_DENIED, message)


def internal(message: str) -> InferError:
    """Return an INTERNAL error with `message`."""
    return InferError(ErrorCode.INTERNAL, message)


def unsupported(message: str) -> InferError:
    """Return an UNSUPPORTED error with `message`."""
    return InferError(ErrorCode.UNSUPPORTED, message)


def cancelled_request(message: str = "") -> InferError:
    """Return the error of a queued request whose client has cancelled it; Triton sends no text."""
    return InferError(ErrorCode.CANCELLED, message, reason=FailureReason.CANCELED)
