"""The members of a request's body: bounded, typed, and no unknown ones."""

import json
from collections.abc import Collection, Mapping
from typing import Any

import orjson

from naiad.core.errors import MAX_EXCERPT_CHARACTERS, excerpt
from naiad.core.limits.value_limits import excess_of_values
from naiad.core.model import version_number
from naiad.core.tensor import Buffer
from naiad.protocol.openai.openai_error import OpenAiError

MAX_BODY_BYTES = 4 << 20
"""Limit of a body: it is parsed on the event loop, in some ten milliseconds, because its values are bounded too."""


def check_body_size(size: int, max_input_bytes: int) -> None:
    """Raise OpenAiError for a body that is too large."""
    limit = min(MAX_BODY_BYTES, max_input_bytes)
    if size > limit:
        raise OpenAiError(
            f"the body has {size} bytes; a request for /v1 has at most {limit}. Shorten the prompt, or use "
            "/v2/models/NAME/infer",
            code="request_too_large",
        )


class BodyMembers:
    """The members of one body, each read with the type that it must have."""

    def __init__(self, members: Mapping[str, Any], prefix: str = "") -> None:
        self._members = members
        self._prefix = prefix

    def check_names(self, known: Collection[str]) -> None:
        """Raise OpenAiError for a member that is not known."""
        for name in self._members:
            if name not in known:
                raise OpenAiError(
                    f"Unrecognized request argument supplied: {excerpt(self._prefix + name)}",
                    param=excerpt(self._prefix + name),
                    code="unknown_parameter",
                )

    def get(self, name: str) -> Any:
        """Return a member; None if it is absent or null."""
        return self._members.get(name)

    def wrong(self, name: str, expected: str) -> OpenAiError:
        """Return the error of a member with a wrong value."""
        return OpenAiError(
            f"'{self._prefix}{name}' is {shown(self._members.get(name))}; expected {expected}",
            param=self._prefix + name,
            code="invalid_value",
        )

    def text(self, name: str) -> str:
        """Return a required text that is not empty."""
        value = self.get(name)
        if value is None:
            raise OpenAiError(
                f"you must provide the parameter '{self._prefix}{name}'",
                param=self._prefix + name,
                code="missing_required_parameter",
            )
        if not isinstance(value, str) or not value:
            raise self.wrong(name, "a text that is not empty")
        return value

    def flag(self, name: str) -> bool:
        """Return a flag; false if it is absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return bool(value)

    def whole(self, name: str, low: int, high: int) -> int | None:
        """Return a whole number within limits; None if it is absent."""
        value = self.get(name)
        if value is not None and (type(value) is not int or not low <= value <= high):
            raise self.wrong(name, f"a whole number from {low} to {high}")
        accepted: int | None = value
        return accepted

    def number(self, name: str, low: float, high: float) -> float | None:
        """Return a number within limits; None if it is absent."""
        value = self.get(name)
        if value is not None and (type(value) not in (int, float) or not low <= value <= high):
            raise self.wrong(name, f"a number from {low} to {high}")
        return None if value is None else float(value)

    def object(self, name: str) -> "BodyMembers | None":
        """Return the members of an object; None if it is absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return None if value is None else BodyMembers(value, f"{self._prefix}{name}.")


def shown(value: object) -> str:
    """Return a value for an error; containers by their kind, since they may be large and deeply nested."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    # As JSON has it: the text "0" is another value than the number.
    return excerpt(
        json.dumps(value[:MAX_EXCERPT_CHARACTERS] if isinstance(value, str) else value, ensure_ascii=False)
    )


def read_body(body: Buffer) -> BodyMembers:
    """Return the members of a body. Raises OpenAiError if it is not a JSON object, or has too many values."""
    excess = excess_of_values(body)
    if excess:
        raise OpenAiError(f"the body has {excess}. Send several requests", code="request_too_large")
    try:
        members = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise OpenAiError(
            f"We could not parse the JSON body of your request: {excerpt(str(error))}; expected one JSON object"
        ) from None
    if not isinstance(members, dict):
        raise OpenAiError(f"the body is {shown(members)}; expected one JSON object")
    return BodyMembers(members)


def model_reference(name: str, is_known: bool) -> tuple[str, str]:
    """Return model and version of a `model` member: NAME, or NAME@VERSION unless a model has the whole name."""
    model, at, version = name.rpartition("@")
    return (model, version_number(version)) if at and not is_known and model else (name, "")
