"""Operations that execute models. The transports carry them out: each decodes tensors in its own form."""

from naiad.operations.operation import AnyOperation, GrpcForm, Operation, RestForm

_MODEL = "/v2/models/{model}[/versions/{version}]"

INFER: AnyOperation = Operation(
    name="infer",
    category="inference",
    kind="query",
    group="Inference",
    summary="Inference with tensors",
    rest=[RestForm("POST", _MODEL + "/infer")],
    grpc=GrpcForm("ModelInfer"),
)
STREAM_INFER: AnyOperation = Operation(
    name="stream_infer",
    category="inference",
    kind="query",
    group="Inference",
    summary="Streaming inference for all models",
    grpc=GrpcForm("ModelStreamInfer"),
)
GENERATE: AnyOperation = Operation(
    name="generate",
    category="inference",
    kind="query",
    group="Inference",
    summary="Inference with flat JSON",
    rest=[RestForm("POST", _MODEL + "/generate")],
)
GENERATE_STREAM: AnyOperation = Operation(
    name="generate_stream",
    category="inference",
    kind="query",
    group="Inference",
    summary="Inference with flat JSON, one event per response",
    rest=[RestForm("POST", _MODEL + "/generate_stream")],
)
GENERATE_STREAM_OF_QUERY: AnyOperation = Operation(
    name="generate_stream_of_query",
    category="inference",
    kind="query",
    group="Inference",
    summary="The same by the query of the URL, for EventSource",
    rest=[RestForm("GET", _MODEL + "/generate_stream")],
)
INVOCATIONS: AnyOperation = Operation(
    name="invocations",
    category="inference",
    kind="query",
    group="Inference",
    summary="Inference with rows, as MLflow and Amazon SageMaker send them",
    rest=[RestForm("POST", "/invocations")],
)

OPERATIONS = (INFER, STREAM_INFER, GENERATE, GENERATE_STREAM, GENERATE_STREAM_OF_QUERY, INVOCATIONS)
