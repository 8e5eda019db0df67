"""Messages of the shared-memory calls and of the logging and trace settings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from google.protobuf.message import DecodeError

from naiad.core.errors import excerpt, invalid_argument, wrong_request
from naiad.core.model import CudaRegionStatus, SystemRegionStatus
from naiad.core.tensor import Buffer
from naiad.options.options import LogOptions
from naiad.options.trace import TraceOptions
from naiad.protocol import service_pb2 as pb
from naiad.protocol.grpc.control import parse_control
from naiad.protocol.json.settings import LOG_FORMATS, encodable, log_file_is_fixed, trace_values
from naiad.protocol.json.tree import MAX_CONTROL_BYTES

_LOG_SETTINGS = {
    "log_info": ("info", "bool_param"),
    "log_warning": ("warning", "bool_param"),
    "log_error": ("error", "bool_param"),
    "log_verbose_level": ("verbose", "uint32_param"),
    "log_format": ("format", "string_param"),
}


def decode_log_settings(message: Buffer, options: LogOptions) -> LogOptions:
    """Return the log settings after a request, given the current ones. Raises InferError."""
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
    name = changes.get("format", options.format)
    if name not in LOG_FORMATS:
        # Triton: UNAVAILABLE over HTTP, with the name of the flag.
        raise invalid_argument(f"invalid argument for log_format, got: {excerpt(name)}")
    return replace(options, **changes)


def encode_log_settings(options: LogOptions) -> bytes:
    """Return a LogSettingsResponse message."""
    response = pb.LogSettingsResponse()
    response.settings["log_file"].string_param = encodable(options.file)
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
