"""Requests of a cloud's contract, handled as requests of the REST routes."""

from collections.abc import Mapping
from typing import Protocol

from naiad.core.errors import excerpt, invalid_argument
from naiad.core.model import name_of
from naiad.engine.inference import Engine
from naiad.frontend.context import HttpContext, HttpContextLayer
from naiad.wire.header_fields import HeaderFields, written_fields

JSON_LENGTH = b"inference-header-content-length"
_CONTENT_TYPE = b"content-type"
_MAX_LISTED_MODELS = 5


class Handler(Protocol):
    """The REST routes: handle a request, or reject it by its headers."""

    def handle(self, context: HttpContext) -> None:
        """Handle a request."""

    def reject(self, context: HttpContext) -> None:
        """Respond to a request without its body if its headers are enough to reject it."""


class Forwarded(HttpContextLayer):
    """A request with another path, and perhaps another method and other header fields."""

    __slots__ = ()

    def __init__(
        self, context: HttpContext, path: str, method: str = "", headers: Mapping[bytes, bytes] | None = None
    ) -> None:
        HttpContextLayer.__init__(self, context)
        self.path = path
        self.method = method or context.method
        self.headers = context.headers if headers is None else headers


def binary_headers(context: HttpContext, mime_type: bytes) -> Mapping[bytes, bytes]:
    """Return the header fields of a request with the length of its JSON part from the content type.

    `mime_type` ends with `json-header-size=`. Fields of other content types stay. Raises InferError(INVALID_ARG) with
    Triton's texts.
    """
    content_type = context.headers.get(_CONTENT_TYPE, b"")
    place = content_type.find(mime_type)
    if place < 0:
        return context.headers
    if place > 0:
        raise invalid_argument(
            f"expect MIME type for binary data starts with '{mime_type.decode()}', got: {_shown(content_type)}"
        )
    text = content_type[len(mime_type) :].strip()
    if not text.removeprefix(b"-").isdigit():
        raise invalid_argument(f"Unable to parse inference header size, got: {_shown(text)}")
    if text.startswith(b"-") or len(text) > 18 or int(text) > len(context.body):
        raise invalid_argument(
            f"inference header size should be in range (0, {len(context.body)}), got: {_shown(text)}"
        )
    fields = HeaderFields()
    fields.update(context.headers)
    fields[JSON_LENGTH] = text
    fields.written = list(written_fields(context.headers))
    return fields


def _shown(text: bytes) -> str:
    return excerpt(text.decode("latin-1"))


def default_model(engine: Engine, flag: str, name: str) -> str:
    """Return `name`, the value of `flag`; empty: the name of the only ready model. Raises InferError without one."""
    if name:
        return name
    names = sorted({name_of(row.name) for row in engine.repository_index(ready_only=True)})
    if len(names) == 1:
        return names[0]
    more = ", ..." if len(names) > _MAX_LISTED_MODELS else ""
    listed = f" ({', '.join(map(excerpt, names[:_MAX_LISTED_MODELS]))}{more})" if names else ""
    raise invalid_argument(
        "Expect the model repository contains only a single model if default model is not specified; "
        f"{len(names)} models are ready{listed}: set {flag}"
    )
