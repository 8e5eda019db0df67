"""`ModelInferRequest` bytes to requests and responses to `ModelInferResponse` bytes, by hand on the usual path.

Protobuf libraries write fields in the order of their numbers, so a request is

    model_name, model_version | id | parameters, inputs, outputs | raw_input_contents ...
    `------- head ----------'        `-------- tail ----------'

and a client repeats head and tail byte for byte. They are looked up as a whole, and what remains to be parsed is the
id and the framing of the raw contents. Whatever looks different takes the complete path through the protobuf library.
"""

from collections.abc import Sequence

from naiad.core.errors import internal, invalid_argument, unsupported
from naiad.core.request import RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import Buffer
from naiad.protocol.protobuf_fields import encode_framing, read_length, read_raw_contents
from naiad.protocol.protobuf_header import parse_message, to_header_and_data
from naiad.protocol.service_pb2 import InferParameter, ModelInferRequest, ModelInferResponse

_ID_TAG = 0x1A
_RAW_INPUT_TAG = 0x3A
_RAW_OUTPUT_TAG = 0x32
_SINGULAR_TAGS = frozenset((0x0A, 0x12, _ID_TAG))
_REPEATED_TAGS = frozenset((0x22, 0x2A, _RAW_OUTPUT_TAG))

_MAX_CACHED_PREFIX_BYTES = 4096
_MAX_GENERATION = 512
"""Headers in the younger half of the cache; so at most twice as many headers, of 4 KiB each, are kept."""
_MAX_LAYOUTS = 1024
_MAX_COPIED_BYTES = 4096
"""Up to this message size a slice of bytes is cheaper than a view, and does not keep a receive buffer alive."""
_LARGE_PART_BYTES = 64 * 1024
_MAX_MESSAGE_BYTES = 2**31 - 1
_MAX_FRAMINGS = 4096

_Layout = tuple[int, int]
"""Bytes of the head and of the tail."""
_Entry = tuple[RequestHeader, int, int]
"""A cached header, the bytes of its head, and how many raw contents its inputs take.

-1 when some lie in shared memory, so that raw contents are not one for each input.
"""
_MEMO = "infer_grpc"


class InferRequestDecoder:
    """Decodes requests and remembers their headers. Not thread-safe: one per event loop.

    The cache has two generations: a full younger one becomes the older one, whose headers return to the younger when
    they are met again. Headers that are never repeated (sequence ids) thus push out only each other.
    """

    __slots__ = ("_headers", "_layouts", "_older", "_recent")

    def __init__(self) -> None:
        self._headers: dict[bytes, _Entry] = {}
        self._older: dict[bytes, _Entry] = {}
        self._layouts: dict[int, _Layout] = {}
        self._recent: _Layout = (0, 0)

    def decode(self, message: Buffer) -> tuple[RequestHeader, str, list[Buffer]]:
        """Return the header, the request id ("" for none) and one buffer per input.

        Data of large messages are views on `message`; an input in shared memory has an empty buffer. Equal headers
        are the same object as long as they are remembered. Raises InferError: INTERNAL when `message` is no
        ModelInferRequest, INVALID_ARG with Triton's text when its contents do not fit together.
        """
        # hot: bench/micro_infer_grpc.py
        size = len(message)
        source: Buffer
        if size <= _MAX_COPIED_BYTES:
            source = message = prefix = message if type(message) is bytes else bytes(message)
        else:
            source = memoryview(message)
            prefix = bytes(source[:_MAX_CACHED_PREFIX_BYTES])
        # The size of a message nearly always tells its layout; where strings vary in size, the last layout does.
        head_end, tail_size = self._layouts.get(size) or self._recent
        try:
            if prefix[head_end] == _ID_TAG:
                id_start = head_end + 2
                id_end = id_start + prefix[head_end + 1]
                start = id_end + tail_size
                header, cached_head_end, count = self._headers[prefix[:head_end] + prefix[id_end:start]]
                # The layout is a guess. It is right when the cached bytes have their field border at the same place.
                if cached_head_end != head_end or start > len(prefix) or id_end - id_start > 0x7F:
                    return self._decode_unfamiliar(message)
                request_id = prefix[id_start:id_end].decode()
            else:
                start = head_end + tail_size
                header, _, count = self._headers[prefix[:start]]
                request_id = ""
            data = read_raw_contents(message, source, start, _RAW_INPUT_TAG)
        except (LookupError, ValueError):
            return self._decode_unfamiliar(message)
        if len(data) != count:
            return self._decode_unfamiliar(message)
        return header, request_id, data

    def _decode_unfamiliar(self, message: Buffer) -> tuple[RequestHeader, str, list[Buffer]]:
        """Find the parts of a message field by field; the header may be remembered nevertheless."""
        try:
            head_end, id_start, id_end, tail_end = _split(message)
            request_id = bytes(message[id_start:id_end]).decode()
            source = message if len(message) <= _MAX_COPIED_BYTES else memoryview(message)
            raw = read_raw_contents(message, source, tail_end, _RAW_INPUT_TAG)
        except (LookupError, ValueError):
            return _decode_completely(message)
        prefix = bytes(message[:head_end]) + bytes(message[id_end:tail_end])
        layout = (head_end, tail_end - id_end)
        entry = self._find(prefix)
        if entry is not None:
            if entry[2] == len(raw):
                self._learn(len(message), layout)
                return entry[0], request_id, raw
            if entry[2] < 0 and len(raw) == len(entry[0].inputs) - len(entry[0].shared_memory):
                return entry[0], request_id, _spread(entry[0], raw)
        request = parse_message(prefix)
        header, data = to_header_and_data(request, raw)
        if len(prefix) <= _MAX_CACHED_PREFIX_BYTES and not _has_typed_contents(request):
            if entry is None:
                self._remember(prefix, (header, head_end, -1 if header.shared_memory else len(request.inputs)))
            else:
                header = entry[0]
            self._learn(len(message), layout)
        return header, request_id, data

    def _find(self, prefix: bytes) -> _Entry | None:
        entry = self._headers.get(prefix)
        if entry is None:
            entry = self._older.get(prefix)
            if entry is not None:
                self._remember(prefix, entry)
        return entry

    def _remember(self, prefix: bytes, entry: _Entry) -> None:
        if len(self._headers) >= _MAX_GENERATION:
            self._older, self._headers = self._headers, {}
        self._headers[prefix] = entry

    def _learn(self, size: int, layout: _Layout) -> None:
        if len(self._layouts) >= _MAX_LAYOUTS:
            self._layouts.clear()
        self._layouts[size] = self._recent = layout


