"""The generate extension by GET: the query of a URL to the JSON object that a POST would have as its body.

A browser's EventSource cannot send a body. A field with the name of an input is that input, a repeated one a list;
any other field is a parameter. Values of string inputs and `id` are text; any other value is read as JSON if it is a
number, a boolean, a list or a string in quotes, and is text otherwise.
"""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from naiad.core.datatype import DataType
from naiad.core.errors import wrong_request
from naiad.core.limits.request_limits import MAX_MEMBERS
from naiad.core.tensor import TensorSpec

_ID = "id"


def document_of_query(query: str, inputs: Mapping[str, TensorSpec]) -> bytes:
    """Return the JSON object of a query, without its question mark. Raises InferError for text that is not UTF-8."""
    try:
        fields = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=MAX_MEMBERS)
    except UnicodeDecodeError as error:
        raise wrong_request(f"the query of the URL is not valid UTF-8: byte {error.start} of a value") from None
    except ValueError:
        raise wrong_request(f"the query of the URL has more than {MAX_MEMBERS} fields") from None
    members: dict[str, list[Any]] = {}
    for name, text in fields:
        members.setdefault(name, []).append(_value_of(name, text, inputs.get(name)))
    return json.dumps({name: values[0] if len(values) == 1 else values for name, values in members.items()}).encode()


def _value_of(name: str, text: str, declared: TensorSpec | None) -> Any:
    if name == _ID or (declared is not None and declared.datatype is DataType.BYTES):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if value is None or type(value) is dict else value
