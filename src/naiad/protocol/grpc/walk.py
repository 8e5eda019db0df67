"""A `ModelInferRequest` cut into its small part and its tensor data, field by field and bounded.

A parser of protocol buffers makes an object for each of the million empty messages that a few bytes of compressed
data can announce. Therefore the fields are counted first: the walk ends with an error when a message has more fields
than a request for the model can have. Raw contents and typed contents are cut out as views; the remaining message is
small, and the library parses it.

    model_name ... inputs { name shape contents } ... raw_input_contents
    '------ envelope: parsed by the library ---'      '-- views ------'
                                 '-- views'

The first part of the module reads and writes the wire format for the fast path: varints and framed bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from naiad.core.errors import InferError, invalid_argument, wrong_request
from naiad.core.limits.request_limits import MAX_PARAMETERS, LimitsOf, RequestLimits
from naiad.core.tensor import Buffer
from naiad.protocol.service_pb2 import ModelInferRequest

_MAX_LENGTH_BYTES = 5
"""Varint bytes of the longest legal field length, 2 GiB - 1."""


def read_length(data: Buffer, position: int) -> tuple[int, int]:
    """Return the varint length at `position` and the position after it.

    Raises ValueError for a varint longer than any length, IndexError for a truncated one.
    """
    length = shift = 0
    for _ in range(_MAX_LENGTH_BYTES):
        byte = data[position]
        position += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return length, position
        shift += 7
    raise ValueError("varint is too long for a field length")


def encode_varint(value: int) -> bytes:
    """Return a non-negative integer as a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_framing(tag: int, length: int) -> bytes:
    """Return the tag and length of a length-delimited field with a one-byte tag."""
    return bytes((tag,)) + encode_varint(length)


def read_raw_contents(message: Buffer, source: Buffer, position: int, tag: int, most: int) -> list[Buffer]:
    """Return the contents of fields that fill `message` from `position` to its end, all with the same one-byte `tag`.

    The contents are slices of `source`, which is `message` or a view on it. Raises ValueError for another tag, for a
    content that overruns the message, or for more than `most` contents, IndexError when the framing is cut short.
    """
    # hot: bench/micro_infer_grpc.py
    size = len(message)
    contents: list[Buffer] = []
    while position < size:
        if message[position] != tag or len(contents) == most:
            raise ValueError("another field after the raw contents, or too many of them")
        length = message[position + 1]
        position += 2
        if length > 0x7F:
            length, position = read_length(message, position - 1)
        end = position + length
        contents.append(source[position:end])
        position = end
    if position != size:
        raise ValueError("raw contents overrun the message")
    return contents


SHORT_BYTES = 64 * 1024
"""Messages up to this size are decoded at once."""
MAX_ENVELOPE_BYTES = 1 << 20
"""Limit of a request without its tensor data."""
_MODEL_NAME, _MODEL_VERSION, _ID, _INPUTS, _OUTPUTS, _RAW_CONTENTS = 0x0A, 0x12, 0x1A, 0x2A, 0x32, 0x3A
"""Keys: field numbers with the wire type of bytes."""
_CONTENTS = 0x2A
"""Field of `InferInputTensor`."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_MAX_NAME_BYTES = 65536
_HEAD_FIELDS = 64
"""Fields searched for the name of the model."""
_FIELDS_OF_AN_INPUT = 16
"""Limit of an `InferInputTensor` besides its shape and its parameters, which have limits of their own."""

Field = tuple[int, int, int, int]
"""Key, start of the field, start of its value (after the length of bytes), and end."""


@dataclass(slots=True)
class CutRequest:
    """A request without its tensor data, which is cut out."""

    envelope: bytes
    """A `ModelInferRequest`; an input whose contents were cut out has empty ones."""
    raw: list[Buffer]
    contents: dict[int, list[Buffer]] = field(default_factory=dict)
    """Position of an input to the parts of its `InferTensorContents` message."""


def fields(message: Buffer, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of a message. Raises ValueError or IndexError when they are malformed, also for groups."""
    at = start
    while at < end:
        begin = at
        key, at = _read_varint(message, at)
        kind = key & 7
        if kind == _BYTES:
            length, at = _read_varint(message, at)
            stop = at + length
        elif kind == _VARINT:
            _, stop = _read_varint(message, at)
        elif kind in (_FIXED32, _FIXED64):
            stop = at + (4 if kind == _FIXED32 else 8)
        else:
            raise ValueError("a group, or no field at all")
        if stop > end:
            raise ValueError("field overruns the message")
        yield key, begin, at, stop
        at = stop


