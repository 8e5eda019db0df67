"""Messages of the logging and trace settings: the LogSettings and TraceSetting calls."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from google.protobuf.message import DecodeError

from naiad.config.options import LogOptions
from naiad.config.trace import TraceOptions
from naiad.core.errors import excerpt, internal, invalid_argument
from naiad.core.tensor import Buffer
from naiad.protocol import service_pb2 as pb
from naiad.protocol.json_tree import MAX_CONTROL_BYTES
from naiad.protocol.settings_json import LOG_FORMATS, log_file_is_fixed, trace_values

_LOG_SETTINGS = {
    "log_info": ("info", "bool_param"),
    "log_warning": ("warning", "bool_param"),
    "log_error": ("error", "bool_param"),
    "log_verbose_level": ("verbose", "uint32_param"),
    "log_format": ("format", "string_param"),
}


def decode_log_settings(message: Buffer, options: LogOptions) -> LogOptions:
    """Return the log settings that a request asks for, given those in force. Raises InferError."""
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
    response.settings["log_file"].string_param = options.file
    for name, (field, kind) in _LOG_SETTINGS.items():
        setattr(response.settings[name], kind, getattr(options, field))
    return response.SerializeToString()


def decode_trace_settings(message: Buffer) -> tuple[str, Mapping[str, Sequence[str] | None]]:
    """Return the model ("" for the server) and the settings to change; without a value one goes back.

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
        raise internal(f"the request is not a {kind.__name__}: {error}") from None
