"""JSON of the shared-memory routes and of the logging and trace settings."""

import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from naiad.core.errors import ErrorCode, InferError, excerpt, invalid_argument, unsupported
from naiad.core.model import CudaRegionStatus, SystemRegionStatus
from naiad.core.tensor import Buffer
from naiad.options.options import LogOptions
from naiad.options.trace import TraceOptions
from naiad.protocol.json.tree import as_array, as_bool, as_string, as_unsigned, member, parse_control_document

_UINT32_MAX = 2**32 - 1
LOG_FORMATS = ("default", "ISO8601")


def encode_log_settings(options: LogOptions) -> bytes:
    """Return the body of `GET /v2/logging`."""
    return orjson.dumps(
        {
            "log_file": encodable(options.file),
            "log_info": options.info,
            "log_warning": options.warning,
            "log_error": options.error,
            "log_verbose_level": options.verbose,
            "log_format": options.format,
        }
    )


def encodable(file: str) -> str:
    """Return the name of a file with the bytes escaped that are not UTF-8: neither JSON nor protobuf has them."""
    return file.encode(errors="backslashreplace").decode()


def decode_log_settings(body: Buffer, options: LogOptions) -> LogOptions:
    """Return the log settings after a request, given the current ones. Raises InferError."""
    tree = _members(body)
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
    return replace(options, **changes)


def log_file_is_fixed() -> InferError:
    """Return the error for an attempt to change the log file."""
    return unsupported("log file location can not be updated through network protocol")


def _checked_log_format(name: str) -> str:
    """Return a known log format. Raises InferError."""
    if name not in LOG_FORMATS:
        raise InferError(
            ErrorCode.INVALID_ARG,
            f"invalid argument for --log_format, got: {excerpt(name)}; expected {' or '.join(LOG_FORMATS)}",
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
        "trace_file": (encodable(options.file),),
        "trace_mode": (options.mode,),
    }


def encode_trace_settings(options: TraceOptions) -> bytes:
    """Return the body of `GET /v2/trace/setting`: a list for the level, strings for the rest."""
    values = trace_values(options)
    return orjson.dumps({name: list(value) if name == "trace_level" else value[0] for name, value in values.items()})


def decode_trace_settings(body: Buffer) -> Mapping[str, Sequence[str] | None]:
    """Return the trace settings that a request changes: None for `null`, which resets. Raises InferError."""
    return {name: _values(name, value) for name, value in _members(body).items() if name in _TRACE_SETTINGS}


_TRACE_SETTINGS = frozenset(trace_values(TraceOptions()))


def _values(name: str, value: Any) -> Sequence[str] | None:
    if value is None:
        return None
    if name == "trace_level":
        return [as_string(name, level) for level in as_array(name, value)]
    return (as_string(name, value),)


def _members(body: Buffer) -> Mapping[str, Any]:
    tree = parse_control_document(body)
    # Triton: a value that is not an object has no members.
    return tree if isinstance(tree, dict) else {}


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
