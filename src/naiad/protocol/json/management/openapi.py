"""The OpenAPI 3.1 document of the REST routes, with a path and an example body for each model."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from naiad.core.datatype import DataType
from naiad.core.model import ModelMetadata, ServerMetadata
from naiad.core.tensor import TensorSpec

MAX_EXAMPLE_ELEMENTS = 256
"""Limit of the elements of an input in an example; the example of a larger one has no data."""

_JSON_TYPES = {DataType.BOOL: "boolean", DataType.BYTES: "string", DataType.FP32: "number", DataType.FP64: "number"}
_WITHOUT_JSON = (DataType.FP16, DataType.BF16)
_EXAMPLES = {"boolean": True, "string": "text", "number": 0.5, "integer": 1}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DocumentedModel:
    """A model of the document."""

    metadata: ModelMetadata
    is_decoupled: bool = False


@dataclass(frozen=True, slots=True)
class DocumentedEndpoint:
    """A method of a path, which may have an optional part."""

    method: str
    paths: Sequence[str]
    """The path without its optional part, and with it; parameters are in braces."""
    group: str
    summary: str


def encode_openapi(
    server: ServerMetadata, endpoints: Iterable[DocumentedEndpoint], models: Iterable[DocumentedModel]
) -> bytes:
    """Return the document for endpoints and models."""
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        for path in endpoint.paths:
            paths.setdefault(path, {})[endpoint.method.lower()] = _operation(path, endpoint)
    for model in models:
        paths.update(_model_paths(model))
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": f"{_title(server.name)}: KServe v2 over REST",
            "version": server.version,
            "description": "Inference, models and settings of this server.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": _SCHEMAS, "responses": {"Error": _ERROR}},
    }
    return orjson.dumps(document)


def _title(server_name: str) -> str:
    """Return the name that `--id` gives the server. Triton: without it every server is called `triton`."""
    return "naiad" if server_name == "triton" else server_name


def _operation(path: str, endpoint: DocumentedEndpoint) -> Json:
    operation: Json = {"tags": [endpoint.group], "summary": endpoint.summary}
    names = re.findall(r"{(\w+)}", path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if endpoint.method == "POST":
        schema = _reference("InferRequest") if path.endswith("/infer") else {"type": "object"}
        content: Json = {"application/json": {"schema": schema}}
        if path.endswith("/infer"):
            content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        operation["requestBody"] = {"content": content}
    operation["responses"] = _responses(_reference("InferResponse") if path.endswith("/infer") else None)
    return operation


def _responses(schema: Json | None = None) -> Json:
    success: Json = {"description": "Success"}
    if schema is not None:
        success["content"] = {"application/json": {"schema": schema}}
    return {"200": success, "default": {"$ref": "#/components/responses/Error"}}


def _reference(schema: str) -> Json:
    return {"$ref": f"#/components/schemas/{schema}"}


# --- models ---------------------------------------------------------------------------------------------------------


def _model_paths(model: DocumentedModel) -> dict[str, Json]:
    name, inputs = model.metadata.name, model.metadata.inputs
    infer = _model_operation(model, "Inference with tensors", _reference("InferRequest"), _infer_example(inputs))
    flat: Json = {"type": "object", "properties": {spec.name: _flat_schema(spec) for spec in inputs}}
    example = {spec.name: _flat(_example_data(spec)) for spec in inputs}
    streamed = "_stream" if model.is_decoupled else ""
    generate = _model_operation(model, "Inference with flat JSON", flat, example)
    base = f"/v2/models/{quote(name, safe='')}"
    paths = {} if model.is_decoupled else {f"{base}/infer": {"post": infer}}
    return {**paths, f"{base}/generate{streamed}": {"post": generate}}


def _model_operation(model: DocumentedModel, summary: str, schema: Json, example: Json) -> Json:
    metadata = model.metadata
    content: Json = {"schema": schema}
    if not any(spec.datatype in _WITHOUT_JSON for spec in metadata.inputs):
        content["example"] = example
    return {
        "tags": [f"Model {metadata.name}"],
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": content}},
        "responses": _responses(),
        "x-inputs": [_tensor(spec) for spec in metadata.inputs],
        "x-outputs": [_tensor(spec) for spec in metadata.outputs],
    }


def _tensor(spec: TensorSpec) -> Json:
    return {"name": spec.name, "datatype": spec.datatype.value, "shape": list(spec.shape)}


def _infer_example(inputs: Iterable[TensorSpec]) -> Json:
    return {
        "inputs": [{**_tensor(spec), "shape": _example_shape(spec), "data": _example_data(spec)} for spec in inputs]
    }


def _example_shape(spec: TensorSpec) -> list[int]:
    return [1 if size < 0 else size for size in spec.shape]


def _example_data(spec: TensorSpec) -> list[object]:
    count = math.prod(_example_shape(spec))
    return [_EXAMPLES[_json_type(spec)]] * count if count <= MAX_EXAMPLE_ELEMENTS else []


def _flat(data: list[object]) -> object:
    return data[0] if len(data) == 1 else data


def _flat_schema(spec: TensorSpec) -> Json:
    element = {"type": _json_type(spec)}
    return {"anyOf": [element, {"type": "array", "items": element}]}


def _json_type(spec: TensorSpec) -> str:
    return _JSON_TYPES.get(spec.datatype, "number" if spec.datatype in _WITHOUT_JSON else "integer")


# --- common parts ---------------------------------------------------------------------------------------------------

_TENSOR: Json = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "datatype": {"enum": [datatype.value for datatype in DataType]},
        "parameters": {"type": "object"},
        "data": {"type": "array"},
    },
}
_PARAMETERS: Json = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
_SCHEMAS: Json = {
    "Tensor": _TENSOR,
    "InferRequest": {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": _PARAMETERS,
            "inputs": {"type": "array", "items": _reference("Tensor")},
            "outputs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}, "parameters": _PARAMETERS},
                },
            },
        },
    },
    "InferResponse": {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "parameters": _PARAMETERS,
            "outputs": {"type": "array", "items": _reference("Tensor")},
        },
    },
}
_ERROR: Json = {
    "description": "Error",
    "content": {
        "application/json": {
            "schema": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
        }
    },
}
