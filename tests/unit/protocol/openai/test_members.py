"""Members of a body for the OpenAI API: values that do not fit, also large and nested ones."""

import pytest

from naiad.protocol.openai.members import read_body
from naiad.protocol.openai.openai_error import OpenAiError


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_nested_values_are_refused_by_their_kind(opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    deep = opening * 1000 + b"1" + closing * 1000
    with pytest.raises(OpenAiError, match=r"'model' is (a list|an object); expected a text"):
        read_body(b'{"model":' + deep + b"}").text("model")


def test_body_of_many_small_values_is_refused() -> None:
    with pytest.raises(OpenAiError, match=r"70004 arrays, objects and members; at most 65536 are read") as raised:
        read_body(b'{"messages":[' + b"{}," * 70_000 + b"{")
    assert raised.value.openai_code == "request_too_large"


@pytest.mark.parametrize(("given", "shown"), [(b'"0"', '"0"'), (b'""', '""'), (b"true", "true"), (b"7.5", "7.5")])
def test_wrong_value_is_shown_as_it_was_sent(given: bytes, shown: str) -> None:
    error = read_body(b'{"temperature":' + given + b"}").wrong("temperature", "a number from 0 to 2")
    assert error.message == f"'temperature' is {shown}; expected a number from 0 to 2"
