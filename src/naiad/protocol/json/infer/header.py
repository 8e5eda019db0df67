"""The JSON of an inference request to a RequestHeader: tensors, parameters, requested outputs.

It also decodes tensor data in base64, an extension of naiad for clients without binary bodies.
"""

import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import simdjson

from naiad.core.datatype import BY_NAME, DataType
from naiad.core.errors import InferError, excerpt, invalid_argument, wrong_request
from naiad.core.limits.request_limits import RequestLimits, check_dims, check_name, check_parameters, unlimited
from naiad.core.parameters import ParameterValue
from naiad.core.request import RequestedOutput, RequestHeader, SharedMemoryRegion
from naiad.core.slices import Slices
from naiad.core.tensor import Buffer, TensorSpec, encode_bytes_elements
from naiad.protocol.json.document import LongArray, LongString
from naiad.protocol.json.infer.long_data import decode_long_array, decode_long_base64
from naiad.protocol.json.tensor import NAN_PARAMETER, checked_base64, decode_data, not_one_string
from naiad.protocol.json.tree import (
    JsonObject,
    as_array,
    as_bool,
    as_string,
    as_unsigned,
    member,
    members_of,
    mismatch,
    shown,
    unparsable,
)


def decode_base64(spec: TensorSpec, data: Any) -> Buffer:
    """Return the raw bytes of an input's `data`.

    Numbers of every datatype, FP16 and BF16 included, are one string: their bytes, little-endian, in row-major order.
    BYTES are an array of strings, one per element. Raises InferError(INVALID_ARG) for any other value.
    """
    if spec.datatype is DataType.BYTES:
        return encode_bytes_elements(_decode_elements(spec, data))
    if not isinstance(data, str):
        raise not_one_string(spec)
    return checked_base64(spec, _decode(spec, data))


def _decode_elements(spec: TensorSpec, data: Any) -> list[bytes]:
    elements: Any = data.as_list() if isinstance(data, simdjson.Array) else data
    if not isinstance(elements, list) or not all(isinstance(element, str) for element in elements):
        raise invalid_argument(
            f"base64 'data' of BYTES input '{excerpt(spec.name)}' must be an array of strings, one an element"
        )
    if len(elements) != spec.element_count:
        raise invalid_argument(
            f"base64 'data' of input '{excerpt(spec.name)}' has {len(elements)} elements; its shape has "
            f"{spec.element_count}"
        )
    return [_decode(spec, element) for element in elements]


def _decode(spec: TensorSpec, text: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True) if text else b""
    except (binascii.Error, ValueError) as error:
        raise invalid_argument(f"'data' of input '{excerpt(spec.name)}' is not base64: {error}") from None


@dataclass(frozen=True, slots=True)
class InputData:
    """Source of the data of one input: exactly one of the three, or shared memory if all are None."""

    inline: Buffer | None = None
    """Data decoded from the JSON `data`."""
    is_encoded: bool = False
    """`data` was base64 text; it does not predict the form of other requests."""
    tail_bytes: int | None = None
    """Bytes of the binary tail that belong to this input."""
    long: LongArray | LongString | None = None
    """Long `data` in the JSON that is not decoded yet."""


@dataclass(frozen=True, slots=True)
class JsonRequest:
    """A decoded JSON header, shared by requests with the same JSON."""

    header: RequestHeader
    id: str
    data: Sequence[InputData]


def decode_request(
    model_name: str, model_version: str, tree: JsonObject, limits: RequestLimits | None = None
) -> JsonRequest:
    """Return the request in a JSON document. Raises InferError with Triton's codes and texts."""
    limits = limits or unlimited(model_name, model_version)
    request_id = as_string("id", tree["id"]) if "id" in tree else ""
    fields, custom = _decode_parameters(members_of(tree))
    specs: list[TensorSpec] = []
    data: list[InputData] = []
    regions: dict[str, SharedMemoryRegion] = {}
    inputs = as_array("inputs", member(tree, "inputs"))
    limits.check_inputs(len(inputs))
    outputs = as_array("outputs", tree["outputs"]) if "outputs" in tree else []
    limits.check_outputs(len(outputs))
    for position, entry in enumerate(inputs):
        try:
            fields_of = entry if isinstance(entry, dict) else {}
            spec, source, region = _decode_input(fields_of, nan_is_null=fields.get("nan_is_null", False))
        except InferError as error:
            raise _in_input(error, entry, position) from None
        specs.append(spec)
        data.append(source)
        if region is not None:
            regions[spec.name] = region
    header = RequestHeader(
        model_name=model_name,
        model_version=model_version,
        inputs=specs,
        outputs=[_decode_output(entry if isinstance(entry, dict) else {}) for entry in outputs],
        parameters=custom,
        shared_memory=regions,
        **fields,
    )
    return JsonRequest(header, request_id, data)


# --- request parameters ---------------------------------------------------------------------------------------------


def _decode_sequence_id(field: str, value: Any) -> int | str:
    return value if type(value) is int and 0 <= value < 1 << 64 else as_string(field, value)


def nan_means_null(field: str, value: Any) -> bool:
    """Return whether the parameter `json_nan` chooses null. Raises InferError(INVALID_ARG)."""
    if value not in ("null", "bare"):
        raise invalid_argument(
            f"parameter '{field}' is {shown(value)}, expected \"null\" (null stands for NaN in both directions) or "
            '"bare" (NaN is written as NaN)'
        )
    return bool(value == "null")


# Parameter name to (field of RequestHeader, function that reads it).
_RESERVED: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "sequence_id": ("sequence_id", _decode_sequence_id),
    "sequence_start": ("sequence_start", as_bool),
    "sequence_end": ("sequence_end", as_bool),
    "priority": ("priority", as_unsigned),
    "timeout": ("timeout_us", as_unsigned),
    "binary_data_output": ("binary_output_default", as_bool),
    NAN_PARAMETER: ("nan_is_null", nan_means_null),
}


