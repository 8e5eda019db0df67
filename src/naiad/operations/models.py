"""Operations that show the server and its models: health, metadata, configuration, statistics, rollouts, API page."""

from collections.abc import Sequence

from naiad.core.errors import excerpt, not_found, unavailable
from naiad.core.slices import Slices
from naiad.core.tensor import Buffer
from naiad.engine.engine import Engine
from naiad.operations.operation import (
    AnyOperation,
    GrpcForm,
    Operation,
    RestForm,
    RestReply,
    decode_nothing,
    decode_version,
    json_reply,
)
from naiad.operations.requests import ModelVersion
from naiad.protocol.grpc import control as control_grpc
from naiad.protocol.json.management import control as control_json
from naiad.protocol.json.management.explanation import encode_explanation
from naiad.protocol.json.management.rollout import encode_status
from naiad.telemetry.statistics.version_statistics import VersionStatistics

_MODEL = "/v2/models/{model}[/versions/{version}]"
_ROLLOUT = "/v2/models/{model}/rollout"
_TEXT = b"text/plain"
_HEALTH_SERVICES = (
    "",
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)
"""Names that clients may ask for; the empty one is the whole server."""


def _is_ready(engine: Engine) -> bool:
    if engine.phase.is_draining:
        raise unavailable("Server exiting")
    return engine.views.is_ready()


def _health_reply(is_well: bool) -> RestReply:
    return RestReply(b"", 200 if is_well else 400, _TEXT)


def _model_ready_reply(is_ready: bool) -> RestReply:
    if is_ready:
        return RestReply(b"", 200, _TEXT)
    return RestReply(control_json.encode_error("Model version not ready"), 400)


def _decode_no_message(message: Buffer) -> None:
    """Return None: the method says all."""


def _decode_model(message: Buffer) -> ModelVersion:
    return ModelVersion(*control_grpc.decode_model_reference(message))


def decode_health_check(message: Buffer) -> None:
    """Check the service of a HealthCheckRequest. Raises InferError(NOT_FOUND) for one that the server lacks."""
    service = control_grpc.decode_health_check(message)
    if service not in _HEALTH_SERVICES:
        known = ", ".join(f"'{name}'" for name in _HEALTH_SERVICES)
        raise not_found(f"unknown service '{excerpt(service)}'; known are {known}")


def encode_health(is_ready: bool) -> bytes:
    """Return a HealthCheckResponse."""
    return control_grpc.HEALTH_SERVING if is_ready else control_grpc.HEALTH_NOT_SERVING


def _statistics(engine: Engine, request: ModelVersion) -> Slices[Sequence[VersionStatistics]]:
    return engine.views.statistics_in_slices(request.model, request.version)


def _statistics_reply(rows: Sequence[VersionStatistics]) -> Slices[RestReply]:
    return RestReply((yield from control_json.statistics_in_slices(rows)))


# --- server ---------------------------------------------------------------------------------------------------------

SERVER_METADATA = Operation(
    name="server_metadata",
    category="metadata",
    kind="query",
    group="Server",
    summary="Name, version and extensions of the server",
    rest=[RestForm("GET", "/v2", decode_nothing, json_reply(control_json.encode_server_metadata))],
    grpc=GrpcForm("ServerMetadata", _decode_no_message, control_grpc.encode_server_metadata),
    call=lambda engine, _: engine.views.server_metadata(),
)
SERVER_LIVE = Operation(
    name="server_live",
    category="health",
    kind="query",
    group="Server",
    summary="200 if the process responds",
    # A draining server is alive: after a failed liveness probe an orchestrator would kill it before it has finished.
    rest=[RestForm("GET", "/v2/health/live", decode_nothing, _health_reply)],
    grpc=GrpcForm("ServerLive", _decode_no_message, control_grpc.encode_flag),
    call=lambda engine, _: engine.views.is_live(),
)
SERVER_READY = Operation(
    name="server_ready",
    category="health",
    kind="query",
    group="Server",
    summary="200 if the server is ready",
    rest=[RestForm("GET", "/v2/health/ready", decode_nothing, _health_reply)],
    grpc=GrpcForm("ServerReady", _decode_no_message, control_grpc.encode_flag),
    call=lambda engine, _: _is_ready(engine),
)
HEALTH_CHECK = Operation(
    name="health_check",
    category="health",
    kind="query",
    group="Server",
    summary="gRPC's standard health check",
    grpc=GrpcForm("/grpc.health.v1.Health/Check", decode_health_check, encode_health),
    call=lambda engine, _: engine.views.is_ready(),
)
HEALTH_WATCH: AnyOperation = Operation(
    name="health_watch",
    category="health",
    kind="query",
    group="Server",
    summary="gRPC's standard health check as a stream: the status, and each change of it",
    grpc=GrpcForm("/grpc.health.v1.Health/Watch"),
)
REFLECTION: AnyOperation = Operation(
    name="reflection",
    category="metadata",
    kind="query",
    group="Server",
    summary="gRPC's reflection: the services and messages of the server",
    grpc=GrpcForm("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"),
)
REFLECTION_ALPHA: AnyOperation = Operation(
    name="reflection_alpha",
    category="metadata",
    kind="query",
    group="Server",
    summary="gRPC's reflection for older clients",
    grpc=GrpcForm("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"),
)

