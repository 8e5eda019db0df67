"""The client side of HTTP bodies: requests to JSON, or to a JSON header with a binary tail; bodies to responses."""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import orjson

from naiad.core.datatype import BY_NAME, DataType
from naiad.core.errors import InferError, excerpt, internal, invalid_argument
from naiad.core.model import IndexEntry, ModelMetadata, ModelState, ServerMetadata
from naiad.core.request import RequestedOutput, RequestHeader, SharedMemoryRegion
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import Buffer, TensorSpec
from naiad.protocol.json.response import Encoded, binary_tensor, tensor_prefix
from naiad.protocol.json.tensor import decode_data, encode_data
from naiad.protocol.json.tree import JsonObject, as_array, as_string, as_unsigned, member, members_of, parse_document

DecodedResponse: TypeAlias = tuple[str, InferResponse]
"""Request id and response."""


def encode_request(
    header: RequestHeader, request_id: str, data: Sequence[Buffer], *, binary_inputs: bool = True
) -> Encoded:
    """Return the parts of a request's body and the length of its JSON; None if the body is all JSON.

    `data` has one buffer per input; the buffer of an input in shared memory is ignored. The model's name and version
    are part of the URL. Raises InferError(INVALID_ARG) for an input that JSON cannot carry unless `binary_inputs`
    (FP16, BF16, strings that are not UTF-8), and for `wants_empty_final`, which exists only in gRPC.
    """
    if header.wants_empty_final:
        raise invalid_argument("an empty final response can be requested over gRPC only")
    tail: list[Buffer] = []
    inputs: list[bytes] = []
    for spec, content in zip(header.inputs, data, strict=True):
        region = header.shared_memory.get(spec.name)
        if region is not None:
            inputs.append(b'%s,"parameters":%s}' % (tensor_prefix(spec), orjson.dumps(_region(region))))
        elif binary_inputs:
            inputs.append(binary_tensor(tensor_prefix(spec), len(content)))
            if len(content):
                tail.append(content)
        else:
            inputs.append(b'%s,"data":%s}' % (tensor_prefix(spec), _input_data(spec, content)))
    members = [b'"id":%s' % _dumps(request_id)] if request_id else []
    parameters = _request_parameters(header)
    if parameters:
        members.append(b'"parameters":%s' % _dumps(parameters))
    members.append(b'"inputs":[%s]' % b",".join(inputs))
    if header.outputs:
        members.append(b'"outputs":%s' % _dumps([_requested(output) for output in header.outputs]))
    text = b"{%s}" % b",".join(members)
    return (text, *tail), len(text) if binary_inputs else None


def _dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise invalid_argument(f"the request cannot be written as JSON: {error}") from None


def _request_parameters(header: RequestHeader) -> dict[str, Any]:
    reserved: tuple[tuple[str, Any], ...] = (
        ("sequence_id", header.sequence_id),
        ("sequence_start", header.sequence_start),
        ("sequence_end", header.sequence_end),
        ("priority", header.priority),
        ("timeout", header.timeout_us),
        ("binary_data_output", header.binary_output_default),
    )
    return {**header.parameters, **{name: value for name, value in reserved if value or value == ""}}


def _region(region: SharedMemoryRegion) -> dict[str, Any]:
    return {
        "shared_memory_region": region.name,
        "shared_memory_offset": region.offset,
        "shared_memory_byte_size": region.byte_size,
    }


def _requested(output: RequestedOutput) -> dict[str, Any]:
    parameters: dict[str, Any] = {} if output.shared_memory is None else _region(output.shared_memory)
    if output.binary:
        parameters["binary_data"] = True
    if output.classification:
        parameters["classification"] = output.classification
    return {"name": output.name, "parameters": parameters} if parameters else {"name": output.name}


def _input_data(spec: TensorSpec, data: Buffer) -> bytes:
    try:
        return encode_data(spec, data)
    except InferError:
        what = "holds bytes that are not UTF-8" if spec.datatype is DataType.BYTES else f"is {spec.datatype.value}"
        raise invalid_argument(
            f"input '{excerpt(spec.name)}' {what}, which JSON cannot carry; send it as binary data"
        ) from None


# --- responses ------------------------------------------------------------------------------------------------------


@contextmanager
def _from_server() -> Iterator[None]:
    """Raise the errors of decoders of requests as INTERNAL: a wrong response is a fault of the server."""
    try:
        yield
    except InferError as error:
        raise internal(error.message) from None


@_from_server()
def decode_response(body: Buffer, json_length: int | None) -> DecodedResponse:
    """Return the request id and the response of a body; large outputs are views on it.

    `json_length` is the value of Inference-Header-Content-Length; None if the whole body is JSON. Raises
    InferError(INTERNAL) if the body is not a response.
    """
    size = len(body) if json_length is None else json_length
    if not 0 <= size <= len(body):
        raise internal(f"the response has {len(body)} bytes, its header length says {size}")
    view = memoryview(body)
    tree = _parse_object(view[:size])
    specs: list[TensorSpec] = []
    data: list[Buffer] = []
    position = size
    for entry in as_array("outputs", tree.get("outputs", [])):
        if not isinstance(entry, dict):
            raise internal("an output of the response is not a JSON object")
        spec = _spec(entry)
        specs.append(spec)
        parameters = members_of(entry)
        if "binary_data_size" in parameters:
            stop = position + as_unsigned("binary_data_size", parameters["binary_data_size"])
            if stop > len(body):
                raise internal(f"output '{excerpt(spec.name)}' of the response is cut short")
            data.append(view[position:stop])
            position = stop
        else:
            data.append(decode_data(spec, entry["data"]) if "data" in entry else b"")
    if position != len(body):
        raise internal(f"{len(body) - position} bytes follow the outputs of the response")
    header = ResponseHeader(_text(tree, "model_name"), _text(tree, "model_version"), specs)
    response = InferResponse(header, data, parameters=dict(members_of(tree)))
    return _text(tree, "id"), response