def _decode_parameters(parameters: JsonObject) -> tuple[dict[str, Any], dict[str, ParameterValue]]:
    """Return the fields of the header that reserved parameters set, and the custom parameters."""
    fields: dict[str, Any] = {}
    custom: dict[str, ParameterValue] = {}
    check_parameters(len(parameters))
    for name, value in parameters.items():
        check_name("a parameter", name)
        reserved = _RESERVED.get(name)
        if reserved is not None:
            field, read = reserved
            fields[field] = read(name, value)
        elif name.startswith("triton_"):
            raise invalid_argument(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
            )
        else:
            custom[name] = _decode_custom(name, value)
    return fields, custom


def _decode_custom(name: str, value: Any) -> ParameterValue:
    if type(value) in (str, bool, float) or (type(value) is int and -(1 << 63) <= value < 1 << 63):
        accepted: ParameterValue = value
        return accepted
    raise invalid_argument(
        f"parameter '{excerpt(name)}' has invalid type. It should be either 'int', 'bool', or 'string'."
    )


# --- inputs and outputs ---------------------------------------------------------------------------------------------


def _decode_input(
    entry: JsonObject, *, nan_is_null: bool = False
) -> tuple[TensorSpec, InputData, SharedMemoryRegion | None]:
    parameters = members_of(entry)
    present = [name for name in ("data",) if name in entry]
    present += [name for name in ("binary_data_size", "shared_memory_region") if name in parameters]
    if len(present) != 1:
        raise _ambiguous_data(present)
    spec = _decode_spec(entry)
    is_base64 = "data" in entry and parameters.get("encoding") == "base64"
    if "data" in entry and isinstance(entry["data"], LongArray | LongString):
        return spec, InputData(long=entry["data"], is_encoded=is_base64), None
    if is_base64:
        return spec, InputData(inline=decode_base64(spec, entry["data"]), is_encoded=True), None
    if "data" in entry:
        return spec, InputData(inline=decode_data(spec, entry["data"], nan_is_null=nan_is_null)), None
    if "binary_data_size" in parameters:
        size = as_unsigned("binary_data_size", parameters["binary_data_size"])
        return spec, InputData(tail_bytes=size), None
    return spec, InputData(), _decode_region(parameters)


def decode_long(spec: TensorSpec, source: InputData, position: int, *, nan_is_null: bool = False) -> Slices[Buffer]:
    """Return the raw bytes of an input with long, only located `data`. Raises InferError."""
    long = source.long
    try:
        if source.is_encoded:
            return (yield from decode_long_base64(spec, long))
        if not isinstance(long, LongArray):
            raise mismatch("data", long, "non-array as array", "an array in brackets")
        return (yield from decode_long_array(spec, long, nan_is_null=nan_is_null))
    except InferError as error:
        raise _in_input(error, {"name": spec.name}, position) from None


def _in_input(error: InferError, entry: Any, position: int) -> InferError:
    """Append the name of the wrong input to Triton's text, which lacks it."""
    name = entry.get("name") if isinstance(entry, dict) else None
    which = f"input '{excerpt(name)}'" if type(name) is str else f"inputs[{position}]"
    if which in error.message or which.replace("'", "") in error.message:
        return error
    return error.with_message(f"{error.message} ({which})")


def _ambiguous_data(present: Sequence[str]) -> InferError:
    found = "set " + " ".join(f"'{name}'" for name in present) if present else "no field is set"
    return invalid_argument(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. But {found}"
    )


def _decode_spec(entry: JsonObject) -> TensorSpec:
    name = as_string("name", member(entry, "name"))
    check_name("an input", name)
    datatype = BY_NAME.get(as_string("datatype", member(entry, "datatype")))
    if datatype is None:
        raise invalid_argument(f"invalid datatype for input {excerpt(name)}; expected one of {', '.join(BY_NAME)}")
    dims = as_array("shape", member(entry, "shape"))
    check_dims(name, len(dims))
    shape = [as_unsigned("shape", dim) for dim in dims]
    if any(dim >> 63 for dim in shape):
        raise unparsable("shape", f"a dimension is larger than 2^63 - 1; got {max(shape)}, expected less: correct it")
    return TensorSpec(name, datatype, tuple(shape))


def _decode_region(parameters: JsonObject) -> SharedMemoryRegion:
    return SharedMemoryRegion(
        as_string("shared_memory_region", parameters["shared_memory_region"]),
        as_unsigned("shared_memory_offset", parameters.get("shared_memory_offset", 0)),
        # Triton: a missing size is a size of 0, which no region accepts.
        as_unsigned("shared_memory_byte_size", parameters.get("shared_memory_byte_size", 0)),
    )


def _decode_output(entry: JsonObject) -> RequestedOutput:
    name = as_string("name", member(entry, "name"))
    check_name("an output", name)
    parameters = members_of(entry)
    try:
        classification = as_unsigned("classification", parameters.get("classification", 0))
    except InferError as error:
        # Triton: this one parameter has "set" in its text, all others "parse".
        raise wrong_request(error.message.replace("parse", "set", 1)) from None
    binary = as_bool("binary_data", parameters.get("binary_data", False))
    region = _decode_region(parameters) if "shared_memory_region" in parameters else None
    if region is not None and classification:
        raise invalid_argument("Output can't set both 'shared_memory_region' and 'classification'")
    if region is not None and binary:
        raise invalid_argument("Output can't set both 'shared_memory_region' and 'binary_data'")
    return RequestedOutput(name, binary=binary, classification=classification, shared_memory=region)
