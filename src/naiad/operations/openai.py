"""Operations of the OpenAI API. The frontend carries them out: it decodes and encodes OpenAI's bodies."""

from naiad.operations.operation import AnyOperation, Operation, RestForm

OPENAI_MODELS: AnyOperation = Operation(
    name="openai_models",
    category="metadata",
    kind="query",
    group="OpenAI",
    summary="The models of the OpenAI API",
    rest=[RestForm("GET", "/v1/models")],
)
OPENAI_MODEL: AnyOperation = Operation(
    name="openai_model",
    category="metadata",
    kind="query",
    group="OpenAI",
    summary="One model of the OpenAI API",
    rest=[RestForm("GET", "/v1/models/{model}")],
)
COMPLETIONS: AnyOperation = Operation(
    name="completions",
    category="inference",
    kind="query",
    group="OpenAI",
    summary="Text that continues prompts",
    rest=[RestForm("POST", "/v1/completions")],
)
CHAT_COMPLETIONS: AnyOperation = Operation(
    name="chat_completions",
    category="inference",
    kind="query",
    group="OpenAI",
    summary="The answer in a chat",
    rest=[RestForm("POST", "/v1/chat/completions")],
)
EMBEDDINGS: AnyOperation = Operation(
    name="embeddings",
    category="inference",
    kind="query",
    group="OpenAI",
    summary="Vectors of texts",
    rest=[RestForm("POST", "/v1/embeddings")],
)
RERANK: AnyOperation = Operation(
    name="rerank",
    category="inference",
    kind="query",
    group="OpenAI",
    summary="Documents in the order of their relevance to a query",
    rest=[RestForm("POST", "/v1/rerank")],
)

OPERATIONS = (OPENAI_MODELS, OPENAI_MODEL, COMPLETIONS, CHAT_COMPLETIONS, EMBEDDINGS, RERANK)
"""All operations, in the order in which the router looks for a path."""
