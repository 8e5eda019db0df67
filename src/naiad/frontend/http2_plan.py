"""What the head of a gRPC request decides: refused or not, unary or streaming, timeout, compression."""

from naiad.frontend.access import AccessRule
from naiad.frontend.category import category_of_call
from naiad.frontend.exchange import GrpcService
from naiad.wire.grpc import GrpcError, encode_trailers, is_grpc_content_type, parse_timeout_ns, window_bits
from naiad.wire.http2_headers import RequestHead, encode_fields

_NOT_GRPC_TEXT = b"This port speaks gRPC: content-type must be application/grpc. REST is served on the HTTP port.\n"
_NOT_GRPC_BLOCK = encode_fields(
    (
        (b":status", b"415"),
        (b"content-type", b"text/plain"),
        (b"content-length", str(len(_NOT_GRPC_TEXT)).encode()),
    )
)
_NOT_POST_BLOCK = encode_fields(((b":status", b"405"), (b"allow", b"POST")))


class CallPlan:
    """What a request's head says about its calls; derived once per head, since heads repeat."""

    __slots__ = ("encoding", "is_streaming", "is_unary", "refusal_block", "refusal_text", "timeout_ns")

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

    @classmethod
    def refusal(cls, block: bytes, text: bytes = b"") -> "CallPlan":
        """Return the plan of a head that is answered without its body."""
        plan = cls()
        plan.is_unary = False
        plan.refusal_block = block
        plan.refusal_text = text
        return plan


def make_plan(head: RequestHead, service: GrpcService, rule: AccessRule | None = None) -> CallPlan:
    """Return the plan of all requests with `head`; `rule` decides which are answered."""
    # REST over HTTP/2 would branch off here.
    if not is_grpc_content_type(head.field(b"content-type")):
        return CallPlan.refusal(_NOT_GRPC_BLOCK, b"" if head.method == "HEAD" else _NOT_GRPC_TEXT)
    if head.method != "POST":
        return CallPlan.refusal(_NOT_POST_BLOCK)
    if rule is not None:
        refusal = rule.refusal(category_of_call(head.path), head.field)
        if refusal is not None:
            return CallPlan.refusal(encode_trailers(refusal.grpc_status, refusal.message, is_only=True))
    timeout = head.field(b"grpc-timeout")
    encoding = head.field(b"grpc-encoding")
    try:
        window_bits(encoding)
        timeout_ns = 0 if timeout is None else parse_timeout_ns(timeout)
    except GrpcError as error:
        return CallPlan.refusal(encode_trailers(error.status, error.message, is_only=True))
    return CallPlan(is_streaming=service.is_streaming(head.path), timeout_ns=timeout_ns, encoding=encoding)
