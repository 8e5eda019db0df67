import pytest

from naiad.backend.llamacpp.json_schema import MAX_DEPTH, check_schema
from naiad.core.errors import InferError

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "home": {"$ref": "#/$defs/place"}, "any": True},
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"place": {"anyOf": [{"const": "here"}, {"type": ["integer", "null"]}]}, "unused": {"not": {}}},
}


def nested(depth):
    return {"items": nested(depth - 1)} if depth else {}


def doubled(depth):
    """Return a schema that is small, and has 2 ** depth schemas when its references are followed."""
    definitions = {str(level): {"prefixItems": [{"$ref": f"#/$defs/{level + 1}"}] * 2} for level in range(depth)}
    return {"$ref": "#/$defs/0", "$defs": {**definitions, str(depth): {}}}


@pytest.mark.parametrize("schema", [{}, PERSON, nested(MAX_DEPTH - 1), doubled(5)])
def test_schemas_that_can_be_grammars(schema):
    check_schema(schema, "response_format")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (None, "no schema that is an object"),
        ({"type": "word"}, "type 'word'"),
        ({"type": ["string", 5]}, "type '5'"),
        ({"not": {}}, "keyword 'not'"),
        ({"properties": {"a": 5}}, "has a int where"),
        ({"$ref": "#"}, "contains itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}, "contains itself"),
        ({"$ref": "#/$defs/b"}, "leads nowhere"),
        ({"$ref": "http://host/a.json"}, "only '#/...' is followed"),
        ({"$ref": 5}, "only '#/...' is followed"),
        ({"enum": ["x" * 70_000]}, "70.* bytes"),
        (nested(MAX_DEPTH + 1), "nested deeper"),
        (doubled(30), "nested deeper|too large"),
    ],
)
def test_schemas_that_are_refused(schema, words):
    with pytest.raises(InferError, match=words) as caught:
        check_schema(schema, "response_format")
    assert "'response_format'" in caught.value.message
