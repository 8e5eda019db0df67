"""An inference request in JSON that a client sends many times: encoded once but for id and place in a sequence."""

from collections.abc import Sequence

import orjson

from naiad.core.request import RequestHeader
from naiad.core.tensor import Buffer
from naiad.protocol.json.client import encode_request

_PARAMETERS = b'{"parameters":{'


class RepeatedRequest:
    """The parts of a request that stay the same."""

    __slots__ = ("_members", "_parameters", "is_binary", "tail", "tail_bytes", "text")

    def __init__(self, header: RequestHeader, data: Sequence[Buffer], *, binary_inputs: bool) -> None:
        """Encode a request without an id; raises as `encode_request` does."""
        (text, *tail), json_length = encode_request(header, "", data, binary_inputs=binary_inputs)
        self.text = bytes(text)
        """The JSON without an id or a place in a sequence."""
        self.is_binary = json_length is not None
        """A request with it has the length of its JSON in a header field, Inference-Header-Content-Length."""
        self.tail = tuple(tail)
        """Binary data behind the JSON."""
        self.tail_bytes = sum(map(len, tail))
        has_parameters = self.text.startswith(_PARAMETERS)
        self._parameters = b"," + self.text[len(_PARAMETERS) :] if has_parameters else b"}," + self.text[1:]
        """What follows the parameters of a sequence."""
        self._members = self.text[1:]

    def varied(self, request_id: str, sequence_id: int, *, starts_sequence: bool, ends_sequence: bool) -> bytes:
        """Return the JSON with an id ("" for none) and a place in a sequence (0 for none)."""
        begin = b'{"id":%b,' % orjson.dumps(request_id) if request_id else b"{"
        if not sequence_id:
            return begin + self._members
        return b'%b"parameters":{"sequence_id":%d%b%b%b' % (
            begin,
            sequence_id,
            b',"sequence_start":true' if starts_sequence else b"",
            b',"sequence_end":true' if ends_sequence else b"",
            self._parameters,
        )
