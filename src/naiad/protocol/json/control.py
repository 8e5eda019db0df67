"""JSON payloads about the server and its models: metadata, configuration, statistics, repository index."""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import encodable, excerpt, invalid_argument, wrong_request
from naiad.core.model import IndexEntry, ModelMetadata, ModelState, ServerMetadata, name_of
from naiad.core.slices import Slices, finish
from naiad.core.tensor import Buffer, TensorSpec
from naiad.protocol.json.document import LongString, read_document
from naiad.protocol.json.long_data import decode_base64_text, decode_long_string
from naiad.protocol.json.tree import MAX_CONTROL_BYTES, as_bool, as_string, parse_control_document
from naiad.telemetry.statistics.version import Duration, PositionStatistics, StepStatistics, VersionStatistics

_PARAMETERS_NO_OBJECT = (
    "Unable to parse 'parameters': attempt to get members for non-object; expected an object, such as "
    '"parameters": {"config": "{...}"}'
)
_MAX_CONFIG_BYTES = 1 << 20
"""Limit of the configuration in a load request."""


def encode_error(message: str) -> bytes:
    """Return the body of an error response: `{"error": message}`."""
    return orjson.dumps({"error": encodable(message)})


def encode_server_metadata(metadata: ServerMetadata) -> bytes:
    """Return the body of `GET /v2`."""
    return orjson.dumps({"name": metadata.name, "version": metadata.version, "extensions": list(metadata.extensions)})


def encode_model_metadata(metadata: ModelMetadata) -> bytes:
    """Return the body of `GET /v2/models/{m}`."""
    return orjson.dumps(
        {
            "name": metadata.name,
            "versions": list(metadata.versions),
            "platform": metadata.platform,
            "inputs": [_tensor(spec) for spec in metadata.inputs],
            "outputs": [_tensor(spec) for spec in metadata.outputs],
        }
    )


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype.value, "shape": list(spec.shape)}


def encode_model_config(config: ModelConfig) -> bytes:
    """Return the body of `GET /v2/models/{m}/config`."""
    return orjson.dumps(message_tree(config))


def message_tree(message: Message) -> dict[str, Any]:
    """Return a message in Triton's JSON form.

    Proto field names, scalars with their defaults, enums by name, keys of maps as strings, and 64-bit integers as
    numbers, where protobuf's own JSON writes strings.
    """
    tree: dict[str, Any] = {}
    field: Any  # protobuf's stubs contradict each other about descriptors
    for field in message.DESCRIPTOR.fields:
        if isinstance(field.default_value, list):
            tree[field.name] = _repeated(field, getattr(message, field.name))
        elif not field.has_presence or message.HasField(field.name):
            tree[field.name] = _value(field, getattr(message, field.name))
    return tree


def _repeated(field: Any, values: Any) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        value_field = kind.fields_by_name["value"]
        return {_key(key): _value(value_field, values[key]) for key in sorted(values)}
    return [_value(field, value) for value in values]


