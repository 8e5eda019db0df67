"""The schema file follows the dataclasses; `python tests/unit/tools/measure/test_result_schema.py` writes it."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import get_args, get_origin, get_type_hints

from naiad.tools.measure import result_json
from naiad.tools.measure.result import SCHEMA_VERSION, Result

FILE = Path(result_json.__file__).with_name("result.schema.json")
SCALARS = {float: "number", int: "integer", str: "string", bool: "boolean", type(None): "null"}


def schema_of(kind, definitions):
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = None
            definitions[kind.__name__] = schema_of_record(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": schema_of(arguments[1], definitions)}
    if origin is Sequence:
        return {"type": "array", "items": schema_of(arguments[0], definitions)}
    if origin is tuple:
        items = [schema_of(each, definitions) for each in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin is UnionType:
        return {"anyOf": [schema_of(each, definitions) for each in arguments]}
    return {"type": SCALARS[kind]}


def schema_of_record(kind, definitions):
    hints, fields = get_type_hints(kind), dataclasses.fields(kind)
    missing = dataclasses.MISSING
    return {
        "description": kind.__doc__,
        "type": "object",
        "properties": {field.name: schema_of(hints[field.name], definitions) for field in fields},
        "required": [each.name for each in fields if each.default is missing and each.default_factory is missing],
    }


def schema_text():
    definitions = {}
    reference = schema_of(Result, definitions)
    definitions["Result"]["properties"]["version"] = {"const": SCHEMA_VERSION}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Result of naiad perf --json"}
    return json.dumps({**head, **reference, "$defs": dict(sorted(definitions.items()))}, indent=1) + "\n"


def test_schema_file_follows_dataclasses():
    assert FILE.read_text() == schema_text()


if __name__ == "__main__":
    FILE.write_text(schema_text())
