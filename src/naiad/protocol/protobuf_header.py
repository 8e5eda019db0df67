"""A parsed `ModelInferRequest` message to a request header and data: the complete path for every legal request."""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from naiad.core.datatype import BY_NAME, DataType
from naiad.core.errors import InferError, excerpt, internal, invalid_argument
from naiad.core.parameters import NO_PARAMETERS
from naiad.core.request import RequestHeader, SharedMemoryRegion
from naiad.core.request_limits import check_dims, check_name, check_parameters
from naiad.core.slices import Slices
from naiad.core.tensor import Buffer, TensorSpec
from naiad.protocol.protobuf_contents import contents_to_raw
from naiad.protocol.protobuf_parameters import parse_request_parameters, parse_requested_output, parse_shared_memory
from naiad.protocol.service_pb2 import ModelInferRequest


def parse_message(message: Buffer) -> ModelInferRequest:
    """Parse a serialized request. Raises InferError(INTERNAL), the code gRPC servers give for unparsable requests."""
    try:
        return ModelInferRequest.FromString(bytes(message))
    except DecodeError as error:
        raise internal("Unable to parse request: not a valid ModelInferRequest message") from error


def to_header_and_data(
    request: ModelInferRequest, raw: Sequence[Buffer], contents: Mapping[int, Sequence[Buffer]]
) -> Slices[tuple[RequestHeader, list[Buffer]]]:
    """Return header and data of a parsed request, in slices.

    `raw` and `contents` were cut out of it, see `CutRequest`. Inputs in shared memory have an empty buffer in the
    data. Raises InferError(INVALID_ARG) with Triton's texts, in Triton's order: parameters, inputs, their data,
    requested outputs.
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

    Triton: raw contents are consumed in order by the inputs outside shared memory; those left over are ignored.
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