def _key(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _value(field: Any, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return message_tree(value)
    if field.type == FieldDescriptor.TYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b64encode(value).decode()
    return value


def encode_statistics(rows: Sequence[VersionStatistics]) -> bytes:
    """Return the body of `GET /v2/models/stats` and of its variants for one model."""
    return orjson.dumps({"model_stats": [_statistics(row) for row in rows]})


# perf_analyzer reads all eight without checking their presence.
_DURATIONS = (
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)


def _statistics(row: VersionStatistics) -> dict[str, Any]:
    body: dict[str, Any] = {
        "name": row.name,
        "version": row.version,
        "last_inference": row.last_inference_ms,
        "inference_count": row.inference_count,
        "execution_count": row.execution_count,
        "inference_stats": {name: _duration(getattr(row, name)) for name in _DURATIONS},
        "response_stats": {str(number): _response_stats(entry) for number, entry in enumerate(row.response_stats)},
        "batch_stats": [
            {
                "batch_size": batch.batch_size,
                "compute_input": _duration(batch.compute_input),
                "compute_infer": _duration(batch.compute_infer),
                "compute_output": _duration(batch.compute_output),
            }
            for batch in row.batch_stats
        ],
        "memory_usage": [],
    }
    # naiad only: Triton's protocol buffer has no field for it.
    if row.release_reasons:
        body["release_reasons"] = row.release_reasons
    if row.steps:
        body["ensemble_steps"] = [_step(step) for step in row.steps]
    return body


def _step(step: StepStatistics) -> dict[str, Any]:
    return {
        "model": name_of(step.model),
        "success": _duration(step.success),
        "fail": _duration(step.fail),
        "queue": _duration(step.queue),
        "compute": _duration(step.compute),
    }


def _response_stats(entry: PositionStatistics) -> dict[str, dict[str, int]]:
    return {
        "compute_infer": _duration(entry.compute_infer),
        "compute_output": _duration(entry.compute_output),
        "success": _duration(entry.success),
        "fail": _duration(entry.fail),
        "empty_response": _duration(entry.empty_response),
        "cancel": _duration(entry.cancel),
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}


def encode_repository_index(entries: Sequence[IndexEntry]) -> bytes:
    """Return the body of `POST /v2/repository/index`; unknown fields of a model are left out."""
    return orjson.dumps([_index_entry(entry) for entry in entries])


def encode_models(entries: Sequence[IndexEntry]) -> bytes:
    """Return the body of `GET /v2/models`."""
    rows = [{**_index_entry(entry), "ready": entry.state is ModelState.READY} for entry in entries]
    return orjson.dumps({"models": rows})


def _index_entry(entry: IndexEntry) -> dict[str, str]:
    row = {"name": name_of(entry.name)}
    if entry.version:
        row["version"] = entry.version
    if entry.state is not None:
        row["state"] = entry.state.value
    if entry.reason:
        row["reason"] = encodable(entry.reason)
    return row


def decode_index_request(body: Buffer) -> bool:
    """Return whether only ready models are requested. Raises InferError."""
    tree = _decode_object(body)
    ready = tree.get("ready", False)
    if type(ready) is not bool:
        raise invalid_argument(
            "Unable to parse 'ready': attempt to access JSON non-boolean as boolean; expected true or false, such as "
            '{"ready": true}'
        )
    return ready


def decode_load_parameters(body: Buffer) -> dict[str, str | bytes | bool]:
    """Return the `parameters` of a load request: `config` (str), `file:<path>` (bytes), `force` and `dry_run` (bool).

    A body with files is long and is read in slices. Call it on a thread other than the event loop's, which runs
    between slices. Raises InferError.
    """
    if len(body) > MAX_CONTROL_BYTES:
        return finish(_long_load_parameters(body))
    return {name: _load_parameter(name, value) for name, value in _parameters(body).items()}


def _long_load_parameters(body: Buffer) -> Slices[dict[str, str | bytes | bool]]:
    members = yield from read_document(body)
    parameters = dict(reversed(members)).get("parameters", ()) if type(members) is tuple else ()
    if type(parameters) is not tuple:
        raise wrong_request(_PARAMETERS_NO_OBJECT)
    decoded: dict[str, str | bytes | bool] = {}
    for name, value in reversed(parameters):
        if not isinstance(value, LongString):
            decoded[name] = _load_parameter(name, value)
            continue
        if not name.startswith("file:") and value.end - value.start > _MAX_CONFIG_BYTES:
            raise invalid_argument(f"'{excerpt(name)}' has more than {_MAX_CONFIG_BYTES} bytes")
        text = yield from decode_long_string(value)
        if name.startswith("file:"):
            decoded[name] = yield from decode_base64_text(f"the content of '{excerpt(name)}'", text)
        else:
            decoded[name] = _load_parameter(name, text.decode())
    return decoded


def _load_parameter(name: str, value: Any) -> str | bytes | bool:
    if name in ("force", "dry_run"):  # an extension of naiad
        return as_bool(name, value)
    if name == "config":
        return as_string(name, value)
    if not name.startswith("file:"):
        raise wrong_request(
            f"unexpected error on creating Triton parameter '{excerpt(name)}'; the parameters of a load are "
            "'config', "
            "'file:<path>', 'force' and 'dry_run'"
        )
    try:
        return b64decode(as_string(name, value), validate=True)
    except ValueError:
        raise invalid_argument(
            f"Unable to parse '{excerpt(name)}': the content of a file must be in base64"
        ) from None


def decode_unload_parameters(body: Buffer) -> dict[str, bool]:
    """Return the `parameters` of an unload request (`unload_dependents`; Triton: others are ignored).

    Raises InferError.
    """
    parameters = _parameters(body)
    if "unload_dependents" not in parameters:
        return {}
    return {"unload_dependents": as_bool("unload_dependents", parameters["unload_dependents"])}


def _parameters(body: Buffer) -> Mapping[str, Any]:
    parameters = _decode_object(body).get("parameters", {})
    if not isinstance(parameters, dict):
        raise wrong_request(_PARAMETERS_NO_OBJECT)
    return parameters


def _decode_object(body: Buffer) -> Mapping[str, Any]:
    if not len(body):
        return {}
    tree = parse_control_document(body)
    if not isinstance(tree, dict):
        raise invalid_argument("the request's body is not a JSON object; put its members into braces: {...}")
    return tree