def identify(message: Buffer) -> tuple[str, str, str]:
    """Return model name, model version and request id of a request that `decode` refused.

    Raises InferError(INTERNAL) when `message` is no ModelInferRequest.
    """
    request = parse_message(message)
    return request.model_name, request.model_version, request.id


def _split(message: Buffer) -> tuple[int, int, int, int]:
    """Return the end of the head, start and end of the id, and the end of the tail.

    Raises ValueError or IndexError when the fields are not in the usual order, each with a one-byte tag.
    """
    position = previous = 0
    head_end = -1
    id_start = id_end = 0
    size = len(message)
    while position < size:
        tag = message[position]
        if tag == _RAW_INPUT_TAG:
            break
        if tag < previous or (tag == previous and tag in _SINGULAR_TAGS):
            raise ValueError("unusual field order")
        if tag not in _SINGULAR_TAGS and tag not in _REPEATED_TAGS:
            raise ValueError("unknown field")
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


def _has_typed_contents(request: ModelInferRequest) -> bool:
    return any(tensor.HasField("contents") for tensor in request.inputs)


def _spread(header: RequestHeader, raw: Sequence[Buffer]) -> list[Buffer]:
    """Return one buffer per input: the raw contents in order, and an empty one for what lies in shared memory."""
    contents = iter(raw)
    return [b"" if spec.name in header.shared_memory else next(contents) for spec in header.inputs]


def _decode_completely(message: Buffer) -> tuple[RequestHeader, str, list[Buffer]]:
    request = parse_message(message)
    header, data = to_header_and_data(request, request.raw_input_contents)
    return header, request.id, data


def encode_response(request_id: str, response: InferResponse, marker: bytes = b"") -> list[Buffer]:
    """Return a response as the parts of a ModelInferResponse message: small ones joined, large outputs as they are.

    `marker` is an encoded parameter that is added to those of the response.
    Raises InferError: INVALID_ARG when it is larger than a gRPC message may be, UNSUPPORTED for a response parameter
    that the protocol cannot carry.
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
    return _join_small(parts) if large else [b"".join(parts)]


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
        encoded.parameters[key].CopyFrom(_parameter(key, value))
    return encoded.SerializeToString()


def _parameter(key: str, value: object) -> InferParameter:
    if isinstance(value, bool):
        return InferParameter(bool_param=value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise internal(f"response parameter '{key}' does not fit into 64 bits: {value}")
        return InferParameter(int64_param=value)
    if isinstance(value, float):
        return InferParameter(double_param=value)
    if isinstance(value, str):
        return InferParameter(string_param=value)
    raise unsupported(f"Response parameter '{key}' of type '{type(value).__name__}' is not currently supported")


def _join_small(parts: list[Buffer]) -> list[Buffer]:
    """Join neighbours that are small and leave large parts uncopied."""
    total = sum(map(len, parts))
    if total > _MAX_MESSAGE_BYTES:
        raise invalid_argument(
            f"Response has byte size {total} which exceeds gRPC's byte size limit {_MAX_MESSAGE_BYTES}."
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
