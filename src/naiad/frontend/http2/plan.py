"""What request headers determine about a call, decided once for each header block, because blocks repeat.

REST or gRPC, rejected or not, unary or streaming, timeout, compression.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from naiad.core.errors import Rejection
from naiad.frontend.access.access import AccessRule, category_of_call
from naiad.frontend.access.web_pages import WebPageRule
from naiad.frontend.context import GrpcService
from naiad.frontend.http2.endpoint import RestHeaders
from naiad.protocol.status_table import status_of
from naiad.telemetry.metrics.response_metrics import grpc_responses, http_responses, rejections
from naiad.telemetry.server_timing import TIMING_FIELD, TIMING_VALUE
from naiad.wire.grpc import GrpcError, GrpcStatus, encode_trailers, parse_timeout_ns, window_bits
from naiad.wire.http1 import HttpError
from naiad.wire.http2.headers import RequestHead, encode_fields, is_grpc_content_type

_NOT_GRPC_TEXT = b"gRPC calls have the content-type application/grpc. REST is served on the HTTP port.\n"
_NOT_GRPC_BLOCK = encode_fields(
    (
        (b":status", b"415"),
        (b"content-type", b"text/plain"),
        (b"content-length", str(len(_NOT_GRPC_TEXT)).encode()),
    )
)
_CALL_PATHS = ("/inference.", "/grpc.")
"""Paths with these prefixes are gRPC."""
_NOT_POST_BLOCK = encode_fields(((b":status", b"405"), (b"allow", b"POST")))


class RejectedBy(NamedTuple):
    """Why requests are rejected by their header fields."""

    status: GrpcStatus | int
    """A gRPC status, or the status of HTTP."""
    message: str
    key: str = ""
    """The name of the client's API key."""


_NO_REJECTION = RejectedBy(GrpcStatus.OK, "")


class CallPlan:
    """What the request headers determine about a call; computed once per header block, because blocks repeat."""

    __slots__ = (
        "count_rejection",
        "encoding",
        "has_settings",
        "is_streaming",
        "is_timed",
        "is_unary",
        "rejected_by",
        "rejection_block",
        "rejection_text",
        "rest",
        "timeout_ns",
    )

    def __init__(
        self,
        *,
        is_streaming: bool = False,
        timeout_ns: int = 0,
        encoding: bytes | None = None,
        is_timed: bool = False,
    ) -> None:
        self.is_timed = is_timed
        self.has_settings = bool(timeout_ns) or is_timed
        """Each call has a deadline, or gets its timing."""
        self.is_streaming = is_streaming
        self.is_unary = not is_streaming
        """One message is expected, and the headers are valid."""
        self.timeout_ns = timeout_ns
        """0 for none."""
        self.encoding = encoding
        self.rejection_block: bytes | None = None
        """The header block of every response to these request headers."""
        self.rejection_text = b""
        self.count_rejection: Callable[[], None] = _count_nothing
        """Counts one of these responses."""
        self.rejected_by = _NO_REJECTION
        """Status, message and key's name, for the log."""
        self.rest: RestHeaders | None = None
        """Set if the requests are not gRPC."""

    @classmethod
    def rejection(cls, block: bytes, text: bytes = b"", *, count: Callable[[], None], by: RejectedBy) -> "CallPlan":
        """Return the plan for requests that are rejected without their body."""
        plan = cls()
        plan.rejected_by = by
        plan.count_rejection = count
        plan.is_unary = False
        plan.rejection_block = block
        plan.rejection_text = text
        return plan


def _count_nothing() -> None:
    """Replaces the count of a plan that rejects nothing."""


def _count_http(status: int) -> None:
    http_responses[status] += 1


def _count_grpc(status: int) -> None:
    grpc_responses[status] += 1


def _count_unauthorized(status: int) -> None:
    _count_grpc(status)
    rejections.count(Rejection.UNAUTHORIZED)


def _grpc_rejection(status: int, message: str, count: Callable[[int], None] = _count_grpc, key: str = "") -> CallPlan:
    block = encode_trailers(status, message, is_only=True)
    by = RejectedBy(GrpcStatus(status), message, key)
    return CallPlan.rejection(block, count=partial(count, status), by=by)


def make_plan(
    head: RequestHead,
    service: GrpcService,
    rule: AccessRule | None = None,
    pages: WebPageRule | None = None,
    *,
    serves_rest: bool = False,
) -> CallPlan:
    """Return the plan for all requests with the headers `head`.

    `rule` decides which gRPC calls are served, `pages` which requests of web pages are.
    """
    if not is_grpc_content_type(head.field(b"content-type")):
        if serves_rest and not head.path.startswith(_CALL_PATHS):
            return _rest_plan(head, pages)
        text = b"" if head.method == "HEAD" else _NOT_GRPC_TEXT
        by = RejectedBy(415, "not gRPC, and REST is served on another port")
        return CallPlan.rejection(_NOT_GRPC_BLOCK, text, count=partial(_count_http, 415), by=by)
    if head.method != "POST":
        by = RejectedBy(405, "gRPC takes POST")
        return CallPlan.rejection(_NOT_POST_BLOCK, count=partial(_count_http, 405), by=by)
    rejected = _call_of_page(head, pages) or _rejected_call(head, service, rule)
    if rejected is not None:
        return rejected
    timeout = head.field(b"grpc-timeout")
    encoding = head.field(b"grpc-encoding")
    try:
        window_bits(encoding)
        timeout_ns = 0 if timeout is None else parse_timeout_ns(timeout)
    except GrpcError as error:
        return _grpc_rejection(error.status, error.message)
    is_streaming = service.is_streaming(head.path)
    return CallPlan(
        is_streaming=is_streaming,
        timeout_ns=timeout_ns,
        encoding=encoding,
        is_timed=not is_streaming and head.field(TIMING_FIELD) == TIMING_VALUE,
    )


def _call_of_page(head: RequestHead, pages: WebPageRule | None) -> CallPlan | None:
    """Return the plan of calls that a foreign web page seems to make, otherwise None."""
    try:
        if pages is not None:
            pages.check_call(head.path, head.authority, head.field)
    except HttpError as error:
        return _grpc_rejection(GrpcStatus.PERMISSION_DENIED, error.message, _count_unauthorized)
    return None


def _rejected_call(head: RequestHead, service: GrpcService, rule: AccessRule | None) -> CallPlan | None:
    """Return the plan of calls that are rejected without looking at their messages, otherwise None."""
    rejection = None if rule is None else rule.rejection(category_of_call(head.path), head.field)
    if rejection is not None:
        return _grpc_rejection(rejection.grpc_status, rejection.message, _count_unauthorized, rejection.key)
    unknown = service.rejection(head.path)
    return None if unknown is None else _grpc_rejection(status_of(unknown).grpc, unknown.message)


def _rest_plan(head: RequestHead, pages: WebPageRule | None) -> CallPlan:
    plan = CallPlan()
    plan.is_unary = False
    plan.rest = RestHeaders(head, pages)
    return plan