def _parse_object(text: Buffer) -> JsonObject:
    try:
        tree = orjson.loads(text)
    except ValueError:
        tree = _parse_python_json(text)
    if not isinstance(tree, dict):
        raise internal("the response is not a JSON object")
    return tree


def _parse_python_json(text: Buffer) -> Any:
    """Parse a document with NaN or Infinity. Raises InferError(INTERNAL) with the beginning of anything else."""
    try:
        return parse_document(text)
    except InferError:
        start = excerpt(bytes(text[:80]).decode("utf-8", "replace").strip())
        raise internal(f"the response is not JSON, but begins with '{start}'; is this the address of REST?") from None


def _text(tree: JsonObject, name: str) -> str:
    return as_string(name, tree.get(name, ""))


def _spec(entry: JsonObject) -> TensorSpec:
    name = as_string("name", member(entry, "name"))
    datatype = BY_NAME.get(as_string("datatype", member(entry, "datatype")))
    if datatype is None:
        raise internal(f"output '{excerpt(name)}' of the response has an unknown datatype")
    shape = as_array("shape", member(entry, "shape"))
    if not all(type(dim) is int for dim in shape):
        raise internal(f"the shape of '{excerpt(name)}' in the response has elements that are no integers")
    return TensorSpec(name, datatype, tuple(shape))


def decode_error(body: Buffer) -> str:
    """Return the message of an error body; the beginning of the body if it is not `{"error": message}`."""
    try:
        message = orjson.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        message = excerpt(bytes(body[:1000]).decode("utf-8", "replace").strip())
    return message if isinstance(message, str) else excerpt(str(message))


# --- about the server and its models --------------------------------------------------------------------------------


@_from_server()
def decode_object(body: Buffer) -> dict[str, Any]:
    """Return the JSON object in a body. Raises InferError(INTERNAL)."""
    return dict(_parse_object(body))


def encode_object(members: Mapping[str, Any]) -> bytes:
    """Return a JSON object. Raises InferError(INVALID_ARG) for values that JSON does not have."""
    return _dumps(dict(members))


@_from_server()
def decode_server_metadata(body: Buffer) -> ServerMetadata:
    """Return the metadata in the body of `GET /v2`. Raises InferError(INTERNAL)."""
    tree = _parse_object(body)
    extensions = [as_string("extensions", each) for each in as_array("extensions", tree.get("extensions", []))]
    return ServerMetadata(_text(tree, "name"), _text(tree, "version"), extensions)


@_from_server()
def decode_model_metadata(body: Buffer) -> ModelMetadata:
    """Return the metadata in the body of `GET /v2/models/{m}`. Raises InferError(INTERNAL)."""
    tree = _parse_object(body)
    return ModelMetadata(
        name=_text(tree, "name"),
        versions=[as_string("versions", each) for each in as_array("versions", tree.get("versions", []))],
        platform=_text(tree, "platform"),
        inputs=[_spec(entry) for entry in as_array("inputs", tree.get("inputs", []))],
        outputs=[_spec(entry) for entry in as_array("outputs", tree.get("outputs", []))],
    )


@_from_server()
def decode_statistics(body: Buffer) -> list[dict[str, Any]]:
    """Return the rows of `GET /v2/models/stats`. Raises InferError(INTERNAL)."""
    return as_array("model_stats", member(_parse_object(body), "model_stats"))


def decode_repository_index(body: Buffer) -> list[IndexEntry]:
    """Return the rows of `POST /v2/repository/index`. Raises InferError(INTERNAL)."""
    try:
        rows = orjson.loads(body)
        return [
            index_entry(row["name"], row.get("version", ""), row.get("state", ""), row.get("reason", ""))
            for row in rows
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise internal("the response is not a repository index") from None


def index_entry(name: str, version: str, state: str, reason: str) -> IndexEntry:
    """Return a row of the repository index; a model that was never loaded has no state. Raises ValueError."""
    return IndexEntry(name, version, ModelState(state) if state else None, reason)


def encode_load(config: str, files: Mapping[str, bytes]) -> bytes:
    """Return the body of a load: `config` is JSON, empty for the configuration in the repository; `files` are by
    path.
    """
    parameters = {f"file:{path}": b64encode(content).decode() for path, content in files.items()}
    if config:
        parameters["config"] = config
    return orjson.dumps({"parameters": parameters} if parameters else {})


def encode_unload(*, unload_dependents: bool) -> bytes:
    """Return the body of an unload."""
    return orjson.dumps({"parameters": {"unload_dependents": unload_dependents}})


def encode_system_registration(key: str, offset: int, byte_size: int) -> bytes:
    """Return the body of a registration of system shared memory."""
    return orjson.dumps({"key": key, "offset": offset, "byte_size": byte_size})


def encode_cuda_registration(handle: bytes, device_id: int, byte_size: int) -> bytes:
    """Return the body of a registration of CUDA shared memory."""
    raw_handle = {"b64": b64encode(handle).decode()}
    return orjson.dumps({"raw_handle": raw_handle, "device_id": device_id, "byte_size": byte_size})


def encode_index_request(*, only_ready: bool) -> bytes:
    """Return the body of a request for the repository index."""
    return orjson.dumps({"ready": only_ready})


# --- a request that is sent many times ------------------------------------------------------------------------------


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
