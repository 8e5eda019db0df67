"""What the head of a request decides: REST or gRPC, refused or not, unary or streaming, timeout, compression."""

from naiad.frontend.access import AccessRule
from naiad.frontend.category import category_of_call
from naiad.frontend.exchange import GrpcService
from naiad.frontend.http1_head import HttpError
from naiad.frontend.http2_rest import RestHead
from naiad.protocol.status import status_of
from naiad.wire.grpc import GrpcError, encode_trailers, parse_timeout_ns, window_bits
from naiad.wire.http2_headers import RequestHead, encode_fields, is_grpc_content_type

_NOT_GRPC_TEXT = b"gRPC calls have the content-type application/grpc. REST is served on the HTTP port.\n"
_NOT_GRPC_BLOCK = encode_fields(
    (
        (b":status", b"415"),
        (b"content-type", b"text/plain"),
        (b"content-length", str(len(_NOT_GRPC_TEXT)).encode()),
    )
)
_CALL_PATHS = ("/inference.", "/grpc.")
"""Whoever asks for these means gRPC."""
_NOT_POST_BLOCK = encode_fields(((b":status", b"405"), (b"allow", b"POST")))


class CallPlan:
    """What a request's head says about its calls; derived once per head, since heads repeat."""

    __slots__ = ("encoding", "is_streaming", "is_unary", "refusal_block", "refusal_text", "rest", "timeout_ns")

    def __init__(self, *, is_streaming: bool = False, timeout_ns: int = 0, encoding: bytes | None = None) -> None:
        self.is_streaming = is_streaming
        self.is_unary = not is_streaming
        """One message is expected, and nothing is wrong with the head."""
        self.timeout_ns = timeout_ns
        """0 for none."""
        self.encoding = encoding
        self.refusal_block: bytes | None = None
        """The header block that answers every request with this head."""
        self.refusal_text = b""
        self.rest: RestHead | None = None
        """Set when the requests are not gRPC."""

    @classmethod
    def refusal(cls, block: bytes, text: bytes = b"") -> "CallPlan":
        """Return the plan of a head that is answered without its body."""
        plan = cls()
        plan.is_unary = False
        plan.refusal_block = block
        plan.refusal_text = text
        return plan


def make_plan(
    head: RequestHead, service: GrpcService, rule: AccessRule | None = None, *, serves_rest: bool = False
) -> CallPlan:
    """Return the plan of all requests with `head`; `rule` decides which gRPC calls are answered."""
    if not is_grpc_content_type(head.field(b"content-type")):
        if serves_rest and not head.path.startswith(_CALL_PATHS):
            return _rest_plan(head)
        return CallPlan.refusal(_NOT_GRPC_BLOCK, b"" if head.method == "HEAD" else _NOT_GRPC_TEXT)
    if head.method != "POST":
        return CallPlan.refusal(_NOT_POST_BLOCK)
    refused = _refused_call(head, service, rule)
    if refused is not None:
        return CallPlan.refusal(encode_trailers(*refused, is_only=True))
    timeout = head.field(b"grpc-timeout")
    encoding = head.field(b"grpc-encoding")
    try:
        window_bits(encoding)
        timeout_ns = 0 if timeout is None else parse_timeout_ns(timeout)
    except GrpcError as error:
        return CallPlan.refusal(encode_trailers(error.status, error.message, is_only=True))
    return CallPlan(is_streaming=service.is_streaming(head.path), timeout_ns=timeout_ns, encoding=encoding)


def _refused_call(head: RequestHead, service: GrpcService, rule: AccessRule | None) -> tuple[int, str] | None:
    """Return status and message for calls that are refused whatever their messages say."""
    refusal = None if rule is None else rule.refusal(category_of_call(head.path), head.field)
    if refusal is not None:
        return refusal.grpc_status, refusal.message
    unknown = service.refusal(head.path)
    return None if unknown is None else (status_of(unknown.code).grpc, unknown.message)


def _rest_plan(head: RequestHead) -> CallPlan:
    plan = CallPlan()
    plan.is_unary = False
    try:
        plan.rest = RestHead(head)
    except HttpError as error:
        text = b"" if head.method == "HEAD" else error.message.encode() + b"\n"
        fields = ((b":status", b"%d" % error.status), (b"content-type", b"text/plain"))
        return CallPlan.refusal(encode_fields(fields), text)
    return plan
