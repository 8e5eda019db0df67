"""The fields of a model configuration, all of them."""

from naiad.config.forms.schema import Schema, is_map, is_message
from naiad.config.model_config_pb2 import ModelConfig

PARAMETERS = "parameters"


def fields_of(schema: Schema = ModelConfig.DESCRIPTOR, path: str = "") -> list[str]:
    """Return the paths of all fields with values, without indexes and keys; messages of a list or map as one each."""
    found: list[str] = []
    for field in schema.fields:
        inner = f"{path}.{field.name}" if path else field.name
        kind = field.message_type.fields_by_name["value"] if is_map(field) else field
        if not is_message(kind) or inner == PARAMETERS:
            found.append(inner)
        else:
            found += fields_of(kind.message_type, inner) or [inner]
    return found
