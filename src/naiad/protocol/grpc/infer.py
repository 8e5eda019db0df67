"""`ModelInferRequest` bytes to requests, responses to `ModelInferResponse` and `ModelStreamInferResponse` bytes.

Protobuf libraries write fields in the order of their numbers, so a request is

    model_name, model_version | id | parameters, inputs, outputs | raw_input_contents ...
    `------- head ----------'        `-------- tail ----------'

and a client repeats head and tail byte for byte. The decoder looks both up as a whole and parses only the id and the
framing of the raw contents. Every other layout takes the complete path through the protobuf library.

A stream response wraps the response of a unary call, or has an error text. `read_beginning` identifies the model of a
request before its message is complete.
"""

from collections.abc import Mapping, Sequence

from naiad.core.errors import encodable, excerpt, internal, invalid_argument, unsupported
from naiad.core.limits.bounded_cache import BoundedCache
from naiad.core.limits.request_limits import LimitsOf, unlimited
from naiad.core.request import RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.slices import Slices, finish
from naiad.core.tensor import Buffer
from naiad.protocol.grpc.header import parse_message, to_header_and_data
from naiad.protocol.grpc.walk import (
    SHORT_BYTES,
    check_and_cut,
    cut_request,
    encode_framing,
    read_identity,
    read_length,
    read_raw_contents,
)
from naiad.protocol.header_memory import HeaderMemory
from naiad.protocol.service_pb2 import InferParameter, ModelInferResponse, ModelStreamInferResponse

_ID_TAG = 0x1A
_RAW_INPUT_TAG = 0x3A
_RAW_OUTPUT_TAG = 0x32
_SINGULAR_TAGS = frozenset((0x0A, 0x12, _ID_TAG))
_REPEATED_TAGS = frozenset((0x22, 0x2A, _RAW_OUTPUT_TAG))

_MAX_CACHED_PREFIX_BYTES = 4096
_MAX_CACHE_BYTES = 2 << 20
"""Limit of all cached encoded headers; the objects made of them take about ten times as much."""
_MAX_HEADERS = 1024
_MAX_FIELDS = 4096
"""`cut_request`, which knows the limits of the model, reads requests with more fields."""
_MAX_LAYOUTS = 1024
_MAX_COPIED_BYTES = 4096
"""Up to this message size a slice of bytes is cheaper than a view, and does not keep a receive buffer alive."""
_LARGE_PART_BYTES = 64 * 1024
MAX_MESSAGE_BYTES = 2**31 - 1
_MAX_FRAMINGS = 4096

_Layout = tuple[int, int]
"""Bytes of the head and of the tail."""
Decoded = tuple[RequestHeader, str, list[Buffer]]
_Entry = tuple[RequestHeader, int, int]
"""A cached header, the bytes of its head, and the number of its raw contents.

The number is -1 for inputs in shared memory, because raw contents then do not match inputs one to one.
"""
_MEMO = "infer_grpc"