# --- models ---------------------------------------------------------------------------------------------------------

STATISTICS = Operation(
    name="statistics",
    category="statistics",
    kind="query",
    group="Models",
    summary="Counts and durations of a model",
    rest=[
        # Triton: the bare path has priority over a model named "stats".
        RestForm(
            "GET",
            "/v2/models/stats",
            decode_version,
            _statistics_reply,
            summary="Counts and durations of all models",
        ),
        RestForm("GET", _MODEL + "/stats", decode_version, _statistics_reply),
    ],
    grpc=GrpcForm("ModelStatistics", _decode_model, control_grpc.statistics_in_slices),
    call=_statistics,
    place="slices",
)
MODEL_METADATA = Operation(
    name="model_metadata",
    category="metadata",
    kind="query",
    group="Models",
    summary="Inputs, outputs and versions of a model",
    rest=[RestForm("GET", _MODEL, decode_version, json_reply(control_json.encode_model_metadata))],
    grpc=GrpcForm("ModelMetadata", _decode_model, control_grpc.encode_model_metadata),
    call=lambda engine, request: engine.views.model_metadata(*request),
)
MODEL_READY = Operation(
    name="model_ready",
    category="health",
    kind="query",
    group="Models",
    summary="200 if the model can execute requests",
    rest=[RestForm("GET", _MODEL + "/ready", decode_version, _model_ready_reply)],
    grpc=GrpcForm("ModelReady", _decode_model, control_grpc.encode_flag),
    call=lambda engine, request: engine.views.is_model_ready(*request),
)
MODEL_CONFIG = Operation(
    name="model_config",
    category="model-config",
    kind="query",
    group="Models",
    summary="The complete configuration of a model",
    rest=[RestForm("GET", _MODEL + "/config", decode_version, json_reply(control_json.encode_model_config))],
    grpc=GrpcForm("ModelConfig", _decode_model, control_grpc.encode_model_config),
    call=lambda engine, request: engine.views.model_config(*request),
)
EXPLANATION = Operation(
    name="explanation",
    category="statistics",
    kind="query",
    group="Models",
    summary="How requests of a model are scheduled",
    rest=[RestForm("GET", _MODEL + "/explain", decode_version, json_reply(encode_explanation))],
    call=lambda engine, request: engine.views.explanation(*request),
)

# --- rollouts: one decides which code serves, as a load does, so what restricts loads restricts it as well ----------

ROLLOUT = Operation(
    name="rollout",
    category="model-repository",
    kind="query",
    group="Models",
    summary="How requests are split between versions of a model",
    rest=[RestForm("GET", _ROLLOUT, lambda parameters, _: parameters["model"], json_reply(encode_status))],
    call=lambda engine, model: engine.rollout_commands.status(model),
)
CHANGE_ROLLOUT: AnyOperation = Operation(
    name="change_rollout",
    category="model-repository",
    kind="command",
    group="Models",
    summary="Change how requests are split, promote or roll back",
    rest=[RestForm("POST", _ROLLOUT)],
)
END_ROLLOUT: AnyOperation = Operation(
    name="end_rollout",
    category="model-repository",
    kind="command",
    group="Models",
    summary="End the rollout of a model",
    rest=[RestForm("DELETE", _ROLLOUT)],
)

# --- API page -------------------------------------------------------------------------------------------------------

API_PAGE: AnyOperation = Operation(
    name="api_page",
    category="metadata",
    kind="query",
    group="Server",
    summary="This API as a page",
    rest=[RestForm("GET", "/docs")],
)
OPENAPI: AnyOperation = Operation(
    name="openapi",
    category="metadata",
    kind="query",
    group="Server",
    summary="This API as an OpenAPI document",
    rest=[RestForm("GET", "/openapi.json")],
)
MODEL_OPENAPI: AnyOperation = Operation(
    name="model_openapi",
    category="metadata",
    kind="query",
    group="Models",
    summary="This API with the paths of one model",
    rest=[RestForm("GET", "/v2/models/{model}/openapi.json")],
)

PAGES = (API_PAGE, OPENAPI, MODEL_OPENAPI)
OPERATIONS = (
    SERVER_METADATA,
    SERVER_LIVE,
    SERVER_READY,
    HEALTH_CHECK,
    HEALTH_WATCH,
    REFLECTION,
    REFLECTION_ALPHA,
    STATISTICS,
    MODEL_METADATA,
    MODEL_READY,
    MODEL_CONFIG,
    EXPLANATION,
    ROLLOUT,
    CHANGE_ROLLOUT,
    END_ROLLOUT,
    *PAGES,
)
