"""A model as a tool: name, description, and the JSON schemas of its inputs and outputs.

Arguments are the members of the generate extension: the data of an input by its name, as one list or nested as its
shape.
"""

from collections.abc import Sequence
from typing import Any

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import BY_CONFIG_NUMBER, DataType
from naiad.core.errors import excerpt
from naiad.core.tensor import Shape, TensorSpec
from naiad.protocol.generate import inputs_of
from naiad.protocol.mcp.sequence_arguments import SEQUENCE_ARGUMENTS, takes_sequences
from naiad.protocol.mcp.tool_names import tool_name
from naiad.protocol.mcp.tool_result import CLASS_COUNT

Json = dict[str, Any]

DESCRIPTION = "description"
"""The parameter of a configuration with what the owner says of the model."""
_MAX_DESCRIPTION_CHARACTERS = 4096
_FLOATS = (DataType.FP16, DataType.BF16, DataType.FP32, DataType.FP64)


def describe_model(name: str, config: ModelConfig, *, is_decoupled: bool) -> Json:
    """Return the tool of a model that takes tensors."""
    inputs = list(inputs_of(config).values())
    labelled = {each.name for each in config.output if each.label_filename}
    outputs = outputs_of(config)
    properties = {spec.name: {**value_schema(spec), "description": _described(spec)} for spec in inputs}
    required = [each.name for each in config.input if not each.optional]
    if takes_sequences(config):
        properties = {**SEQUENCE_ARGUMENTS, **properties}
        required.append("sequence_id")
    tool: Json = {
        "name": tool_name(name),
        "description": description_of(config) or _default_description(name, inputs, outputs),
        "inputSchema": {"type": "object", "properties": properties, "required": required},
        "annotations": {"openWorldHint": False},
    }
    if not is_decoupled:
        tool["outputSchema"] = {
            "type": "object",
            "properties": {spec.name: _output_schema(spec, has_labels=spec.name in labelled) for spec in outputs},
        }
    return tool


def outputs_of(config: ModelConfig) -> Sequence[TensorSpec]:
    """Return the outputs of a model, the batch dimension (-1) included."""
    batch = (-1,) if config.max_batch_size > 0 else ()
    return [TensorSpec(each.name, BY_CONFIG_NUMBER[each.data_type], (*batch, *each.dims)) for each in config.output]


def description_of(config: ModelConfig) -> str:
    """Return what the owner says of a model; empty if nothing."""
    if DESCRIPTION not in config.parameters:
        return ""
    return config.parameters[DESCRIPTION].string_value[:_MAX_DESCRIPTION_CHARACTERS]


def value_schema(spec: TensorSpec) -> Json:
    """Return the schema of an input: nested lists, or all elements in one list, or the only element."""
    element: Json = {"type": _json_type(spec.datatype)}
    fixed_count = 1
    for size in spec.shape:
        fixed_count *= size if size >= 0 else 1
    forms = []
    if fixed_count == 1:
        forms.append(element)
    if len(spec.shape) > 1 or (fixed_count == 1 and not spec.shape):
        forms.append({"type": "array", "items": element})
    if spec.shape:
        forms.append(_nested(spec.shape, element))
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def _nested(shape: Shape, element: Json) -> Json:
    schema = element
    for size in reversed(shape):
        schema = {"type": "array", "items": schema}
        if size >= 0:
            schema["minItems"] = schema["maxItems"] = size
    return schema


def _output_schema(spec: TensorSpec, *, has_labels: bool) -> Json:
    if has_labels and spec.datatype is not DataType.BYTES:
        return {
            "type": "array",
            "description": f"{_described(spec)}: the {CLASS_COUNT} best classes, with label, index and score.",
        }
    return {"description": f"{_described(spec)}. A large tensor is shown by its shape and first elements."}


def _described(spec: TensorSpec) -> str:
    shape = "x".join("any" if size < 0 else str(size) for size in spec.shape)
    kind = "texts" if spec.datatype is DataType.BYTES else f"numbers ({spec.datatype.value})"
    return f"{kind}, shape {shape or 'of one element'}"


def _default_description(name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    takes = ", ".join(f"{spec.name}: {_described(spec)}" for spec in inputs)
    gives = ", ".join(f"{spec.name}: {_described(spec)}" for spec in outputs)
    text = f"Executes the model {excerpt(name)}. It takes {takes or 'nothing'}. It returns {gives or 'nothing'}."
    return text[:_MAX_DESCRIPTION_CHARACTERS]


def _json_type(datatype: DataType) -> str:
    if datatype is DataType.BYTES:
        return "string"
    if datatype is DataType.BOOL:
        return "boolean"
    return "number" if datatype in _FLOATS else "integer"