class InferRequestDecoder:
    """Decodes requests and caches the headers of admitted requests. Not thread-safe: one per event loop."""

    __slots__ = ("_headers", "_layouts", "_limits_of", "_memory", "_recent")

    def __init__(self, limits_of: LimitsOf = unlimited) -> None:
        self._limits_of = limits_of
        self._memory = HeaderMemory()
        self._headers: BoundedCache[bytes, _Entry] = BoundedCache(
            max_entries=_MAX_HEADERS, max_bytes=_MAX_CACHE_BYTES, max_entry_bytes=_MAX_CACHED_PREFIX_BYTES
        )
        self._layouts: BoundedCache[int, _Layout] = BoundedCache(
            max_entries=_MAX_LAYOUTS, max_bytes=_MAX_LAYOUTS, max_entry_bytes=1
        )
        self._recent: _Layout = (0, 0)

    def decode(self, message: Buffer) -> Decoded:
        """Return the header, the request id ("" for none) and one buffer per input.

        Data of large messages are views on `message`; an input in shared memory has an empty buffer. Equal headers
        are the same object while they are cached. Raises InferError(INVALID_ARG) if `message` is
        not a ModelInferRequest, and with Triton's text for contents that contradict each other.
        """
        # hot: bench/micro_infer_grpc.py
        size = len(message)
        source: Buffer
        if size <= _MAX_COPIED_BYTES:
            source = message = prefix = message if type(message) is bytes else bytes(message)
        else:
            source = memoryview(message)
            prefix = bytes(source[:_MAX_CACHED_PREFIX_BYTES])
        # The message size nearly always identifies the layout; where strings vary in size, the last layout does.
        head_end, tail_size = self._layouts.get(size) or self._recent
        try:
            if prefix[head_end] == _ID_TAG:
                id_start = head_end + 2
                id_end = id_start + prefix[head_end + 1]
                start = id_end + tail_size
                header, cached_head_end, count = self._headers[prefix[:head_end] + prefix[id_end:start]]
                # The layout is a guess. It is right if the cached bytes have their field border at the same place.
                if cached_head_end != head_end or start > len(prefix) or id_end - id_start > 0x7F:
                    return finish(self._decode_unfamiliar(message))
                request_id = prefix[id_start:id_end].decode()
            else:
                start = head_end + tail_size
                header, _, count = self._headers[prefix[:start]]
                request_id = ""
            # With shared memory there are fewer contents than inputs: the slow path assigns them field by field.
            data = read_raw_contents(message, source, start, _RAW_INPUT_TAG, count if count > 0 else 0)
        except (LookupError, ValueError):
            return finish(self._decode_unfamiliar(message))
        if len(data) != count:
            return finish(self._decode_unfamiliar(message))
        return header, request_id, data

    def decode_in_slices(self, message: Buffer) -> Slices[Decoded]:
        """Return the same as `decode`; yields about every millisecond while it converts typed contents."""
        if _may_have_contents(message):
            return (yield from self._decode_unfamiliar(message))
        return self.decode(message)

    def _decode_unfamiliar(self, message: Buffer) -> Slices[Decoded]:
        """Find the parts of a message field by field; the header may still be cached."""
        self._memory.settle()
        try:
            head_end, id_start, id_end, tail_end = _split(message)
            request_id = bytes(message[id_start:id_end]).decode()
            source = message if len(message) <= _MAX_COPIED_BYTES else memoryview(message)
            raw = read_raw_contents(message, source, tail_end, _RAW_INPUT_TAG, _MAX_FIELDS)
        except (LookupError, ValueError):
            return (yield from self._decode_completely(message))
        if head_end + tail_end - id_end > _MAX_CACHED_PREFIX_BYTES:
            return (yield from self._decode_completely(message))
        prefix = bytes(message[:head_end]) + bytes(message[id_end:tail_end])
        layout = (head_end, tail_end - id_end)
        entry = self._headers.get(prefix)
        if entry is not None:
            # The header is cached, but the guessed position of the id was wrong.
            if entry[2] == len(raw):
                self._learn(len(message), layout)
                return entry[0], request_id, raw
            if entry[2] < 0 and len(raw) == len(entry[0].inputs) - len(entry[0].shared_memory):
                return entry[0], request_id, _spread(entry[0], raw)
        # Short enough to be parsed before it is checked.
        request = parse_message(prefix)
        limits = self._limits_of(request.model_name, request.model_version)
        contents = check_and_cut(request, limits)
        header, data = yield from to_header_and_data(request, raw, contents)
        if not contents:
            if entry is None:
                count = -1 if header.shared_memory else len(header.inputs)
                self._memory.propose(header, self._headers, prefix, (header, head_end, count), len(prefix))
            else:
                header = entry[0]
            self._learn(len(message), layout)
        return header, request_id, data

    def _decode_completely(self, message: Buffer) -> Slices[Decoded]:
        cut = cut_request(message, self._limits_of)
        request = parse_message(cut.envelope)
        header, data = yield from to_header_and_data(request, cut.raw, cut.contents)
        return header, request.id, data

    def _learn(self, size: int, layout: _Layout) -> None:
        self._layouts.remember(size, layout, 1)
        self._recent = layout


def _may_have_contents(message: Buffer) -> bool:
    """Return whether a large message is larger than a header even without its raw contents."""
    try:
        return _split(message)[3] > _MAX_CACHED_PREFIX_BYTES
    except (LookupError, ValueError):
        return True


def identify(message: Buffer) -> tuple[str, str, str]:
    """Return model name, model version and request id of a request that `decode` rejected.

    Raises InferError(INVALID_ARG) if `message` is small and not a ModelInferRequest.
    """
    if len(message) > SHORT_BYTES:
        return read_identity(message)
    request = parse_message(message)
    return request.model_name, request.model_version, request.id


def _split(message: Buffer) -> tuple[int, int, int, int]:
    """Return the end of the head, start and end of the id, and the end of the tail.

    Raises ValueError or IndexError when the fields are not in the usual order, each with a one-byte tag.
    """
    position = previous = count = 0
    head_end = -1
    id_start = id_end = 0
    size = len(message)
    while position < size:
        tag = message[position]
        if tag == _RAW_INPUT_TAG:
            break
        if tag < previous or (tag == previous and tag in _SINGULAR_TAGS):
            raise ValueError("unusual field order")
        count += 1
        if (tag not in _SINGULAR_TAGS and tag not in _REPEATED_TAGS) or count > _MAX_FIELDS:
            raise ValueError("unknown field, or too many fields")
        if tag >= _ID_TAG and head_end < 0:
            head_end = id_end = position
        length, start = read_length(message, position + 1)
        position = start + length
        if tag == _ID_TAG:
            id_start, id_end = start, position
        previous = tag
    if position > size:
        raise ValueError("field overruns the message")
    if head_end < 0:
        head_end = id_end = position
    return head_end, id_start or id_end, id_end, position


