"""Messages with marks of a model's format in them, which a chat template makes turns of."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from naiad.core.errors import InferError, cancelled_request, excerpt, invalid_argument
from naiad.core.request import InferRequest
from naiad.core.texts.mark_search import MarkSearch

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""A template may write a role between the halves of a mark."""
_MOST_DECODED = 8
"""JSON in a text of JSON, and so on."""


def check_marks(request: InferRequest, messages: Sequence[Any], marks: MarkSearch) -> None:
    """Refuse messages with marks, also with some that a template may make of their texts.

    It joins the parts of a content, writes the names of members, and decodes the arguments of calls: `\\u003c` is `<`
    then. Raises InferError(INVALID_ARG), and CANCELLED as soon as the client has left.
    """

    def check() -> None:
        if request.cancelled:
            raise cancelled_request()

    for position, message in enumerate(messages):
        check()
        role = message.get("role", "user") if isinstance(message, dict) else "user"
        if role not in _ROLES:
            shown = f"'{excerpt(role)}'" if isinstance(role, str) else "no text"
            raise invalid_argument(
                f"'messages[{position}].role' is {shown}; expected one of {', '.join(_ROLES)} (parameter "
                "'special_tokens')"
            )
        for text in _joined_texts(message, position):
            mark = marks.find(text, check)
            if mark:
                raise _has_mark(position, mark)


def _has_mark(position: int, mark: str) -> InferError:
    return invalid_argument(
        f"'messages[{position}]' has '{excerpt(mark)}', which is a mark of the model's format and not text for it; "
        "send the message without it (parameter 'special_tokens')"
    )


def _joined_texts(message: Any, position: int) -> Iterator[str]:
    """Yield what is searched: all texts and names of a message at a time, then those that a template may join."""
    yield "\0".join(_texts_in(message, position))
    if not isinstance(message, dict):
        return
    # Templates write the reasoning, the parts of the content and the text of a refusal one behind the other.
    parts = [
        text
        for name, value in message.items()
        if name != "role"
        for each in (value if isinstance(value, list) else [value])
        for text in _texts_of_part(each)
    ]
    if len(parts) > 1:
        yield "".join(parts)
        yield "\n".join(parts)


def _texts_of_part(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict):
        yield from (value for name, value in part.items() if name != "type" and isinstance(value, str))


def _texts_in(message: Any, position: int) -> Iterator[str]:
    """Yield the texts and the names of members in a message, and those in JSON that a text of it is."""
    left: list[tuple[Any, int]] = [(message, 0)]
    while left:
        each, depth = left.pop()
        if isinstance(each, str):
            yield each
            # Without an escape its texts are in it as they are.
            if "\\" in each and each.lstrip()[:1] in ("{", "[", '"'):
                left.append((_decoded(each, position, depth), depth + 1))
        elif isinstance(each, dict):
            left += [(found, depth) for pair in each.items() for found in pair]
        elif isinstance(each, (list, tuple)):
            left += [(found, depth) for found in each]


def _decoded(text: str, position: int, depth: int) -> Any:
    """Return the JSON that a text is, None for other text. Objects are pairs: a name may be there twice."""
    try:
        if depth < _MOST_DECODED:
            return json.loads(text, object_pairs_hook=tuple)
    except ValueError:
        return None
    except RecursionError:
        pass
    raise invalid_argument(
        f"'messages[{position}]' has JSON in a text that is nested too deeply to look for marks in it (parameter "
        "'special_tokens')"
    )
