"""Operations on the settings of the log and of traces. A gRPC method changes what its message has."""

from naiad.operations.operation import GrpcForm, Operation, RestForm

_TRACE = "/v2/trace/setting"
_MODEL_TRACE = "/v2/models/{model}/trace/setting"

LOG_SETTINGS = Operation(
    name="log_settings",
    category="logging",
    kind="query",
    group="Server",
    summary="Log settings",
    rest=[RestForm("GET", "/v2/logging")],
)
CHANGE_LOG_SETTINGS = Operation(
    name="change_log_settings",
    category="logging",
    kind="command",
    group="Server",
    summary="Change the log settings",
    rest=[RestForm("POST", "/v2/logging")],
    grpc=GrpcForm("LogSettings"),
)
TRACE_SETTINGS = Operation(
    name="trace_settings",
    category="trace",
    kind="query",
    group="Models",
    summary="Trace settings of a model",
    rest=[
        RestForm("GET", _TRACE, group="Server", summary="Trace settings of the server"),
        RestForm("GET", _MODEL_TRACE),
    ],
)
CHANGE_TRACE_SETTINGS = Operation(
    name="change_trace_settings",
    category="trace",
    kind="command",
    group="Models",
    summary="Change the trace settings of a model",
    rest=[
        RestForm("POST", _TRACE, group="Server", summary="Change the trace settings of the server"),
        RestForm("POST", _MODEL_TRACE),
    ],
    grpc=GrpcForm("TraceSetting"),
)

OPERATIONS = (LOG_SETTINGS, CHANGE_LOG_SETTINGS, TRACE_SETTINGS, CHANGE_TRACE_SETTINGS)
