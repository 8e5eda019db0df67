"""InferParameter maps of gRPC requests: Triton's strict typing, reserved keys, shared-memory and class parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from naiad.core.errors import InferError, excerpt, invalid_argument
from naiad.core.parameters import ParameterValue
from naiad.core.request import RequestedOutput, SharedMemoryRegion

Parameters: TypeAlias = Mapping[str, Any]
"""A map field: key to `InferParameter` message."""

_ALLOWED_TRITON_KEY = "triton_enable_empty_final_response"
_UINT64 = 0xFFFF_FFFF_FFFF_FFFF


@dataclass(slots=True)
class RequestParameters:
    """Parameters of a request: the reserved ones as fields, the custom ones in `custom`."""

    custom: dict[str, ParameterValue] = field(default_factory=dict)
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    wants_empty_final: bool = False


def parse_request_parameters(parameters: Parameters) -> RequestParameters:
    """Return typed request parameters. Raises InferError(INVALID_ARG) with Triton's texts."""
    parsed = RequestParameters()
    for key, parameter in parameters.items():
        reserved = _RESERVED.get(key)
        if reserved is not None:
            reserved(parsed, parameter)
        elif key.startswith("triton_"):
            parsed.wants_empty_final = _enables_empty_final(key, parameter)
        else:
            parsed.custom[key] = _custom_value(key, parameter)
    return parsed


def _wrong_type(key: str, expected: str) -> InferError:
    return invalid_argument(f"invalid value type for '{excerpt(key)}' parameter, expected {expected}.")


def _set_sequence_id(parsed: RequestParameters, parameter: Any) -> None:
    kind = parameter.WhichOneof("parameter_choice")
    if kind == "int64_param":
        # Triton: the correlation id is unsigned; a negative one wraps.
        parsed.sequence_id = parameter.int64_param & _UINT64
    elif kind == "string_param":
        parsed.sequence_id = parameter.string_param
    else:
        raise _wrong_type("sequence_id", "int64_param or string_param")


def _set_sequence_start(parsed: RequestParameters, parameter: Any) -> None:
    parsed.sequence_start = _flag("sequence_start", parameter)


def _set_sequence_end(parsed: RequestParameters, parameter: Any) -> None:
    parsed.sequence_end = _flag("sequence_end", parameter)


def _flag(key: str, parameter: Any) -> bool:
    if parameter.WhichOneof("parameter_choice") != "bool_param":
        raise _wrong_type(key, "bool_param")
    return bool(parameter.bool_param)


def _set_priority(parsed: RequestParameters, parameter: Any) -> None:
    kind = parameter.WhichOneof("parameter_choice")
    if kind == "int64_param":
        if parameter.int64_param < 0:
            raise invalid_argument("invalid value for 'priority', expected value >= 0.")
        parsed.priority = parameter.int64_param
    elif kind == "uint64_param":
        parsed.priority = parameter.uint64_param
    else:
        raise _wrong_type("priority", "int64_param or uint64_param")


def _set_timeout(parsed: RequestParameters, parameter: Any) -> None:
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise _wrong_type("timeout", "int64_param")
    if parameter.int64_param < 0:
        raise invalid_argument("invalid value for 'timeout', expected value >= 0.")
    parsed.timeout_us = parameter.int64_param


_RESERVED = {
    "sequence_id": _set_sequence_id,
    "sequence_start": _set_sequence_start,
    "sequence_end": _set_sequence_end,
    "priority": _set_priority,
    "timeout": _set_timeout,
}


def _enables_empty_final(key: str, parameter: Any) -> bool:
    if key != _ALLOWED_TRITON_KEY:
        raise invalid_argument(
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
            f"starting with 'triton_' are allowed: {_ALLOWED_TRITON_KEY}"
        )
    # It speaks of streams: a unary call always has exactly one response.
    return _flag(key, parameter)


def _custom_value(key: str, parameter: Any) -> ParameterValue:
    kind = parameter.WhichOneof("parameter_choice")
    if kind is None or kind == "uint64_param":
        raise _wrong_type(key, "int64_param, bool_param, or string_param")
    value: ParameterValue = getattr(parameter, kind)
    return value


def parse_shared_memory(tensor_name: str, parameters: Parameters) -> SharedMemoryRegion | None:
    """Return where a tensor lies in shared memory, or None when it does not.

    Raises InferError(INVALID_ARG) for wrong types, and for an offset or size without a region or the reverse.
    """
    if not parameters:
        return None
    if "shared_memory_region" not in parameters:
        for key in ("shared_memory_offset", "shared_memory_byte_size"):
            if key in parameters:
                raise invalid_argument(
                    f"'{excerpt(key)}' can not be specified without 'shared_memory_region' parameter for tensor "
                    f"'{excerpt(tensor_name)}'"
                )
        return None
    region = parameters["shared_memory_region"]
    if region.WhichOneof("parameter_choice") != "string_param":
        raise _wrong_tensor_type("shared_memory_region", tensor_name, "string_param")
    offset = _tensor_int("shared_memory_offset", tensor_name, parameters)
    byte_size = _tensor_int("shared_memory_byte_size", tensor_name, parameters)
    if byte_size is None:
        raise invalid_argument(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
            f"'{excerpt(tensor_name)}'"
        )
    return SharedMemoryRegion(region.string_param, offset or 0, byte_size)


def _tensor_int(key: str, tensor_name: str, parameters: Parameters) -> int | None:
    if key not in parameters:
        return None
    parameter = parameters[key]
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise _wrong_tensor_type(key, tensor_name, "int64_param")
    return int(parameter.int64_param)


def _wrong_tensor_type(key: str, tensor_name: str, expected: str) -> InferError:
    return invalid_argument(
        f"invalid value type for '{excerpt(key)}' parameter for tensor '{excerpt(tensor_name)}', expected {expected}."
    )


def parse_requested_output(name: str, parameters: Parameters) -> RequestedOutput:
    """Return a requested output with its class count or shared-memory region. Raises InferError(INVALID_ARG)."""
    if not parameters:
        return RequestedOutput(name)
    region = parse_shared_memory(name, parameters)
    classification = _class_count(parameters)
    if region is not None and classification:
        raise invalid_argument("output can't set both 'shared_memory_region' and 'classification'")
    return RequestedOutput(name, classification=classification, shared_memory=region)


def _class_count(parameters: Parameters) -> int:
    if "classification" not in parameters:
        return 0
    parameter = parameters["classification"]
    # Triton: these two texts end without a full stop, and the second says >= where it means > 0.
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise invalid_argument("invalid value type for 'classification' parameter, expected int64_param")
    if parameter.int64_param <= 0:
        raise invalid_argument("invalid value for 'classification' parameter, expected >= 0")
    return int(parameter.int64_param)
