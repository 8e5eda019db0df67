"""JSON payloads about the server and its models: metadata, statistics, repository, shared memory, settings."""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError, encodable, excerpt, invalid_argument, unsupported, wrong_request
from naiad.core.model import (
    CudaRegionStatus,
    IndexEntry,
    ModelMetadata,
    ModelState,
    ServerMetadata,
    SystemRegionStatus,
    name_of,
)
from naiad.core.slices import Slices, finish
from naiad.core.tensor import Buffer, TensorSpec
from naiad.options.options import LOG_FORMATS, LogOptions
from naiad.options.trace import TraceOptions
from naiad.protocol.json.document import LongString, read_document
from naiad.protocol.json.infer.long_data import decode_base64_text, decode_long_string
from naiad.protocol.json.tree import (
    MAX_CONTROL_BYTES,
    as_array,
    as_bool,
    as_string,
    as_unsigned,
    member,
    parse_control_document,
)
from naiad.telemetry.statistics.version_statistics import (
    Duration,
    VersionStatistics,
)

_PARAMETERS_NO_OBJECT = (
    "Unable to parse 'parameters': attempt to get members for non-object; expected an object, such as "
    '"parameters": {"config": "{...}"}'
)
_MAX_CONFIG_BYTES = 1 << 20
"""Limit of the configuration in a load request."""


def encode_error(message: str) -> bytes:
    """Return the body of an error response: `{"error": message}`."""
    return orjson.dumps({"error": encodable(message)})


def encode_server_metadata(metadata: ServerMetadata) -> bytes:
    """Return the body of `GET /v2`."""
    return orjson.dumps({"name": metadata.name, "version": metadata.version, "extensions": list(metadata.extensions)})


def encode_model_metadata(metadata: ModelMetadata) -> bytes:
    """Return the body of `GET /v2/models/{m}`."""
    return orjson.dumps(
        {
            "name": metadata.name,
            "versions": list(metadata.versions),
            "platform": metadata.platform,
            "inputs": [_tensor(spec) for spec in metadata.inputs],
            "outputs": [_tensor(spec) for spec in metadata.outputs],
        }
    )


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype.value, "shape": list(spec.shape)}


def encode_model_config(config: ModelConfig) -> bytes:
    """Return the body of `GET /v2/models/{m}/config`."""
    return orjson.dumps(message_tree(config))


def message_tree(message: Message) -> dict[str, Any]:
    """Return a message in Triton's JSON form.

    Proto field names, scalars with their defaults, enums by name, keys of maps as strings, and 64-bit integers as
    numbers, where protobuf's own JSON writes strings.
    """
    tree: dict[str, Any] = {}
    field: Any  # protobuf's stubs contradict each other about descriptors
    for field in message.DESCRIPTOR.fields:
        if isinstance(field.default_value, list):
            tree[field.name] = _repeated(field, getattr(message, field.name))
        elif not field.has_presence or message.HasField(field.name):
            tree[field.name] = _value(field, getattr(message, field.name))
    return tree


def _repeated(field: Any, values: Any) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        value_field = kind.fields_by_name["value"]
        return {_key(key): _value(value_field, values[key]) for key in sorted(values)}
    return [_value(field, value) for value in values]