def _spread(header: RequestHeader, raw: Sequence[Buffer]) -> list[Buffer]:
    """Return one buffer per input: the raw contents in order, and an empty buffer for inputs in shared memory."""
    contents = iter(raw)
    return [b"" if spec.name in header.shared_memory else next(contents) for spec in header.inputs]


def encode_response(request_id: str, response: InferResponse, marker: bytes = b"") -> list[Buffer]:
    """Return a response as the parts of a ModelInferResponse message: small parts joined, large outputs uncopied.

    `marker` is an encoded parameter that is added to the parameters of the response. Raises InferError: INVALID_ARG
    for a response beyond the size limit of gRPC messages, UNSUPPORTED for a response parameter that the protocol
    cannot carry.
    """
    # hot: bench/micro_infer_grpc.py
    header = response.header
    memo: tuple[bytes, bytes] | None = header.memo.get(_MEMO)  # type: ignore[assignment]  # set below
    if memo is None:
        memo = header.memo[_MEMO] = _encode_header(header)
    head, tail = memo
    parts: list[Buffer] = [head]
    if request_id:
        encoded_id = request_id.encode()
        parts.append(_ID_FRAMINGS.get(len(encoded_id)) or encode_framing(_ID_TAG, len(encoded_id)))
        parts.append(encoded_id)
    if response.parameters:
        parts.append(_encode_parameters(response))
    if marker:
        parts.append(marker)
    parts.append(tail)
    large = False
    for content in response.data:
        size = len(content)
        parts.append(_RAW_FRAMINGS.get(size) or _raw_framing(size))
        parts.append(content)
        if size >= _LARGE_PART_BYTES:
            large = True
    return join_small(parts) if large else [b"".join(parts)]


_ID_FRAMINGS = {size: encode_framing(_ID_TAG, size) for size in range(128)}
_RAW_FRAMINGS = {size: encode_framing(_RAW_OUTPUT_TAG, size) for size in range(128)}


def _raw_framing(size: int) -> bytes:
    framing = encode_framing(_RAW_OUTPUT_TAG, size)
    if len(_RAW_FRAMINGS) < _MAX_FRAMINGS:
        _RAW_FRAMINGS[size] = framing
    return framing


def _encode_header(header: ResponseHeader) -> tuple[bytes, bytes]:
    head = ModelInferResponse(model_name=header.model_name, model_version=header.model_version)
    tail = ModelInferResponse()
    for spec in header.outputs:
        tail.outputs.add(name=spec.name, datatype=spec.datatype.value, shape=spec.shape)
    return head.SerializeToString(), tail.SerializeToString()


def _encode_parameters(response: InferResponse) -> bytes:
    encoded = ModelInferResponse()
    for key, value in response.parameters.items():
        try:
            encoded.parameters[key].CopyFrom(_parameter(key, value))
        except UnicodeEncodeError:
            # A model may set text with half of a surrogate pair.
            raise internal(f"response parameter '{excerpt(key)}' is not valid Unicode") from None
    return encoded.SerializeToString()


def _parameter(key: str, value: object) -> InferParameter:
    parameter = parameter_of(value)
    if parameter is not None:
        return parameter
    if isinstance(value, int):
        raise internal(f"response parameter '{key}' does not fit into 64 bits: {value}")
    raise unsupported(f"Response parameter '{key}' of type '{type(value).__name__}' is not currently supported")


def parameter_of(value: object) -> InferParameter | None:
    """Return the message of a parameter's value; None for a type that the protocol cannot carry."""
    if isinstance(value, bool):
        return InferParameter(bool_param=value)
    if isinstance(value, int):
        return InferParameter(int64_param=value) if -(2**63) <= value < 2**63 else None
    if isinstance(value, float):
        return InferParameter(double_param=value)
    return InferParameter(string_param=value) if isinstance(value, str) else None


def join_small(parts: list[Buffer]) -> list[Buffer]:
    """Join small adjacent parts and leave large parts uncopied.

    Raises InferError(INVALID_ARG) for a response beyond the size limit of gRPC messages.
    """
    total = sum(map(len, parts))
    if total > MAX_MESSAGE_BYTES:
        raise invalid_argument(
            f"Response has byte size {total} which exceeds gRPC's byte size limit {MAX_MESSAGE_BYTES}."
        )
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < _LARGE_PART_BYTES:
            small.append(part)
            continue
        joined.append(b"".join(small))
        small.clear()
        joined.append(part)
    if small:
        joined.append(b"".join(small))
    return joined