def _read_varint(message: Buffer, at: int) -> tuple[int, int]:
    byte = message[at]
    if byte < 0x80:
        return byte, at + 1
    value = shift = 0
    for position in range(at, at + _MAX_VARINT_BYTES):
        byte = message[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise ValueError("varint is too long")


def read_identity(message: Buffer) -> tuple[str, str, str]:
    """Return model name, model version and id if they come first, where clients write them."""
    found = {_MODEL_NAME: "", _MODEL_VERSION: "", _ID: ""}
    try:
        for count, (key, _, start, stop) in enumerate(fields(message, 0, len(message))):
            if key in found:
                found[key] = bytes(message[start : min(stop, start + _MAX_NAME_BYTES)]).decode("utf-8", "replace")
            elif key > _ID or count > _HEAD_FIELDS:
                break
    except (ValueError, IndexError):
        pass  # The fields after the identity are not needed here.
    return found[_MODEL_NAME], found[_MODEL_VERSION], found[_ID]


def check_field_count(message: Buffer, most: int) -> None:
    """Raise InferError for a message with more than `most` fields, or without any."""
    try:
        for count, _ in enumerate(fields(message, 0, len(message))):
            if count >= most:
                raise invalid_argument(f"the message has more than {most} fields")
    except (ValueError, IndexError):
        if len(message) > SHORT_BYTES:
            raise wrong_request("Unable to parse request: not a valid message") from None


def last_text(message: Buffer, number: int) -> str:
    """Return the string in field `number` of a short message or one with few fields; "" if absent.

    Raises InferError for a malformed message or too many fields.
    """
    check_field_count(message, MAX_PARAMETERS)
    text = ""
    try:
        for key, _, start, stop in fields(message, 0, len(message)):
            if key == number << 3 | _BYTES:
                text = bytes(message[start : min(stop, start + _MAX_NAME_BYTES)]).decode()
    except (ValueError, IndexError):
        raise wrong_request("Unable to parse request: not a valid message") from None
    return text


def cut_request(message: Buffer, limits_of: LimitsOf) -> CutRequest:
    """Return a request with its tensor data cut out.

    Raises InferError: NOT_FOUND for an unknown model, INVALID_ARG for more parts than a request for it may have and
    for a malformed message.
    """
    limits = limits_of(*read_identity(message)[:2])
    try:
        return _Cut(message, limits).run()
    except (ValueError, IndexError):
        if len(message) > SHORT_BYTES:
            raise _no_message() from None
    return _cut_parsed(message, limits)


def _cut_parsed(message: Buffer, limits: RequestLimits) -> CutRequest:
    """Return a short message cut with the library, which supports groups. Raises InferError as `cut_request`."""
    try:
        request = ModelInferRequest.FromString(bytes(message))
    except DecodeError:
        raise _no_message() from None
    return CutRequest(bytes(message), list(request.raw_input_contents), check_and_cut(request, limits))


def check_and_cut(request: ModelInferRequest, limits: RequestLimits) -> dict[int, list[Buffer]]:
    """Return the contents of the inputs of a parsed short request. Raises InferError(INVALID_ARG)."""
    limits.check_inputs(max(len(request.inputs), len(request.raw_input_contents)))
    limits.check_outputs(len(request.outputs))
    return {
        position: [tensor.contents.SerializeToString()]
        for position, tensor in enumerate(request.inputs)
        if tensor.HasField("contents")
    }


def _no_message() -> InferError:
    return wrong_request("Unable to parse request: not a valid ModelInferRequest message")


class _Cut:
    """The walk over one request."""

    def __init__(self, message: Buffer, limits: RequestLimits) -> None:
        self._message = message
        self._view = memoryview(message)
        self._limits = limits
        self._input_count = self._output_count = self._field_count = 0
        self._parts: list[Buffer] = []
        self._envelope_bytes = 0
        self._cut = CutRequest(b"", [])

    def run(self) -> CutRequest:
        """Return the cut request."""
        for key, begin, start, stop in fields(self._message, 0, len(self._message)):
            if key == _RAW_CONTENTS:
                self._limits.check_inputs(len(self._cut.raw) + 1)
                self._cut.raw.append(self._view[start:stop])
            elif key == _INPUTS:
                self._take_input(start, stop)
            else:
                self._count(key)
                self._keep(begin, stop)
        self._cut.envelope = b"".join(self._parts)
        return self._cut

    def _count(self, key: int) -> None:
        if key == _OUTPUTS:
            self._output_count += 1
            self._limits.check_outputs(self._output_count)
            return
        self._field_count += 1
        if self._field_count > MAX_PARAMETERS:
            raise invalid_argument(f"the request has more than {MAX_PARAMETERS} parameters and other fields")

    def _keep(self, begin: int, stop: int) -> None:
        self._envelope_bytes += stop - begin
        if self._envelope_bytes > MAX_ENVELOPE_BYTES:
            raise invalid_argument(f"the request has more than {MAX_ENVELOPE_BYTES} bytes besides its tensor data")
        self._parts.append(self._view[begin:stop])

    def _take_input(self, start: int, stop: int) -> None:
        position = self._input_count
        self._input_count += 1
        self._limits.check_inputs(self._input_count)
        kept: list[Buffer] = []
        contents: list[Buffer] = []
        for count, (key, begin, value, end) in enumerate(fields(self._message, start, stop)):
            if count > MAX_PARAMETERS + _FIELDS_OF_AN_INPUT:
                raise invalid_argument(f"an input of the request has more than {MAX_PARAMETERS} parameters")
            if key == _CONTENTS:
                contents.append(self._view[value:end])
            else:
                kept.append(self._view[begin:end])
        if contents:
            self._cut.contents[position] = contents
            kept.append(b"\x2a\x00")
        tensor = b"".join(kept)
        framed = b"\x2a" + encode_varint(len(tensor)) + tensor
        self._envelope_bytes += len(framed)
        if self._envelope_bytes > MAX_ENVELOPE_BYTES:
            raise invalid_argument(f"the request has more than {MAX_ENVELOPE_BYTES} bytes besides its tensor data")
        self._parts.append(framed)