def _key(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _value(field: Any, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return message_tree(value)
    if field.type == FieldDescriptor.TYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b64encode(value).decode()
    return value


def encode_statistics(rows: Sequence[VersionStatistics]) -> bytes:
    """Return the body of `GET /v2/models/stats` and of its variants for one model."""
    return finish(statistics_in_slices(rows))


_SLICE_ROWS = 16
"""Rows of statistics that are encoded in less than a millisecond."""


def statistics_in_slices(rows: Sequence[VersionStatistics]) -> Slices[bytes]:
    """Return the result of `encode_statistics`, and yield about every millisecond."""
    parts = []
    for start in range(0, len(rows), _SLICE_ROWS):
        encoded = orjson.dumps([_statistics(row) for row in rows[start : start + _SLICE_ROWS]])
        parts.append(encoded[1:-1])
        yield
    return b'{"model_stats":[%s]}' % b",".join(parts)


COMPUTE_DURATIONS = ("compute_input", "compute_infer", "compute_output")
# perf_analyzer reads all eight without checking their presence.
INFER_DURATIONS = ("success", "fail", "queue", *COMPUTE_DURATIONS, "cache_hit", "cache_miss")
RESPONSE_DURATIONS = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")
"""Fields of type `Duration` of the statistics of a version and of a response position."""


def _statistics(row: VersionStatistics) -> dict[str, Any]:
    body: dict[str, Any] = {
        "name": row.name,
        "version": row.version,
        "last_inference": row.last_inference_ms,
        "inference_count": row.inference_count,
        "execution_count": row.execution_count,
        "inference_stats": _durations(row, INFER_DURATIONS),
        "response_stats": {
            str(number): _durations(entry, RESPONSE_DURATIONS) for number, entry in enumerate(row.response_stats)
        },
        "batch_stats": [
            {"batch_size": batch.batch_size, **_durations(batch, COMPUTE_DURATIONS)} for batch in row.batch_stats
        ],
        "memory_usage": [],
    }
    # naiad only: Triton's protocol buffer has no field for it.
    if row.release_reasons:
        body["release_reasons"] = row.release_reasons
    if row.steps:
        names = ("success", "fail", "queue", "compute")
        body["ensemble_steps"] = [{"model": name_of(step.model), **_durations(step, names)} for step in row.steps]
    return body


def _durations(statistics: object, names: Sequence[str]) -> dict[str, dict[str, int]]:
    durations: list[Duration] = [getattr(statistics, name) for name in names]
    return {name: {"count": each.count, "ns": each.ns} for name, each in zip(names, durations, strict=True)}


def encode_repository_index(entries: Sequence[IndexEntry]) -> bytes:
    """Return the body of `POST /v2/repository/index`; unknown fields of a model are left out."""
    return orjson.dumps([_index_entry(entry) for entry in entries])


def encode_models(entries: Sequence[IndexEntry]) -> bytes:
    """Return the body of `GET /v2/models`."""
    rows = [{**_index_entry(entry), "ready": entry.state is ModelState.READY} for entry in entries]
    return orjson.dumps({"models": rows})


def _index_entry(entry: IndexEntry) -> dict[str, str]:
    row = {"name": name_of(entry.name)}
    if entry.version:
        row["version"] = entry.version
    if entry.state is not None:
        row["state"] = entry.state.value
    if entry.reason:
        row["reason"] = encodable(entry.reason)
    return row


def decode_index_request(body: Buffer) -> bool:
    """Return whether only ready models are requested. Raises InferError."""
    tree = _decode_object(body)
    ready = tree.get("ready", False)
    if type(ready) is not bool:
        raise invalid_argument(
            "Unable to parse 'ready': attempt to access JSON non-boolean as boolean; expected true or false, such as "
            '{"ready": true}'
        )
    return ready


def decode_load_parameters(body: Buffer) -> dict[str, str | bytes | bool]:
    """Return the `parameters` of a load request: `config` (str), `file:<path>` (bytes), `force` and `dry_run` (bool).

    A body with files is long and is read in slices. Call it on a thread other than the event loop's, which runs
    between slices. Raises InferError.
    """
    if len(body) > MAX_CONTROL_BYTES:
        return finish(_long_load_parameters(body))
    return {name: _load_parameter(name, value) for name, value in _parameters(body).items()}


def _long_load_parameters(body: Buffer) -> Slices[dict[str, str | bytes | bool]]:
    members = yield from read_document(body)
    parameters = dict(reversed(members)).get("parameters", ()) if type(members) is tuple else ()
    if type(parameters) is not tuple:
        raise wrong_request(_PARAMETERS_NO_OBJECT)
    decoded: dict[str, str | bytes | bool] = {}
    for name, value in reversed(parameters):
        if not isinstance(value, LongString):
            decoded[name] = _load_parameter(name, value)
            continue
        if not name.startswith("file:") and value.end - value.start > _MAX_CONFIG_BYTES:
            raise invalid_argument(f"'{excerpt(name)}' has more than {_MAX_CONFIG_BYTES} bytes")
        text = yield from decode_long_string(value)
        if name.startswith("file:"):
            decoded[name] = yield from decode_base64_text(f"the content of '{excerpt(name)}'", text)
        else:
            decoded[name] = _load_parameter(name, text.decode())
    return decoded


def _load_parameter(name: str, value: Any) -> str | bytes | bool:
    if name in ("force", "dry_run"):  # an extension of naiad
        return as_bool(name, value)
    if name == "config":
        return as_string(name, value)
    if not name.startswith("file:"):
        raise wrong_request(
            f"unexpected error on creating Triton parameter '{excerpt(name)}'; the parameters of a load are "
            "'config', "
            "'file:<path>', 'force' and 'dry_run'"
        )
    try:
        return b64decode(as_string(name, value), validate=True)
    except ValueError:
        raise invalid_argument(
            f"Unable to parse '{excerpt(name)}': the content of a file must be in base64"
        ) from None


def decode_unload_parameters(body: Buffer) -> dict[str, bool]:
    """Return the `parameters` of an unload request (`unload_dependents`; Triton: others are ignored).

    Raises InferError.
    """
    parameters = _parameters(body)
    if "unload_dependents" not in parameters:
        return {}
    return {"unload_dependents": as_bool("unload_dependents", parameters["unload_dependents"])}


def _parameters(body: Buffer) -> Mapping[str, Any]:
    parameters = _decode_object(body).get("parameters", {})
    if not isinstance(parameters, dict):
        raise wrong_request(_PARAMETERS_NO_OBJECT)
    return parameters


def _decode_object(body: Buffer) -> Mapping[str, Any]:
    if not len(body):
        return {}
    tree = parse_control_document(body)
    if not isinstance(tree, dict):
        raise invalid_argument("the request's body is not a JSON object; put its members into braces: {...}")
    return tree


# --- shared memory and settings -------------------------------------------------------------------------------------


_UINT32_MAX = 2**32 - 1


def encode_log_settings(options: LogOptions) -> bytes:
    """Return the body of `GET /v2/logging`."""
    return orjson.dumps(
        {
            "log_file": escaped(options.file),
            "log_info": options.info,
            "log_warning": options.warning,
            "log_error": options.error,
            "log_verbose_level": options.verbose,
            "log_format": options.format,
        }
    )


def escaped(file: str) -> str:
    """Return the name of a file with the bytes escaped that are not UTF-8: neither JSON nor protobuf has them."""
    return file.encode(errors="backslashreplace").decode()


def decode_log_changes(body: Buffer) -> dict[str, Any]:
    """Return the fields of `LogOptions` that a request changes. Raises InferError."""
    tree = _tree(body)
    if "log_file" in tree:
        raise log_file_is_fixed()
    changes: dict[str, Any] = {}
    for name, field in (("log_info", "info"), ("log_warning", "warning"), ("log_error", "error")):
        if name in tree:
            changes[field] = as_bool(name, tree[name])
    if "log_verbose_level" in tree:
        level = as_unsigned("log_verbose_level", tree["log_verbose_level"])
        if level > _UINT32_MAX:
            raise invalid_argument(f"log_verbose_level {level} is too large; the most is {_UINT32_MAX}")
        changes["verbose"] = level
    if "log_format" in tree:
        changes["format"] = _checked_log_format(as_string("log_format", tree["log_format"]))
    return changes


def log_file_is_fixed() -> InferError:
    """Return the error for an attempt to change the log file."""
    return unsupported("log file location can not be updated through network protocol")


def _checked_log_format(name: str) -> str:
    """Return a known log format. Raises InferError."""
    if name not in LOG_FORMATS:
        raise InferError(
            ErrorCode.INVALID_ARG,
            f"invalid argument for --log_format, got: {excerpt(name)}; expected {', '.join(LOG_FORMATS[:-1])} or "
            f"{LOG_FORMATS[-1]}",
            triton_code=ErrorCode.UNAVAILABLE,
        )
    return name


def trace_values(options: TraceOptions) -> Mapping[str, Sequence[str]]:
    """Return trace settings in the form of the protocol: lists of strings by name."""
    return {
        "trace_level": options.level,
        "trace_rate": (str(options.rate),),
        "trace_count": (str(options.count),),
        "log_frequency": (str(options.log_frequency),),
        "trace_file": (escaped(options.file),),
        "trace_mode": (options.mode,),
    }


def encode_trace_settings(options: TraceOptions) -> bytes:
    """Return the body of `GET /v2/trace/setting`: a list for the level, strings for the rest."""
    values = trace_values(options)
    return orjson.dumps({name: list(value) if name == "trace_level" else value[0] for name, value in values.items()})


def decode_trace_settings(body: Buffer) -> Mapping[str, Sequence[str] | None]:
    """Return the trace settings that a request changes: None for `null`, which resets. Raises InferError."""
    return {name: _values(name, value) for name, value in _tree(body).items() if name in _TRACE_SETTINGS}


_TRACE_SETTINGS = frozenset(trace_values(TraceOptions()))


def _values(name: str, value: Any) -> Sequence[str] | None:
    if value is None:
        return None
    if name == "trace_level":
        return [as_string(name, level) for level in as_array(name, value)]
    return (as_string(name, value),)


HANDLE_BYTES = 64
"""sizeof(cudaIpcMemHandle_t)."""


def decode_system_registration(body: Buffer) -> tuple[str, int, int]:
    """Return key, offset and byte size. Raises InferError with Triton's codes and texts."""
    tree = _tree(body)
    key = as_string("key", _field(tree, "key"))
    offset = as_unsigned("offset", tree["offset"]) if "offset" in tree else 0
    return key, offset, as_unsigned("byte_size", _field(tree, "byte_size"))


def decode_cuda_registration(body: Buffer) -> tuple[bytes, int, int]:
    """Return the handle, device id and byte size. Raises InferError with Triton's codes and texts."""
    tree = _tree(body)
    raw_handle = _field(tree, "raw_handle")
    text = as_string("b64", member(raw_handle if isinstance(raw_handle, dict) else {}, "b64"))
    device_id = as_unsigned("device_id", member(tree, "device_id"))
    byte_size = as_unsigned("byte_size", member(tree, "byte_size"))
    try:
        handle = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        handle = b""
    if len(handle) != HANDLE_BYTES:
        raise invalid_argument(
            f"'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t, which has {HANDLE_BYTES} bytes"
        )
    return handle, device_id, byte_size


def _tree(body: Buffer) -> dict[str, Any]:
    """Return the members of a body; Triton: a value that is not an object has none."""
    tree = parse_control_document(body)
    return tree if isinstance(tree, dict) else {}


def _field(tree: dict[str, Any], name: str) -> Any:
    if name not in tree:
        raise invalid_argument(f"Shared memory register request has no '{name}' field")
    return tree[name]


def encode_system_status(regions: Sequence[SystemRegionStatus]) -> bytes:
    """Return the body of `GET /v2/systemsharedmemory/status` and of its variant for one region."""
    return orjson.dumps(
        [{"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size} for r in regions]
    )


def encode_cuda_status(regions: Sequence[CudaRegionStatus]) -> bytes:
    """Return the body of `GET /v2/cudasharedmemory/status` and of its variant for one region."""
    return orjson.dumps([{"name": r.name, "device_id": r.device_id, "byte_size": r.byte_size} for r in regions])
