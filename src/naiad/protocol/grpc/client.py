"""The client side of gRPC messages: requests to bytes, bytes to responses, control calls, repeated requests.

Tensor data is never copied: large buffers become parts of the message, and outputs are views on the received message.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import BY_NAME
from naiad.core.errors import ErrorCode, InferError, excerpt, internal, invalid_argument
from naiad.core.limits.bounded_cache import BoundedCache
from naiad.core.model import IndexEntry, ModelMetadata, ServerMetadata
from naiad.core.parameters import ParameterValue
from naiad.core.request import RequestedOutput, RequestHeader, SharedMemoryRegion
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.slices import finish
from naiad.core.tensor import Buffer, TensorSpec
from naiad.protocol import service_pb2 as pb
from naiad.protocol.grpc.contents import contents_to_raw
from naiad.protocol.grpc.infer import FINAL_RESPONSE, MAX_MESSAGE_BYTES, join_small, parameter_of
from naiad.protocol.grpc.walk import encode_framing, encode_varint, fields
from naiad.protocol.json.client import index_entry
from naiad.protocol.json.management.control import message_tree

_RAW_INPUT_TAG = 0x3A
_ID_TAG = 0x1A
_RAW_OUTPUT_KEY = 0x32
_UINT64 = 1 << 64

DecodedResponse: TypeAlias = tuple[str, InferResponse]
"""Request id and response."""
_M = TypeVar("_M", bound=Message)


def encode_request(header: RequestHeader, request_id: str, data: Sequence[Buffer]) -> list[Buffer]:
    """Return a request as the parts of a message: small parts are joined, large inputs are passed through.

    `data` has one buffer per input; the buffer of an input in shared memory is ignored. Raises
    InferError(INVALID_ARG) for a parameter that the protocol cannot carry, or a message of more than 2 GiB.
    """
    message = pb.ModelInferRequest(model_name=header.model_name, model_version=header.model_version, id=request_id)
    _add_parameters(message, header)
    parts: list[Buffer] = []
    for spec, content in zip(header.inputs, data, strict=True):
        tensor = message.inputs.add(name=spec.name, datatype=spec.datatype.value, shape=spec.shape)
        region = header.shared_memory.get(spec.name)
        if region is None:
            parts += (encode_framing(_RAW_INPUT_TAG, len(content)), content)
        else:
            _add_region(tensor.parameters, region)
    for output in header.outputs:
        _add_output(message, output)
    parts.insert(0, message.SerializeToString())
    size = sum(map(len, parts))
    if size > MAX_MESSAGE_BYTES:
        raise invalid_argument(f"the request has {size} bytes; a gRPC message has at most {MAX_MESSAGE_BYTES}")
    return join_small(parts)


class KeptRequestHeads:
    """Encodes requests whose header objects come again and again; what a header determines is encoded once."""

    def __init__(self) -> None:
        self._heads: BoundedCache[RequestHeader, bytes] = BoundedCache(
            max_entries=1024, max_bytes=1 << 20, max_entry_bytes=1 << 16
        )

    def encode(self, header: RequestHeader, request_id: str, data: Sequence[Buffer]) -> list[Buffer]:
        """Return a request as the parts of a message, as `encode_request` does; no tensor is in shared memory."""
        head = self._heads.get(header)
        if head is None:
            head = b"".join(encode_request(header, "", [b""] * len(data)))
            head = head[: len(head) - len(data) * len(encode_framing(_RAW_INPUT_TAG, 0))]
            self._heads.remember(header, head, len(head))
        parts: list[Buffer] = [head]
        if request_id:
            text = request_id.encode()
            parts += (encode_framing(_ID_TAG, len(text)), text)
        for content in data:
            parts += (encode_framing(_RAW_INPUT_TAG, len(content)), content)
        size = sum(map(len, parts))
        if size > MAX_MESSAGE_BYTES:
            raise invalid_argument(f"the request has {size} bytes; a gRPC message has at most {MAX_MESSAGE_BYTES}")
        return join_small(parts)


def _add_parameters(message: pb.ModelInferRequest, header: RequestHeader) -> None:
    parameters = message.parameters
    for key, value in header.parameters.items():
        parameters[key].CopyFrom(_parameter(key, value))
    if isinstance(header.sequence_id, str):
        parameters["sequence_id"].string_param = header.sequence_id
    elif header.sequence_id:
        # Triton: a correlation id is unsigned and travels as int64.
        number = header.sequence_id
        parameters["sequence_id"].int64_param = number if number < _UINT64 // 2 else number - _UINT64
    for key, flag in (
        ("sequence_start", header.sequence_start),
        ("sequence_end", header.sequence_end),
        ("triton_enable_empty_final_response", header.wants_empty_final),
    ):
        if flag:
            parameters[key].bool_param = True
    if header.priority:
        parameters["priority"].uint64_param = header.priority
    if header.timeout_us:
        parameters["timeout"].int64_param = header.timeout_us


def _parameter(key: str, value: ParameterValue) -> pb.InferParameter:
    parameter = parameter_of(value)
    if parameter is None:
        raise invalid_argument(
            f"parameter '{excerpt(key)}' is {excerpt(repr(value))}; expected a string, a boolean, a float, or an "
            "integer of 64 bits"
        )
    return parameter


def _add_region(parameters: Any, region: SharedMemoryRegion) -> None:
    parameters["shared_memory_region"].string_param = region.name
    parameters["shared_memory_byte_size"].int64_param = region.byte_size
    if region.offset:
        parameters["shared_memory_offset"].int64_param = region.offset


def _add_output(message: pb.ModelInferRequest, output: RequestedOutput) -> None:
    tensor = message.outputs.add(name=output.name)
    if output.classification:
        tensor.parameters["classification"].int64_param = output.classification
    if output.shared_memory is not None:
        _add_region(tensor.parameters, output.shared_memory)


# --- responses ------------------------------------------------------------------------------------------------------


def decode_response(message: Buffer) -> DecodedResponse:
    """Return the request id and the response of a `ModelInferResponse`; outputs are views on `message`.

    Raises InferError(INTERNAL) if `message` is not a response.
    """
    return _decode(*_split(message))


class KeptResponseHeads:
    """Decodes responses, of which most have equal heads: all but the tensors is decoded once, and shared."""

    def __init__(self) -> None:
        self._known: BoundedCache[bytes, DecodedResponse] = BoundedCache(
            max_entries=256, max_bytes=1 << 20, max_entry_bytes=1 << 14
        )

    def decode(self, message: Buffer) -> DecodedResponse:
        """Return the request id and the response, as `decode_response` does. Raises InferError(INTERNAL)."""
        head, raw = _split(message)
        known = self._known.get(head)
        if known is None or len(raw) != len(known[1].data):
            decoded = _decode(head, raw)
            if raw:
                request_id, response = decoded
                kept = InferResponse(response.header, [b""] * len(raw), parameters=response.parameters)
                self._known.remember(head, (request_id, kept), len(head))
            return decoded
        request_id, response = known
        return request_id, InferResponse(response.header, raw, parameters=response.parameters)


def _split(message: Buffer) -> tuple[bytes, list[Buffer]]:
    """Return a response without the contents of its tensors, and those as views. Raises InferError(INTERNAL)."""
    view = memoryview(message)
    kept: list[Buffer] = []
    raw: list[Buffer] = []
    try:
        for key, begin, start, stop in fields(message, 0, len(message)):
            if key == _RAW_OUTPUT_KEY:
                raw.append(view[start:stop])
            else:
                kept.append(view[begin:stop])
    except (ValueError, IndexError):
        raise internal("the response is not a ModelInferResponse message") from None
    return b"".join(kept), raw


def _decode(head: bytes, raw: Sequence[Buffer]) -> DecodedResponse:
    parsed = _parse(pb.ModelInferResponse, head)
    specs = [_spec(tensor) for tensor in parsed.outputs]
    header = ResponseHeader(parsed.model_name, parsed.model_version, specs)
    parameters = {key: _value(parameter) for key, parameter in parsed.parameters.items()}
    return parsed.id, InferResponse(header, _data(parsed, specs, raw), parameters=parameters)


def decode_stream_response(message: Buffer) -> DecodedResponse:
    """Return the request id and the response of a `ModelStreamInferResponse`; outputs are views on `message`.

    Raises InferError with the error of the request, with UNKNOWN because the protocol carries no code, and INTERNAL
    if `message` is not a response.
    """
    found = read_stream_response(message)
    if found.error:
        raise InferError(ErrorCode.UNKNOWN, found.error)
    return decode_response(found.response)


def _parse(kind: type[_M], message: Buffer) -> _M:
    try:
        return kind.FromString(bytes(message))
    except DecodeError:
        raise internal(f"the response is not a {kind.DESCRIPTOR.name} message") from None


def _spec(tensor: Any) -> TensorSpec:
    datatype = BY_NAME.get(tensor.datatype)
    if datatype is None:
        raise internal(f"output '{excerpt(tensor.name)}' of the response has an unknown datatype")
    return TensorSpec(tensor.name, datatype, tuple(tensor.shape))


def _value(parameter: Any) -> ParameterValue:
    kind = parameter.WhichOneof("parameter_choice")
    value: ParameterValue = "" if kind is None else getattr(parameter, kind)
    return value


def _data(parsed: pb.ModelInferResponse, specs: Sequence[TensorSpec], raw: Sequence[Buffer]) -> list[Buffer]:
    """Return one buffer per output; outputs in shared memory have an empty one."""
    if raw:
        if len(raw) != len(specs):
            raise internal(f"the response has {len(specs)} outputs and the contents of {len(raw)}")
        return list(raw)
    data: list[Buffer] = []
    for tensor, spec in zip(parsed.outputs, specs, strict=True):
        try:
            data.append(finish(contents_to_raw([tensor.contents.SerializeToString()], spec, parsed.model_name)))
        except InferError as error:
            raise internal(f"output '{excerpt(spec.name)}' of the response: {error.message}") from None
    return data


# --- about the server and its models --------------------------------------------------------------------------------


def encode_model_reference(name: str, version: str = "") -> bytes:
    """Return a request message about one model; all such calls have the same fields."""
    return pb.ModelReadyRequest(name=name, version=version).SerializeToString()


def encode_load(name: str, config: str, files: Mapping[str, bytes]) -> bytes:
    """Return a load request: `config` is JSON, empty for the configuration in the repository; `files` are by path."""
    message = pb.RepositoryModelLoadRequest(model_name=name)
    if config:
        message.parameters["config"].string_param = config
    for path, content in files.items():
        message.parameters[f"file:{path}"].bytes_param = content
    return message.SerializeToString()


def encode_unload(name: str, *, unload_dependents: bool) -> bytes:
    """Return an unload request."""
    message = pb.RepositoryModelUnloadRequest(model_name=name)
    message.parameters["unload_dependents"].bool_param = unload_dependents
    return message.SerializeToString()


def encode_system_registration(name: str, key: str, offset: int, byte_size: int) -> bytes:
    """Return a registration of system shared memory."""
    request = pb.SystemSharedMemoryRegisterRequest(name=name, key=key, offset=offset, byte_size=byte_size)
    return request.SerializeToString()


def encode_cuda_registration(name: str, handle: bytes, device_id: int, byte_size: int) -> bytes:
    """Return a registration of CUDA shared memory."""
    request = pb.CudaSharedMemoryRegisterRequest(
        name=name, raw_handle=handle, device_id=device_id, byte_size=byte_size
    )
    return request.SerializeToString()


def encode_region_name(name: str) -> bytes:
    """Return a request about one region; the messages of system and CUDA memory have the same fields."""
    return pb.SystemSharedMemoryUnregisterRequest(name=name).SerializeToString()


def encode_index_request(*, only_ready: bool) -> bytes:
    """Return a request for the repository index."""
    return pb.RepositoryIndexRequest(ready=only_ready).SerializeToString()


def decode_flag(message: Buffer) -> bool:
    """Return the result of a health call; all of them have it in field 1. Raises InferError(INTERNAL)."""
    return _parse(pb.ServerLiveResponse, message).live


def decode_server_metadata(message: Buffer) -> ServerMetadata:
    """Return the metadata of a server. Raises InferError(INTERNAL)."""
    parsed = _parse(pb.ServerMetadataResponse, message)
    return ServerMetadata(parsed.name, parsed.version, list(parsed.extensions))


def decode_model_metadata(message: Buffer) -> ModelMetadata:
    """Return the metadata of a model. Raises InferError(INTERNAL)."""
    parsed = _parse(pb.ModelMetadataResponse, message)
    return ModelMetadata(
        name=parsed.name,
        versions=list(parsed.versions),
        platform=parsed.platform,
        inputs=[_spec(tensor) for tensor in parsed.inputs],
        outputs=[_spec(tensor) for tensor in parsed.outputs],
    )


def decode_model_config(message: Buffer) -> ModelConfig:
    """Return the configuration of a model. Raises InferError(INTERNAL)."""
    return _parse(pb.ModelConfigResponse, message).config


def decode_statistics(message: Buffer) -> list[dict[str, Any]]:
    """Return the rows of the statistics in the form of the HTTP endpoint. Raises InferError(INTERNAL)."""
    rows: list[dict[str, Any]] = message_tree(_parse(pb.ModelStatisticsResponse, message))["model_stats"]
    return rows


def decode_repository_index(message: Buffer) -> list[IndexEntry]:
    """Return the rows of the repository index. Raises InferError(INTERNAL)."""
    rows = _parse(pb.RepositoryIndexResponse, message).models
    try:
        return [index_entry(row.name, row.version, row.state, row.reason) for row in rows]
    except ValueError:
        raise internal("the response is not a repository index") from None


# --- a request that is sent many times ------------------------------------------------------------------------------
#
#     model_name, model_version | id, sequence parameters | other parameters, inputs, outputs, raw_input_contents
#     `-------- head ---------'  `- identity_fields() --'   `------------------------ rest --------------------'
#
# Protobuf merges repeated fields, so the parameters of a place in a sequence are encoded apart from the rest. The
# order is that of the protobuf library, which servers decode fastest.


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
    encoded = b""
    if request_id:
        text = request_id.encode()
        encoded = encode_framing(_ID, len(text)) + text
    if sequence_id:
        parameter = _INT64 + encode_varint(sequence_id)
        entry = b"%b%c%b" % (_SEQUENCE_ID, len(parameter), parameter)
        encoded += b"%c%c%b" % (_PARAMETERS, len(entry), entry)
        if starts_sequence:
            encoded += _START
        if ends_sequence:
            encoded += _END
    return encoded


# --- messages of a stream -------------------------------------------------------------------------------------------
#
# Protobuf libraries write fields in the order of their numbers, so id and parameters precede the outputs, which are
# left alone: the time for a message does not depend on its size.


_ERROR_MESSAGE, _INFER_RESPONSE = 0x0A, 0x12
_ID, _PARAMETERS, _OUTPUTS = 0x1A, 0x22, 0x2A
_ENTRY_KEY, _ENTRY_VALUE = 0x0A, 0x12
_FINAL_KEY = FINAL_RESPONSE.encode()
_ENTRIES = {
    b"\x0a%c%b\x12\x02\x08%c" % (len(_FINAL_KEY), _FINAL_KEY, is_final): is_final for is_final in (False, True)
}
"""The parameter as the libraries write it."""


class StreamResponse(NamedTuple):
    """A message of a stream."""

    error: str
    """"" for a response."""
    request_id: str
    """"" if the server has returned none."""
    is_final: bool
    """No other response to the request follows; so for each response of a model that is not decoupled."""
    is_empty: bool
    """It has no outputs: it only says that the last response was the final one."""
    response: Buffer
    """The `ModelInferResponse`."""


def read_stream_response(message: Buffer) -> StreamResponse:
    """Return what a `ModelStreamInferResponse` is. Raises InferError(INTERNAL) for a malformed one."""
    error = request_id = ""
    is_final = is_empty = True
    response: Buffer = b""
    try:
        for key, _, start, stop in fields(message, 0, len(message)):
            if key == _ERROR_MESSAGE:
                error = bytes(message[start:stop]).decode("utf-8", "replace")
            elif key == _INFER_RESPONSE:
                response = message[start:stop]
        for key, _, start, stop in fields(response, 0, len(response)):
            if key >= _OUTPUTS:
                is_empty = False
                break
            if key == _ID:
                request_id = bytes(response[start:stop]).decode("utf-8", "replace")
            elif key == _PARAMETERS:
                is_final = _read_final(bytes(response[start:stop]), is_final)
    except (ValueError, IndexError, DecodeError):
        raise internal("the response is not a ModelStreamInferResponse message") from None
    return StreamResponse(error, request_id, is_final, is_empty and not error, response)


def _read_final(entry: bytes, default: bool) -> bool:
    """Return the value of an entry of the parameters if it is that of the final response."""
    known = _ENTRIES.get(entry)
    if known is not None or _FINAL_KEY not in entry:
        return default if known is None else known
    is_key = False
    for key, _, start, stop in fields(entry, 0, len(entry)):
        if key == _ENTRY_KEY:
            is_key = entry[start:stop] == _FINAL_KEY
        elif key == _ENTRY_VALUE and is_key:
            return pb.InferParameter.FromString(entry[start:stop]).bool_param
    return default
