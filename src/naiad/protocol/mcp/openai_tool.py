"""Models of texts as tools: they take prompts, messages, texts to embed or documents to rank in place of tensors."""

from collections.abc import Mapping
from typing import Any

import orjson

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.openai_mapping import OpenAiMapping
from naiad.core.errors import excerpt, invalid_argument
from naiad.protocol.mcp.model_tool import description_of
from naiad.protocol.mcp.tool_names import tool_name
from naiad.protocol.mcp.tool_result import MAX_SHOWN_ELEMENTS, SHOWN_FIRST, tool_result

Json = dict[str, Any]

MAX_TEXTS = 64
"""Limit of the texts of one call that are embedded, or ranked."""
_MESSAGES: Json = {
    "type": "array",
    "description": "The conversation, the oldest message first.",
    "items": {
        "type": "object",
        "properties": {
            "role": {"type": "string", "enum": ["system", "user", "assistant"]},
            "content": {"type": "string"},
        },
        "required": ["role", "content"],
    },
}
_SAMPLING: Json = {
    "max_tokens": {"type": "integer", "minimum": 1, "description": "Limit of the new tokens."},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "minimum": 0, "maximum": 1},
    "seed": {"type": "integer"},
    "stop": {"type": ["string", "array"], "items": {"type": "string"}, "description": "Texts that end the answer."},
}
_EMBEDDED: Json = {
    "input": {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": MAX_TEXTS}],
        "description": "The text, or the texts.",
    },
    "dimensions": {"type": "integer", "minimum": 1, "description": "Length of the vectors."},
}
_RANKED: Json = {
    "query": {"type": "string", "description": "What the documents are compared with."},
    "documents": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_TEXTS},
    "top_n": {"type": "integer", "minimum": 1, "description": "How many of the best documents are returned."},
}
_RANKED_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "results": {
            "type": "array",
            "description": "The best document first, by its position in the list.",
            "items": {
                "type": "object",
                "properties": {"index": {"type": "integer"}, "relevance_score": {"type": "number"}},
            },
        }
    },
    "required": ["results"],
}
_TEXT_SCHEMA: Json = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "finish_reason": {"type": ["string", "null"]}},
    "required": ["text"],
}
_VECTORS_SCHEMA: Json = {
    "type": "object",
    "properties": {"count": {"type": "integer"}, "dimensions": {"type": "integer"}, "embeddings": {"type": "array"}},
    "required": ["count", "dimensions", "embeddings"],
}


def is_chat(mapping: OpenAiMapping) -> bool:
    """Return whether a model takes messages."""
    return mapping.generates and bool(mapping.template)


def describe_openai_model(name: str, config: ModelConfig, mapping: OpenAiMapping) -> Json:
    """Return the tool of a model that the OpenAI API serves."""
    if mapping.task == "embedding":
        does, required = "returns vectors of texts", ["input"]
    elif mapping.task == "rerank":
        does, required = "ranks documents by how well they fit a query", ["query", "documents"]
    elif is_chat(mapping):
        does, required = "answers in a conversation", ["messages"]
    else:
        does, required = "continues a prompt", ["prompt"]
    return {
        "name": tool_name(name),
        "description": description_of(config) or f"The model {excerpt(name)}: it {does}.",
        "inputSchema": {
            "type": "object",
            "properties": _properties(mapping),
            "required": required,
            "additionalProperties": False,
        },
        "outputSchema": _OUTPUT_SCHEMAS.get(mapping.task, _TEXT_SCHEMA),
        "annotations": {"openWorldHint": False},
    }


_OUTPUT_SCHEMAS = {"embedding": _VECTORS_SCHEMA, "rerank": _RANKED_SCHEMA}


def _properties(mapping: OpenAiMapping) -> Json:
    if mapping.task == "embedding":
        return _EMBEDDED
    if mapping.task == "rerank":
        return _RANKED
    if is_chat(mapping):
        return {"messages": _MESSAGES, **_SAMPLING}
    return {"prompt": {"type": "string", "description": "The text to continue."}, **_SAMPLING}


def openai_body(name: str, mapping: OpenAiMapping, arguments: Mapping[str, Any]) -> bytes:
    """Return the body of the OpenAI API for a call. Raises InferError(INVALID_ARG) for unknown arguments."""
    known = _properties(mapping)
    unknown = sorted(arguments.keys() - known.keys())
    if unknown:
        raise invalid_argument(f"unknown argument '{excerpt(unknown[0])}'; known are {', '.join(known)}")
    for member in ("input", "documents"):
        texts = arguments.get(member)
        if isinstance(texts, list) and len(texts) > MAX_TEXTS:
            raise invalid_argument(
                f"'{member}' has {len(texts)} texts; a call takes at most {MAX_TEXTS}: make more calls"
            )
    return orjson.dumps({**arguments, "model": name})


def read_openai_answer(mapping: OpenAiMapping, body: bytes) -> Json:
    """Return the result of a call for the body of a response of the OpenAI API."""
    answer = orjson.loads(body)
    if mapping.task == "rerank":
        return tool_result({"results": answer["results"]})
    if mapping.task == "embedding":
        return _vectors_result([row["embedding"] for row in answer["data"]])
    choice = answer["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    found = {"text": text, "finish_reason": choice["finish_reason"], "usage": answer.get("usage")}
    return tool_result(found, text)


def _vectors_result(rows: list[list[float]]) -> Json:
    dimensions = len(rows[0]) if rows else 0
    found: Json = {"count": len(rows), "dimensions": dimensions, "embeddings": rows}
    if len(rows) * dimensions > MAX_SHOWN_ELEMENTS:
        found["embeddings"] = [row[:SHOWN_FIRST] for row in rows]
        found["omitted"] = f"each vector is shown by its first {SHOWN_FIRST} numbers; fewer texts are shown whole"
    return tool_result(found)
