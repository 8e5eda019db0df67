"""Control calls of the gRPC service: request messages to plain values, server state to response messages.

The requests about one model (`ModelReady`, `ModelMetadata`, `ModelConfig`, `ModelStatistics`) all have its name and
version in fields 1 and 2, so one message type parses them all.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, encodable, excerpt, invalid_argument, unsupported, wrong_request
from naiad.core.model import IndexEntry, ModelMetadata, ServerMetadata, name_of
from naiad.core.request_limits import MAX_PARAMETERS
from naiad.core.tensor import Buffer, TensorSpec
from naiad.protocol import service_pb2 as pb
from naiad.protocol.grpc.walk import check_field_count
from naiad.protocol.json.tree import MAX_CONTROL_BYTES
from naiad.telemetry.statistics.version import Duration, PositionStatistics, VersionStatistics

HEALTH_SERVING = b"\x08\x01"
"""`grpc.health.v1.HealthCheckResponse` with status SERVING (field 1, an enum)."""
HEALTH_NOT_SERVING = b"\x08\x02"
"""HealthCheckResponse with status NOT_SERVING."""
EMPTY_RESPONSE = b""
"""`RepositoryModelLoadResponse` and `RepositoryModelUnloadResponse` have no fields."""

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


# --- requests ---------------------------------------------------------------------------------------------------


def decode_model_reference(message: Buffer) -> tuple[str, str]:
    """Return name and version ("" for none) of a request about one model. Raises InferError(INVALID_ARG)."""
    request = parse_control(pb.ModelReadyRequest, message)
    return request.name, request.version


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


# --- responses --------------------------------------------------------------------------------------------------


def encode_server_live(live: bool) -> bytes:
    """Return a ServerLiveResponse message."""
    return pb.ServerLiveResponse(live=live).SerializeToString()


def encode_server_ready(ready: bool) -> bytes:
    """Return a ServerReadyResponse message."""
    return pb.ServerReadyResponse(ready=ready).SerializeToString()


def encode_model_ready(ready: bool) -> bytes:
    """Return a ModelReadyResponse message."""
    return pb.ModelReadyResponse(ready=ready).SerializeToString()


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


def encode_model_statistics(versions: Sequence[VersionStatistics]) -> bytes:
    """Return a ModelStatisticsResponse message. Clients expect all durations, also those that are zero."""
    response = pb.ModelStatisticsResponse(model_stats=map(_model_statistics, versions))
    return response.SerializeToString()


def _model_statistics(version: VersionStatistics) -> pb.ModelStatistics:
    return pb.ModelStatistics(
        name=version.name,
        version=version.version,
        last_inference=version.last_inference_ms,
        inference_count=version.inference_count,
        execution_count=version.execution_count,
        inference_stats=pb.InferStatistics(
            success=_duration(version.success),
            fail=_duration(version.fail),
            queue=_duration(version.queue),
            compute_input=_duration(version.compute_input),
            compute_infer=_duration(version.compute_infer),
            compute_output=_duration(version.compute_output),
            cache_hit=_duration(version.cache_hit),
            cache_miss=_duration(version.cache_miss),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=batch.batch_size,
                compute_input=_duration(batch.compute_input),
                compute_infer=_duration(batch.compute_infer),
                compute_output=_duration(batch.compute_output),
            )
            for batch in version.batch_stats
        ],
        response_stats={str(number): _response_stats(entry) for number, entry in enumerate(version.response_stats)},
    )


def _response_stats(entry: PositionStatistics) -> pb.InferResponseStatistics:
    return pb.InferResponseStatistics(
        compute_infer=_duration(entry.compute_infer),
        compute_output=_duration(entry.compute_output),
        success=_duration(entry.success),
        fail=_duration(entry.fail),
        empty_response=_duration(entry.empty_response),
        cancel=_duration(entry.cancel),
    )


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)


# --- rejected calls ---------------------------------------------------------------------------------------------


def refusal(path: str) -> InferError:
    """Return the UNSUPPORTED error for a call to `path`, which no handler serves."""
    return unsupported(f"unknown method '{excerpt(path)}'")
