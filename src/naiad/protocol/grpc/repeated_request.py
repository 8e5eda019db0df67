"""A `ModelInferRequest` that a client sends many times: encoded once, but for its id and its place in a sequence.

    model_name, model_version | id, sequence parameters | other parameters, inputs, outputs, raw_input_contents
    `-------- head ---------'  `- identity_fields() --'   `------------------------ rest --------------------'

Protobuf merges repeated fields, so the parameters of a place in a sequence are encoded apart from the rest. The order
is that of the protobuf library, which servers decode fastest.
"""

from collections.abc import Sequence

from naiad.core.request import RequestHeader
from naiad.core.tensor import Buffer
from naiad.protocol import service_pb2 as pb
from naiad.protocol.grpc.client import encode_request
from naiad.protocol.grpc.walk import encode_varint

_ID = b"\x1a"
_PARAMETERS = b"\x22"
_SEQUENCE_ID = b"\x0a\x0bsequence_id\x12"
_INT64 = b"\x10"


class RepeatedRequest:
    """The parts of a request that stay the same."""

    __slots__ = ("byte_size", "head", "large", "rest")

    def __init__(self, header: RequestHeader, data: Sequence[Buffer]) -> None:
        """Encode a request without an id; raises as `encode_request` does."""
        names = pb.ModelInferRequest(model_name=header.model_name, model_version=header.model_version)
        self.head: bytes = names.SerializeToString()
        first, *others = [part for part in encode_request(header, "", data) if part] or [b""]
        self.rest = bytes(first[len(self.head) :])
        self.large = tuple(others)
        """Where the rest goes on with large inputs, which are not copied."""
        self.byte_size = len(first) + sum(map(len, others))


def _flag(name: str) -> bytes:
    message = pb.ModelInferRequest()
    message.parameters[name].bool_param = True
    return message.SerializeToString()


_START, _END = _flag("sequence_start"), _flag("sequence_end")


def identity_fields(request_id: str, sequence_id: int, *, starts_sequence: bool, ends_sequence: bool) -> bytes:
    """Return the fields of an id ("" for none) and of a place in a sequence (0 for none)."""
    fields = b""
    if request_id:
        text = request_id.encode()
        fields = _ID + encode_varint(len(text)) + text
    if sequence_id:
        parameter = _INT64 + encode_varint(sequence_id)
        entry = b"%b%c%b" % (_SEQUENCE_ID, len(parameter), parameter)
        fields += b"%b%c%b" % (_PARAMETERS, len(entry), entry)
        if starts_sequence:
            fields += _START
        if ends_sequence:
            fields += _END
    return fields
