"""Operations on the settings of the log and of traces. A gRPC method changes what its message has.

A command returns all settings. Changes are replayed in order to processes that start later, equal ones once.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from naiad.core.tensor import Buffer
from naiad.engine.engine import Engine
from naiad.operations.operation import GrpcForm, Operation, RestForm, decode_nothing, json_reply
from naiad.operations.requests import CommandOrder, TraceChanges
from naiad.options.options import LogOptions
from naiad.options.trace import TraceOptions
from naiad.protocol.grpc import control as control_grpc
from naiad.protocol.json.management import control as control_json
from naiad.telemetry.logs import log

_TRACE = "/v2/trace/setting"
_MODEL_TRACE = "/v2/models/{model}/trace/setting"

LogChanges = Mapping[str, Any]
"""The fields of the log's options that change."""


def _change_log(engine: Engine, changes: LogChanges) -> LogOptions:
    log.change(replace(log.settings(), **changes))
    return log.settings()


def _change_traces(engine: Engine, request: TraceChanges) -> TraceOptions:
    if request.changes:  # a gRPC request without changes only reads the settings
        engine.inference.change_trace_settings(request.model, request.changes)
    return engine.inference.trace_settings(request.model)


def _settings_order(kind: str, subject: str, changes: Mapping[str, object]) -> CommandOrder | None:
    return CommandOrder(("settings", kind, subject, repr(sorted(changes.items())))) if changes else None


def _model(parameters: Mapping[str, str], body: Buffer) -> str:
    return parameters.get("model", "")


def _trace_changes(parameters: Mapping[str, str], body: Buffer) -> TraceChanges:
    return TraceChanges(_model(parameters, body), control_json.decode_trace_settings(body))


_log_reply = json_reply(control_json.encode_log_settings)
_trace_reply = json_reply(control_json.encode_trace_settings)

LOG_SETTINGS = Operation(
    name="log_settings",
    category="logging",
    kind="query",
    group="Server",
    summary="Log settings",
    rest=[RestForm("GET", "/v2/logging", decode_nothing, _log_reply)],
    call=lambda _engine, _request: log.settings(),
)
CHANGE_LOG_SETTINGS = Operation(
    name="change_log_settings",
    category="logging",
    kind="command",
    group="Server",
    summary="Change the log settings",
    rest=[RestForm("POST", "/v2/logging", lambda _, body: control_json.decode_log_changes(body), _log_reply)],
    grpc=GrpcForm(
        "LogSettings",
        control_grpc.decode_log_changes,
        control_grpc.encode_log_settings,
        target=control_grpc.subject_of_log_settings,
    ),
    call=_change_log,
    order=lambda changes: _settings_order("log", "", changes),
)
TRACE_SETTINGS = Operation(
    name="trace_settings",
    category="trace",
    kind="query",
    group="Models",
    summary="Trace settings of a model",
    rest=[
        RestForm("GET", _TRACE, _model, _trace_reply, group="Server", summary="Trace settings of the server"),
        RestForm("GET", _MODEL_TRACE, _model, _trace_reply),
    ],
    call=lambda engine, model: engine.inference.trace_settings(model),
)
CHANGE_TRACE_SETTINGS = Operation(
    name="change_trace_settings",
    category="trace",
    kind="command",
    group="Models",
    summary="Change the trace settings of a model",
    rest=[
        RestForm(
            "POST",
            _TRACE,
            _trace_changes,
            _trace_reply,
            group="Server",
            summary="Change the trace settings of the server",
        ),
        RestForm("POST", _MODEL_TRACE, _trace_changes, _trace_reply),
    ],
    grpc=GrpcForm(
        "TraceSetting",
        lambda message: TraceChanges(*control_grpc.decode_trace_settings(message)),
        control_grpc.encode_trace_settings,
        target=control_grpc.subject_of_trace_settings,
    ),
    call=_change_traces,
    order=lambda request: _settings_order("trace", request.model, request.changes),
)

OPERATIONS = (LOG_SETTINGS, CHANGE_LOG_SETTINGS, TRACE_SETTINGS, CHANGE_TRACE_SETTINGS)
