"""A parsed `ModelInferRequest` to a request header and data: the complete path for every legal request.

It applies Triton's rules for InferParameter maps: strict types, reserved keys, shared-memory and class parameters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError

from naiad.core.datatype import BY_NAME, DataType
from naiad.core.errors import InferError, excerpt, invalid_argument, wrong_request
from naiad.core.limits.request_limits import check_dims, check_name, check_parameters
from naiad.core.parameters import NO_PARAMETERS, ParameterValue
from naiad.core.request import RequestedOutput, RequestHeader, SharedMemoryRegion
from naiad.core.slices import Slices
from naiad.core.tensor import Buffer, TensorSpec
from naiad.protocol.grpc.contents import contents_to_raw
from naiad.protocol.service_pb2 import ModelInferRequest

Parameters: TypeAlias = Mapping[str, Any]
"""A map field: key to `InferParameter` message."""

_ALLOWED_TRITON_KEY = "triton_enable_empty_final_response"
_UINT64 = 0xFFFF_FFFF_FFFF_FFFF


@dataclass(slots=True)
class RequestParameters:
    """Parameters of a request: reserved parameters as fields, custom parameters in `custom`."""

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
    # The parameter is for streams: a unary call always has exactly one response.
    return _flag(key, parameter)


def _custom_value(key: str, parameter: Any) -> ParameterValue:
    kind = parameter.WhichOneof("parameter_choice")
    if kind is None or kind == "uint64_param":
        raise _wrong_type(key, "int64_param, bool_param, or string_param")
    value: ParameterValue = getattr(parameter, kind)
    return value


def parse_shared_memory(tensor_name: str, parameters: Parameters) -> SharedMemoryRegion | None:
    """Return the region of a tensor in shared memory, or None for a tensor outside shared memory.

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
    # Triton: these two texts end without a full stop, and the second prints >= where it means > 0.
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise invalid_argument("invalid value type for 'classification' parameter, expected int64_param")
    if parameter.int64_param <= 0:
        raise invalid_argument("invalid value for 'classification' parameter, expected >= 0")
    return int(parameter.int64_param)


def parse_message(message: Buffer) -> ModelInferRequest:
    """Parse a serialized request. Raises InferError(INVALID_ARG). Triton: INTERNAL."""
    try:
        return ModelInferRequest.FromString(bytes(message))
    except DecodeError as error:
        raise wrong_request("Unable to parse request: not a valid ModelInferRequest message") from error


def to_header_and_data(
    request: ModelInferRequest, raw: Sequence[Buffer], contents: Mapping[int, Sequence[Buffer]]
) -> Slices[tuple[RequestHeader, list[Buffer]]]:
    """Return header and data of a parsed request, in slices.

    `raw` and `contents` were cut out of the request, see `CutRequest`. Inputs in shared memory have an empty buffer
    in the data. Raises InferError(INVALID_ARG) with Triton's texts, in Triton's order: parameters, inputs, their
    data, requested outputs.
    """
    check_parameters(len(request.parameters))
    parameters = parse_request_parameters(request.parameters)
    specs = [_spec(tensor) for tensor in request.inputs]
    regions: dict[str, SharedMemoryRegion] = {}
    data = yield from _data(request, specs, raw, contents, regions)
    header = RequestHeader(
        model_name=request.model_name,
        model_version=request.model_version,
        inputs=specs,
        outputs=[parse_requested_output(output.name, output.parameters) for output in request.outputs],
        parameters=parameters.custom or NO_PARAMETERS,
        priority=parameters.priority,
        timeout_us=parameters.timeout_us,
        sequence_id=parameters.sequence_id,
        sequence_start=parameters.sequence_start,
        sequence_end=parameters.sequence_end,
        wants_empty_final=parameters.wants_empty_final,
        shared_memory=regions,
    )
    return header, data


def _spec(tensor: Any) -> TensorSpec:
    check_name("an input", tensor.name)
    check_dims(tensor.name, len(tensor.shape))
    return TensorSpec(tensor.name, _datatype(tensor.name, tensor.datatype), tuple(tensor.shape))


def _datatype(input_name: str, datatype: str) -> DataType:
    found = BY_NAME.get(datatype)
    if found is None:
        raise invalid_argument(
            f"inference input '{excerpt(input_name)}' data-type is '{excerpt(datatype)}', which is not a datatype: "
            f"expected one of {', '.join(BY_NAME)}"
        )
    return found


def _data(
    request: ModelInferRequest,
    specs: Sequence[TensorSpec],
    raw: Sequence[Buffer],
    contents: Mapping[int, Sequence[Buffer]],
    regions: dict[str, SharedMemoryRegion],
) -> Slices[list[Buffer]]:
    """Return one buffer per input and note shared-memory inputs in `regions`.

    Triton: the inputs outside shared memory consume the raw contents in order; further contents are ignored.
    """
    data: list[Buffer] = []
    remaining = iter(raw)
    for position, (tensor, spec) in enumerate(zip(request.inputs, specs, strict=True)):
        region = parse_shared_memory(tensor.name, tensor.parameters)
        if region is not None:
            if tensor.HasField("contents"):
                raise _input_error(
                    "unexpected 'content' provided when using shared memory for input tensor", request, spec, ""
                )
            regions[tensor.name] = region
            data.append(b"")
        elif tensor.HasField("contents"):
            if raw:
                raise _input_error(
                    "contents field must not be specified when using raw_input_contents for", request, spec, ""
                )
            data.append((yield from contents_to_raw(contents[position], spec, request.model_name)))
        else:
            content = next(remaining, None)
            if content is None:
                raise _input_error("unable to find data for input tensor", request, spec, " in request.")
            data.append(content)
    return data


def _input_error(opening: str, request: ModelInferRequest, spec: TensorSpec, ending: str) -> InferError:
    return invalid_argument(f"{opening} '{excerpt(spec.name)}' for model '{excerpt(request.model_name)}'{ending}")
