"""The OpenAPI 3.1 document of the REST routes, with a path and an example body for each model."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from naiad.core.datatype import DataType
from naiad.core.model import ModelMetadata, ServerMetadata
from naiad.core.tensor import TensorSpec

MAX_EXAMPLE_ELEMENTS = 256
"""Limit of the elements of an input in an example; the example of a larger one has no data."""

_SUMMARIES: Mapping[str, tuple[str, str]] = {
    "GET /v2": ("Server", "Name, version and extensions of the server"),
    "GET /v2/health/live": ("Server", "200 if the process responds"),
    "GET /v2/health/ready": ("Server", "200 if the server is ready"),
    "GET /v2/logging": ("Server", "Log settings"),
    "POST /v2/logging": ("Server", "Change the log settings"),
    "GET /v2/trace/setting": ("Server", "Trace settings of the server"),
    "POST /v2/trace/setting": ("Server", "Change the trace settings of the server"),
    "GET /docs": ("Server", "This API as a page"),
    "GET /openapi.json": ("Server", "This API as an OpenAPI document"),
    "GET /v2/models": ("Models", "All models, versions and states"),
    "GET /v2/models/stats": ("Models", "Counts and durations of all models"),
    "GET /v2/models/{model}": ("Models", "Inputs, outputs and versions of a model"),
    "GET /v2/models/{model}/ready": ("Models", "200 if the model can execute requests"),
    "GET /v2/models/{model}/config": ("Models", "The complete configuration of a model"),
    "GET /v2/models/{model}/stats": ("Models", "Counts and durations of a model"),
    "GET /v2/models/{model}/explain": ("Models", "How requests of a model are scheduled"),
    "GET /v2/models/{model}/rollout": ("Models", "How requests are split between versions of a model"),
    "POST /v2/models/{model}/rollout": ("Models", "Change how requests are split, promote or roll back"),
    "DELETE /v2/models/{model}/rollout": ("Models", "End the rollout of a model"),
    "GET /v2/models/{model}/openapi.json": ("Models", "This API with the paths of one model"),
    "GET /v2/models/{model}/trace/setting": ("Models", "Trace settings of a model"),
    "POST /v2/models/{model}/trace/setting": ("Models", "Change the trace settings of a model"),
    "POST /v2/models/{model}/infer": ("Inference", "Inference with tensors"),
    "POST /v2/models/{model}/generate": ("Inference", "Inference with flat JSON"),
    "POST /v2/models/{model}/generate_stream": ("Inference", "Inference with flat JSON, one event per response"),
    "POST /invocations": ("Inference", "Inference with rows, as MLflow and Amazon SageMaker send them"),
    "POST /v2/repository/index": ("Repository", "All models, versions and states"),
    "POST /v2/repository/models/{model}/load": ("Repository", "Load or reload a model"),
    "POST /v2/repository/models/{model}/unload": ("Repository", "Unload a model"),
    "GET /v2/systemsharedmemory/status": ("Shared memory", "Registered system regions"),
    "POST /v2/systemsharedmemory/register": ("Shared memory", "Register a system region"),
    "POST /v2/systemsharedmemory/unregister": ("Shared memory", "Unregister system regions"),
    "GET /v2/cudasharedmemory/status": ("Shared memory", "Registered CUDA regions"),
    "POST /v2/cudasharedmemory/register": ("Shared memory", "Register a CUDA region"),
    "POST /v2/cudasharedmemory/unregister": ("Shared memory", "Unregister CUDA regions"),
}
"""Tag and summary of each endpoint, without the optional parts of its path."""

_JSON_TYPES = {DataType.BOOL: "boolean", DataType.BYTES: "string", DataType.FP32: "number", DataType.FP64: "number"}
_WITHOUT_JSON = (DataType.FP16, DataType.BF16)
_EXAMPLES = {"boolean": True, "string": "text", "number": 0.5, "integer": 1}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DocumentedModel:
    """A model of the document."""

    metadata: ModelMetadata
    is_decoupled: bool = False


def encode_openapi(
    server: ServerMetadata, endpoints: Iterable[tuple[str, str]], models: Iterable[DocumentedModel]
) -> bytes:
    """Return the document for `(route pattern, method)` pairs and models."""
    paths: dict[str, Json] = {}
    for pattern, method in endpoints:
        short, *longer = _templates(pattern)
        tag, summary = _SUMMARIES.get(f"{method} {short}", ("Other", short))
        for path in (short, *longer):
            paths.setdefault(path, {})[method.lower()] = _operation(path, method, tag, summary)
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


def _templates(pattern: str) -> list[str]:
    """Return the path of a route without its optional part, and with it if there is one."""
    path = re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", pattern).replace(r"\.", ".")
    optional = re.compile(r"\(\?:([^()]*)\)\?")
    return list(dict.fromkeys([optional.sub("", path), optional.sub(r"\1", path)]))


def _operation(path: str, method: str, tag: str, summary: str) -> Json:
    operation: Json = {"tags": [tag], "summary": summary}
    names = re.findall(r"{(\w+)}", path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if method == "POST":
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
