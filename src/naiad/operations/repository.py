"""Operations on the model repository: the index, loads and unloads.

A Python model is code: a client that may load models with `file:` parameters runs code with the rights of the server.
Triton accepts such files from every client under explicit control; naiad accepts them only from restricted clients,
or with a flag.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from naiad.core.errors import permission_denied, unsupported
from naiad.core.tensor import Buffer
from naiad.engine.engine import Engine
from naiad.operations.operation import (
    GrpcForm,
    MayBringFiles,
    Operation,
    RestForm,
    decode_nothing,
    empty_message,
    empty_reply,
    json_reply,
)
from naiad.operations.requests import CommandOrder, LoadRequest, OrderKey, UnloadRequest
from naiad.protocol.grpc import control as control_grpc
from naiad.protocol.json.management import control as control_json

_REPOSITORY = "/v2/repository[/{repository}]"
_CATEGORY: Final = "model-repository"
_FILE_PREFIX = "file:"
ROLLOUT_SUBJECT = "rollout"
"""First word of the keys of changes of rollouts: not the subject of loads, for a rollback must not wait for one."""


def load_order(model: str) -> CommandOrder:
    """Return the order of a load: the last load or unload of a model counts."""
    return CommandOrder(_model_key(model))


def unload_order(model: str) -> CommandOrder:
    """Return the order of an unload, which ends the rollout of the model as well."""
    return CommandOrder(_model_key(model), outdates=(ROLLOUT_SUBJECT, model))


def _model_key(name: str) -> OrderKey:
    """Return the key of a load or unload; commands about models of one name share a prefix and run in order.

    `namespace::name` is one of the models with the name; the name alone means all of them.
    """
    namespace, _, own = name.rpartition("::")
    return ("model", own, namespace) if namespace else ("model", name)


def _check_files(parameters: Iterable[str], may_bring_files: MayBringFiles) -> None:
    """Raise InferError(PERMISSION_DENIED) if the parameters of a load contain files although `may_bring_files`
    forbids it.
    """
    if any(name.startswith(_FILE_PREFIX) for name in parameters) and not may_bring_files():
        raise permission_denied(
            "model files ('file:' parameters of a load) are not accepted from clients, because they may be code: "
            f"give clients API keys with the category '{_CATEGORY}' (--api-key-file), restrict that category "
            "(--http-restricted-api, --grpc-restricted-protocol), or start the server with "
            "--allow-client-model-files=true if all its clients may run code on it"
        )


def _permit(request: LoadRequest, may_bring_files: MayBringFiles) -> LoadRequest:
    _check_files(request.parameters, may_bring_files)
    return replace(request, is_owner=may_bring_files())


def _check_repository(parameters: Mapping[str, str]) -> None:
    if parameters["repository"]:
        raise unsupported("'repository_name' specification is not supported")


def _decode_load(parameters: Mapping[str, str], body: Buffer) -> LoadRequest:
    _check_repository(parameters)
    return LoadRequest(parameters["model"], control_json.decode_load_parameters(body))


def _decode_unload(parameters: Mapping[str, str], body: Buffer) -> UnloadRequest:
    _check_repository(parameters)
    return UnloadRequest(parameters["model"], control_json.decode_unload_parameters(body))


def _load(engine: Engine, request: LoadRequest) -> None:
    engine.repository.load_model(request.model, request.parameters, is_owner=request.is_owner)


def _unload(engine: Engine, request: UnloadRequest) -> None:
    engine.repository.unload_model(request.model, request.parameters)


MODELS = Operation(
    name="models",
    category=_CATEGORY,
    kind="query",
    group="Models",
    summary="All models, versions and states",
    rest=[RestForm("GET", "/v2/models", decode_nothing, json_reply(control_json.encode_models))],
    call=lambda engine, _: engine.views.survey_repository(),
    place="index thread",
)
INDEX = Operation(
    name="repository_index",
    category=_CATEGORY,
    kind="query",
    group="Repository",
    summary="All models, versions and states",
    rest=[
        RestForm(
            "POST",
            _REPOSITORY + "/index",
            lambda _, body: control_json.decode_index_request(body),
            json_reply(control_json.encode_repository_index),
        )
    ],
    grpc=GrpcForm("RepositoryIndex", control_grpc.decode_index_request, control_grpc.encode_repository_index),
    call=lambda engine, ready_only: engine.views.survey_repository(ready_only),
    place="index thread",
)
LOAD = Operation(
    name="load",
    category=_CATEGORY,
    kind="command",
    group="Repository",
    summary="Load or reload a model",
    rest=[RestForm("POST", _REPOSITORY + "/models/{model}/load", _decode_load, empty_reply)],
    grpc=GrpcForm(
        "RepositoryModelLoad",
        lambda message: LoadRequest(*control_grpc.decode_load_request(message)),
        empty_message,
        target=control_grpc.model_of_command,
    ),
    call=_load,
    place="control thread",
    order=lambda request: load_order(request.model),
    permit=_permit,
)
UNLOAD = Operation(
    name="unload",
    category=_CATEGORY,
    kind="command",
    group="Repository",
    summary="Unload a model",
    rest=[RestForm("POST", _REPOSITORY + "/models/{model}/unload", _decode_unload, empty_reply)],
    grpc=GrpcForm(
        "RepositoryModelUnload",
        lambda message: UnloadRequest(*control_grpc.decode_unload_request(message)),
        empty_message,
        target=control_grpc.model_of_command,
    ),
    call=_unload,
    place="control thread",
    order=lambda request: unload_order(request.model),
)

OPERATIONS = (MODELS, INDEX, LOAD, UNLOAD)
