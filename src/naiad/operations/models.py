"""Operations that show the server and its models: health, metadata, configuration, statistics, rollouts, API page."""

from naiad.operations.operation import GrpcForm, Operation, RestForm

_MODEL = "/v2/models/{model}[/versions/{version}]"
_ROLLOUT = "/v2/models/{model}/rollout"

# --- server ---------------------------------------------------------------------------------------------------------

SERVER_METADATA = Operation(
    name="server_metadata",
    category="metadata",
    kind="query",
    group="Server",
    summary="Name, version and extensions of the server",
    rest=[RestForm("GET", "/v2")],
    grpc=GrpcForm("ServerMetadata"),
)
SERVER_LIVE = Operation(
    name="server_live",
    category="health",
    kind="query",
    group="Server",
    summary="200 if the process responds",
    rest=[RestForm("GET", "/v2/health/live")],
    grpc=GrpcForm("ServerLive"),
)
SERVER_READY = Operation(
    name="server_ready",
    category="health",
    kind="query",
    group="Server",
    summary="200 if the server is ready",
    rest=[RestForm("GET", "/v2/health/ready")],
    grpc=GrpcForm("ServerReady"),
)
HEALTH_CHECK = Operation(
    name="health_check",
    category="health",
    kind="query",
    group="Server",
    summary="gRPC's standard health check",
    grpc=GrpcForm("/grpc.health.v1.Health/Check"),
)
HEALTH_WATCH = Operation(
    name="health_watch",
    category="health",
    kind="query",
    group="Server",
    summary="gRPC's standard health check as a stream; declared for access rules, and answered with UNIMPLEMENTED",
    grpc=GrpcForm("/grpc.health.v1.Health/Watch"),
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
        RestForm("GET", "/v2/models/stats", summary="Counts and durations of all models"),
        RestForm("GET", _MODEL + "/stats"),
    ],
    grpc=GrpcForm("ModelStatistics"),
)
MODEL_METADATA = Operation(
    name="model_metadata",
    category="metadata",
    kind="query",
    group="Models",
    summary="Inputs, outputs and versions of a model",
    rest=[RestForm("GET", _MODEL)],
    grpc=GrpcForm("ModelMetadata"),
)
MODEL_READY = Operation(
    name="model_ready",
    category="health",
    kind="query",
    group="Models",
    summary="200 if the model can execute requests",
    rest=[RestForm("GET", _MODEL + "/ready")],
    grpc=GrpcForm("ModelReady"),
)
MODEL_CONFIG = Operation(
    name="model_config",
    category="model-config",
    kind="query",
    group="Models",
    summary="The complete configuration of a model",
    rest=[RestForm("GET", _MODEL + "/config")],
    grpc=GrpcForm("ModelConfig"),
)
EXPLANATION = Operation(
    name="explanation",
    category="statistics",
    kind="query",
    group="Models",
    summary="How requests of a model are scheduled",
    rest=[RestForm("GET", _MODEL + "/explain")],
)

# --- rollouts: one decides which code serves, as a load does, so what restricts loads restricts it as well ----------

ROLLOUT = Operation(
    name="rollout",
    category="model-repository",
    kind="query",
    group="Models",
    summary="How requests are split between versions of a model",
    rest=[RestForm("GET", _ROLLOUT)],
)
CHANGE_ROLLOUT = Operation(
    name="change_rollout",
    category="model-repository",
    kind="command",
    group="Models",
    summary="Change how requests are split, promote or roll back",
    rest=[RestForm("POST", _ROLLOUT)],
)
END_ROLLOUT = Operation(
    name="end_rollout",
    category="model-repository",
    kind="command",
    group="Models",
    summary="End the rollout of a model",
    rest=[RestForm("DELETE", _ROLLOUT)],
)

# --- API page -------------------------------------------------------------------------------------------------------

API_PAGE = Operation(
    name="api_page",
    category="metadata",
    kind="query",
    group="Server",
    summary="This API as a page",
    rest=[RestForm("GET", "/docs")],
)
OPENAPI = Operation(
    name="openapi",
    category="metadata",
    kind="query",
    group="Server",
    summary="This API as an OpenAPI document",
    rest=[RestForm("GET", "/openapi.json")],
)
MODEL_OPENAPI = Operation(
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
