"""Operations on the model repository: the index, loads and unloads."""

from naiad.operations.operation import GrpcForm, Operation, RestForm

_REPOSITORY = "/v2/repository[/{repository}]"

MODELS = Operation(
    name="models",
    category="model-repository",
    kind="query",
    group="Models",
    summary="All models, versions and states",
    rest=[RestForm("GET", "/v2/models")],
)
INDEX = Operation(
    name="repository_index",
    category="model-repository",
    kind="query",
    group="Repository",
    summary="All models, versions and states",
    rest=[RestForm("POST", _REPOSITORY + "/index")],
    grpc=GrpcForm("RepositoryIndex"),
)
LOAD = Operation(
    name="load",
    category="model-repository",
    kind="command",
    group="Repository",
    summary="Load or reload a model",
    rest=[RestForm("POST", _REPOSITORY + "/models/{model}/load")],
    grpc=GrpcForm("RepositoryModelLoad"),
)
UNLOAD = Operation(
    name="unload",
    category="model-repository",
    kind="command",
    group="Repository",
    summary="Unload a model",
    rest=[RestForm("POST", _REPOSITORY + "/models/{model}/unload")],
    grpc=GrpcForm("RepositoryModelUnload"),
)

OPERATIONS = (MODELS, INDEX, LOAD, UNLOAD)