_NAME, _VERSION, _ID = 1, 2, 3
_LENGTH_DELIMITED = 2
_MOST_BYTES = 4096
"""Longer names and ids wait for the whole message."""


def read_beginning(data: Buffer) -> tuple[str, str, str] | None:
    """Return model name, version and request id of a ModelInferRequest that begins with `data`.

    Returns None while that is not certain: the fields before the tensors are incomplete, or the name is not the first
    field. For a message that continues in an unusual or malformed way it returns the fields before that point.
    """
    text = bytes(data[:_MOST_BYTES])
    found = {_NAME: "", _VERSION: "", _ID: ""}
    position = previous = 0
    while position < len(text):
        tag = text[position]
        number = tag >> 3
        if tag & 7 != _LENGTH_DELIMITED or not previous < number <= _ID:
            return _named(found)
        length, start = _varint(text, position + 1)
        if length < 0 or start + length > len(text):
            return _named(found) if len(text) == _MOST_BYTES else None
        try:
            found[number] = text[start : start + length].decode()
        except UnicodeDecodeError:
            return _named(found)
        previous, position = number, start + length
    return None


def leading_text(data: Buffer, wanted: int) -> str:
    """Return the text field `wanted` of a message that begins with text fields; empty if it is not among them."""
    text = bytes(data[:_MOST_BYTES])
    position = 0
    while position < len(text) and text[position] & 7 == _LENGTH_DELIMITED:
        number = text[position] >> 3
        length, start = _varint(text, position + 1)
        if length < 0 or number > wanted:
            break
        position = start + length
        if number == wanted:
            return text[start:position].decode("utf-8", "replace")
    return ""


def _named(found: Mapping[int, str]) -> tuple[str, str, str] | None:
    return (found[_NAME], found[_VERSION], found[_ID]) if found[_NAME] else None


def _varint(text: bytes, position: int) -> tuple[int, int]:
    """Return a number of at most two bytes and the position after it; -1 for a longer number."""
    piece = text[position : position + 2]
    if piece and piece[0] < 0x80:
        return piece[0], position + 1
    if len(piece) == 2 and piece[1] < 0x80:
        return piece[0] & 0x7F | piece[1] << 7, position + 2
    return -1, position


FINAL_RESPONSE = "triton_final_response"

_RESPONSE_TAG = 0x12
_FRAMINGS = {size: encode_framing(_RESPONSE_TAG, size) for size in range(1024)}


def _marker(*, final: bool) -> bytes:
    message = ModelInferResponse()
    message.parameters[FINAL_RESPONSE].bool_param = final
    return message.SerializeToString()


_FINAL = _marker(final=True)
_NOT_FINAL = _marker(final=False)


def encode_stream_response(request_id: str, response: InferResponse) -> list[Buffer]:
    """Return a response as the parts of a message. Raises InferError as `encode_response` does."""
    # hot: bench/micro_infer_grpc.py
    parts = encode_response(request_id, response, _FINAL if response.final else _NOT_FINAL)
    size = 0
    for part in parts:
        size += len(part)
    return [_FRAMINGS.get(size) or encode_framing(_RESPONSE_TAG, size), *parts]


def encode_executor(request_id: str, model_name: str, model_version: str) -> bytes:
    """Return the message that completes a request without outputs.

    Triton: the version is the requested one, "" if the client named none.
    """
    message = ModelStreamInferResponse()
    _identify(message.infer_response, request_id, model_name, model_version, final=True)
    return message.SerializeToString()


def encode_refusal(request_id: str, text: str) -> bytes:
    """Return the message for a request rejected before inference; of the response it has only the id."""
    message = ModelStreamInferResponse(error_message=encodable(text))
    message.infer_response.id = request_id
    return message.SerializeToString()


def encode_failure(request_id: str, model_name: str, model_version: str, text: str, *, final: bool) -> bytes:
    """Return the message for a request that failed in inference; the version is the requested one."""
    message = ModelStreamInferResponse(error_message=encodable(text))
    _identify(message.infer_response, request_id, model_name, model_version, final=final)
    return message.SerializeToString()


def _identify(
    response: ModelInferResponse, request_id: str, model_name: str, model_version: str, *, final: bool
) -> None:
    response.id = request_id
    response.model_name = model_name
    response.model_version = model_version
    response.parameters[FINAL_RESPONSE].bool_param = final
