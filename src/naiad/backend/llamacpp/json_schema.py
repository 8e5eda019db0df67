"""Checks of a JSON schema before it becomes a grammar: llama.cpp ignores one that it cannot use, without an error.

A schema is bounded, its references resolve inside it and are not recursive, and all of its keywords are among those
to which the grammar holds a text.
"""

import json
from collections.abc import Mapping
from typing import Any

from naiad.core.errors import InferError, excerpt, invalid_argument

MAX_SCHEMA_BYTES = 64 << 10
MAX_DEPTH = 32
_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_PLAIN = frozenset(
    {
        *("type", "enum", "const", "required", "minItems", "maxItems", "minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("title", "description", "default", "examples", "$schema", "$id", "$comment", "strict"),
    }
)
"""Keywords whose values are no schemas; the last line does not change what fits."""
_SCHEMA = frozenset({"items", "additionalProperties"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_MAPPINGS = frozenset({"properties", "$defs", "definitions"})


def check_schema(schema: Any, member: str) -> None:
    """Raise InferError(INVALID_ARG) for a schema that cannot become a grammar; `member` is where it was sent.

    The caller has bounded the text of the schema: it is encoded again to know its size.
    """
    if not isinstance(schema, Mapping):
        raise _wrong(member, "has no schema that is an object")
    size = len(json.dumps(schema))
    if size > MAX_SCHEMA_BYTES:
        raise _wrong(member, f"has a schema of {size} bytes; it has at most {MAX_SCHEMA_BYTES}")
    _Check(schema, member).visit(schema, (), 0)


def _wrong(member: str, problem: str) -> InferError:
    return invalid_argument(f"'{member}' {problem}")


class _Check:
    def __init__(self, root: Mapping[str, Any], member: str) -> None:
        self._root = root
        self._member = member
        self._left = MAX_SCHEMA_BYTES
        """How many more schemas are visited: references make one schema many."""

    def visit(self, schema: Any, references: tuple[str, ...], depth: int) -> None:
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0:
            raise _wrong(self._member, f"has a schema that is nested deeper than {MAX_DEPTH}, or too large")
        if isinstance(schema, bool):
            return
        if not isinstance(schema, Mapping):
            raise _wrong(self._member, f"has a {type(schema).__name__} where a schema is expected")
        for keyword, value in schema.items():
            self._visit_keyword(keyword, value, references, depth + 1)

    def _visit_keyword(self, keyword: str, value: Any, references: tuple[str, ...], depth: int) -> None:
        if keyword == "$ref":
            self._follow(value, references, depth)
        elif keyword in _SCHEMA:
            self.visit(value, references, depth)
        elif keyword in _LISTS and isinstance(value, list):
            for each in value:
                self.visit(each, references, depth)
        elif keyword in _MAPPINGS and isinstance(value, Mapping):
            # Definitions are checked where they are used.
            for each in value.values() if keyword == "properties" else ():
                self.visit(each, references, depth)
        elif keyword == "type":
            self._check_type(value)
        elif keyword not in _PLAIN:
            raise _wrong(self._member, f"has the keyword '{excerpt(keyword)}', to which no text can be held")

    def _check_type(self, value: Any) -> None:
        types = value if isinstance(value, list) else [value]
        for each in types:
            if not isinstance(each, str) or each not in _TYPES:
                raise _wrong(
                    self._member, f"has the type '{excerpt(str(each))}'; expected {', '.join(sorted(_TYPES))}"
                )

    def _follow(self, reference: Any, references: tuple[str, ...], depth: int) -> None:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise _wrong(self._member, f"has the reference '{excerpt(str(reference))}'; only '#/...' is followed")
        if reference in references:
            raise _wrong(self._member, f"has a schema that contains itself: '{excerpt(reference)}'")
        target: Any = self._root
        for part in reference.lstrip("#").strip("/").split("/") if reference.strip("#/") else ():
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or key not in target:
                raise _wrong(self._member, f"has the reference '{excerpt(reference)}', which leads nowhere")
            target = target[key]
        self.visit(target, (*references, reference), depth)
