"""Control calls of the gRPC service: request messages to plain values, server state to response messages.

The requests about one model (`ModelReady`, `ModelMetadata`, `ModelConfig`, `ModelStatistics`) all have its name and
version in fields 1 and 2, so one message type parses them all.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, encodable, excerpt, invalid_argument, unsupported, wrong_request
from naiad.core.limits.request_limits import MAX_PARAMETERS
from naiad.core.model import (
    CudaRegionStatus,
    IndexEntry,
    ModelMetadata,
    ServerMetadata,
    SystemRegionStatus,
    name_of,
    version_number,
)
from naiad.core.slices import Slices
from naiad.core.tensor import Buffer, TensorSpec
from naiad.options.options import LOG_FORMATS, LogOptions
from naiad.options.trace import TraceOptions
from naiad.protocol import service_pb2 as pb
from naiad.protocol.grpc.infer import leading_text
from naiad.protocol.grpc.walk import check_field_count, last_text
from naiad.protocol.json.management.control import (
    COMPUTE_DURATIONS,
    INFER_DURATIONS,
    RESPONSE_DURATIONS,
    escaped,
    log_file_is_fixed,
    trace_values,
)
from naiad.protocol.json.tree import MAX_CONTROL_BYTES
from naiad.telemetry.statistics.version_statistics import Duration, VersionStatistics

HEALTH_SERVING = b"\x08\x01"
"""`grpc.health.v1.HealthCheckResponse` with status SERVING (field 1, an enum)."""
HEALTH_NOT_SERVING = b"\x08\x02"
"""HealthCheckResponse with status NOT_SERVING."""
HEALTH_SERVICE_UNKNOWN = b"\x08\x03"
"""HealthCheckResponse with status SERVICE_UNKNOWN, which Watch alone sends."""

_M = TypeVar("_M", bound=Message)


def parse_control(kind: type[_M], message: Buffer, most_bytes: int = MAX_CONTROL_BYTES) -> _M:
    """Return a parsed control request. Raises InferError(INVALID_ARG)."""
    if len(message) > most_bytes:
        raise invalid_argument(
            f"the message has {len(message)} bytes; at most {most_bytes} are allowed for {kind.DESCRIPTOR.name}"
        )
    try:
        return kind.FromString(bytes(message))
    except DecodeError as error:
        raise wrong_request(f"Unable to parse request: not a valid {kind.DESCRIPTOR.name} message") from error


# --- requests -------------------------------------------------------------------------------------------------------


def decode_model_reference(message: Buffer) -> tuple[str, str]:
    """Return name and version ("" for none) of a request about one model. Raises InferError(INVALID_ARG)."""
    request = parse_control(pb.ModelReadyRequest, message)
    return request.name, version_number(request.version)


def decode_index_request(message: Buffer) -> bool:
    """Return whether only ready models are requested. Raises InferError: UNSUPPORTED when a repository is named."""
    request = parse_control(pb.RepositoryIndexRequest, message)
    _check_repository(request.repository_name)
    return request.ready


def decode_load_request(message: Buffer) -> tuple[str, dict[str, str | bytes | bool]]:
    """Return the model's name and the load parameters: `config` (str), `file:<path>` (bytes), `force` and `dry_run`.

    Raises InferError: UNSUPPORTED when a repository is named, INVALID_ARG for other or ill-typed parameters.
    """
    check_field_count(message, MAX_PARAMETERS)
    request = parse_control(pb.RepositoryModelLoadRequest, message, len(message))
    _check_repository(request.repository_name)
    parameters = {key: _load_parameter(key, parameter) for key, parameter in request.parameters.items()}
    return request.model_name, parameters


def _load_parameter(key: str, parameter: Any) -> str | bytes | bool:
    if key == "config":
        kind = "string_param"
    elif key.startswith("file:"):
        kind = "bytes_param"
    elif key in ("force", "dry_run"):  # an extension of naiad
        kind = "bool_param"
    else:
        raise invalid_argument(f"unrecognized load parameter '{excerpt(key)}'.")
    if parameter.WhichOneof("parameter_choice") != kind:
        raise invalid_argument(f"invalid value type for load parameter '{excerpt(key)}', expected {kind}.")
    value: str | bytes | bool = getattr(parameter, kind)
    return value


def decode_unload_request(message: Buffer) -> tuple[str, dict[str, bool]]:
    """Return the model's name and the unload parameters (`unload_dependents`; Triton: others are ignored).

    Raises InferError: UNSUPPORTED when a repository is named, INVALID_ARG for an ill-typed parameter.
    """
    request = parse_control(pb.RepositoryModelUnloadRequest, message)
    _check_repository(request.repository_name)
    if "unload_dependents" not in request.parameters:
        return request.model_name, {}
    parameter = request.parameters["unload_dependents"]
    if parameter.WhichOneof("parameter_choice") != "bool_param":
        raise invalid_argument("invalid value type for 'unload_dependents' parameter, expected bool_param.")
    return request.model_name, {"unload_dependents": parameter.bool_param}


def _check_repository(name: str) -> None:
    if name:
        raise unsupported("'repository_name' specification is not supported")


# --- responses ------------------------------------------------------------------------------------------------------


def encode_flag(flag: bool) -> bytes:
    """Return a ServerLiveResponse, ServerReadyResponse or ModelReadyResponse message: all have it in field 1."""
    return pb.ServerLiveResponse(live=flag).SerializeToString()


def encode_server_metadata(metadata: ServerMetadata) -> bytes:
    """Return a ServerMetadataResponse message."""
    return pb.ServerMetadataResponse(
        name=metadata.name, version=metadata.version, extensions=metadata.extensions
    ).SerializeToString()


def encode_model_metadata(metadata: ModelMetadata) -> bytes:
    """Return a ModelMetadataResponse message."""
    return pb.ModelMetadataResponse(
        name=metadata.name,
        versions=metadata.versions,
        platform=metadata.platform,
        inputs=map(_tensor_metadata, metadata.inputs),
        outputs=map(_tensor_metadata, metadata.outputs),
    ).SerializeToString()


def _tensor_metadata(spec: TensorSpec) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(name=spec.name, datatype=spec.datatype.value, shape=spec.shape)


def encode_model_config(config: ModelConfig) -> bytes:
    """Return a ModelConfigResponse message."""
    return pb.ModelConfigResponse(config=config).SerializeToString()


def encode_repository_index(entries: Sequence[IndexEntry]) -> bytes:
    """Return a RepositoryIndexResponse message; a model that was never loaded has only a name."""
    response = pb.RepositoryIndexResponse()
    for entry in entries:
        state = entry.state.value if entry.state is not None else ""
        reason = encodable(entry.reason)
        response.models.add(name=name_of(entry.name), version=entry.version, state=state, reason=reason)
    return response.SerializeToString()


_SLICE_ROWS = 8
"""Versions that are encoded in less than a millisecond."""


def statistics_in_slices(versions: Sequence[VersionStatistics]) -> Slices[bytes]:
    """Return a ModelStatisticsResponse message, and yield about every millisecond.

    Clients expect all durations, also those that are zero.
    """
    parts = []
    for start in range(0, len(versions), _SLICE_ROWS):
        rows = versions[start : start + _SLICE_ROWS]
        # Messages of a repeated field may be joined: together they are one message with all of them.
        parts.append(pb.ModelStatisticsResponse(model_stats=map(_model_statistics, rows)).SerializeToString())
        yield
    return b"".join(parts)


def _model_statistics(version: VersionStatistics) -> pb.ModelStatistics:
    return pb.ModelStatistics(
        name=version.name,
        version=version.version,
        last_inference=version.last_inference_ms,
        inference_count=version.inference_count,
        execution_count=version.execution_count,
        inference_stats=pb.InferStatistics(**_durations(version, INFER_DURATIONS)),
        batch_stats=[
            pb.InferBatchStatistics(batch_size=batch.batch_size, **_durations(batch, COMPUTE_DURATIONS))
            for batch in version.batch_stats
        ],
        response_stats={
            str(number): pb.InferResponseStatistics(**_durations(entry, RESPONSE_DURATIONS))
            for number, entry in enumerate(version.response_stats)
        },
    )


def _durations(statistics: object, names: Sequence[str]) -> dict[str, Any]:
    durations: list[Duration] = [getattr(statistics, name) for name in names]
    return {
        name: pb.StatisticDuration(count=each.count, ns=each.ns) for name, each in zip(names, durations, strict=True)
    }


# --- rejected calls -------------------------------------------------------------------------------------------------


def decode_health_check(message: Buffer) -> str:
    """Return the service of a HealthCheckRequest; empty for the whole server. Raises InferError."""
    return last_text(message, 1)


def refusal(path: str) -> InferError:
    """Return the UNSUPPORTED error for a call to `path`, which no handler serves."""
    return unsupported(f"unknown method '{excerpt(path)}'")


# --- shared memory and settings -------------------------------------------------------------------------------------


_LOG_SETTINGS = {
    "log_info": ("info", "bool_param"),
    "log_warning": ("warning", "bool_param"),
    "log_error": ("error", "bool_param"),
    "log_verbose_level": ("verbose", "uint32_param"),
    "log_format": ("format", "string_param"),
}


def decode_log_changes(message: Buffer) -> dict[str, Any]:
    """Return the fields of `LogOptions` that a request changes. Raises InferError."""
    request = _parse(pb.LogSettingsRequest, message)
    changes: dict[str, Any] = {}
    for name, value in request.settings.items():
        if name == "log_file":
            raise log_file_is_fixed()
        given = value.WhichOneof("parameter_choice")
        if name not in _LOG_SETTINGS or given is None:
            continue
        field, kind = _LOG_SETTINGS[name]
        if given != kind:
            raise invalid_argument(f"invalid value type for '{excerpt(name)}' setting, expected {kind}.")
        changes[field] = getattr(value, kind)
    if "format" in changes and changes["format"] not in LOG_FORMATS:
        # Triton: UNAVAILABLE over HTTP, with the name of the flag.
        raise invalid_argument(f"invalid argument for log_format, got: {excerpt(changes['format'])}")
    return changes


def encode_log_settings(options: LogOptions) -> bytes:
    """Return a LogSettingsResponse message."""
    response = pb.LogSettingsResponse()
    response.settings["log_file"].string_param = escaped(options.file)
    for name, (field, kind) in _LOG_SETTINGS.items():
        setattr(response.settings[name], kind, getattr(options, field))
    return response.SerializeToString()


def decode_trace_settings(message: Buffer) -> tuple[str, Mapping[str, Sequence[str] | None]]:
    """Return the model ("" for the server) and the settings to change; a setting without a value is reset.

    Raises InferError.
    """
    request = _parse(pb.TraceSettingRequest, message)
    changes: dict[str, Sequence[str] | None] = {}
    for name, setting in request.settings.items():
        if len(setting.value) > 1 and name != "trace_level":
            raise invalid_argument(f"expect only 1 value for '{excerpt(name)}', got {len(setting.value)}")
        changes[name] = list(setting.value) or None
    return request.model_name, changes


def encode_trace_settings(options: TraceOptions) -> bytes:
    """Return a TraceSettingResponse message."""
    response = pb.TraceSettingResponse()
    for name, values in trace_values(options).items():
        response.settings[name].value.extend(values)
    return response.SerializeToString()


def _parse(kind: Any, message: Buffer) -> Any:
    if len(message) > MAX_CONTROL_BYTES:
        raise invalid_argument(f"the message has {len(message)} bytes; at most {MAX_CONTROL_BYTES} are allowed")
    try:
        return kind.FromString(bytes(message))
    except DecodeError as error:
        raise wrong_request(f"the request is not a {kind.__name__}: {error}") from None


def decode_name(message: Buffer) -> str:
    """Return the name ("" for all) in a status or unregister call for either kind of memory."""
    # All four messages have the name in field 1 and nothing else.
    return parse_control(pb.SystemSharedMemoryStatusRequest, message).name


def decode_system_registration(message: Buffer) -> tuple[str, str, int, int]:
    """Return name, key, offset and byte size. Raises InferError(INVALID_ARG)."""
    request = parse_control(pb.SystemSharedMemoryRegisterRequest, message)
    return request.name, request.key, request.offset, request.byte_size


def decode_cuda_registration(message: Buffer) -> tuple[str, bytes, int, int]:
    """Return name, handle, device id and byte size. Raises InferError(INVALID_ARG)."""
    request = parse_control(pb.CudaSharedMemoryRegisterRequest, message)
    return request.name, request.raw_handle, request.device_id, request.byte_size


def encode_system_status(regions: Sequence[SystemRegionStatus]) -> bytes:
    """Return a SystemSharedMemoryStatusResponse message."""
    response = pb.SystemSharedMemoryStatusResponse()
    for region in regions:
        row = response.regions[region.name]
        row.name, row.key, row.offset, row.byte_size = region.name, region.key, region.offset, region.byte_size
    return response.SerializeToString()


def encode_cuda_status(regions: Sequence[CudaRegionStatus]) -> bytes:
    """Return a CudaSharedMemoryStatusResponse message."""
    response = pb.CudaSharedMemoryStatusResponse()
    for region in regions:
        row = response.regions[region.name]
        row.name, row.device_id, row.byte_size = region.name, region.device_id, region.byte_size
    return response.SerializeToString()


# --- what a command changes, for the audit --------------------------------------------------------------------------


def model_of_command(message: Buffer) -> str:
    """Return the model of a load or unload; empty if the message does not begin with it."""
    return leading_text(message, pb.RepositoryModelLoadRequest.MODEL_NAME_FIELD_NUMBER)  # files may follow


def region_of_command(message: Buffer) -> str:
    """Return the region of a registration or of its end."""
    return leading_text(message, 1)


def subject_of_log_settings(message: Buffer) -> str | None:
    """Return the name of what a request changes, which has none; None for a request that changes nothing."""
    return _subject(pb.LogSettingsRequest, message)


def subject_of_trace_settings(message: Buffer) -> str | None:
    """Return the model of a request, empty for the server; None for a request that changes nothing."""
    return _subject(pb.TraceSettingRequest, message)


def _subject(kind: Any, message: Buffer) -> str | None:
    try:
        request = kind.FromString(bytes(message))
    except DecodeError:
        return ""
    return getattr(request, "model_name", "") if request.settings else None
