"""Text of clients in messages: printable, and not longer than 200 characters; that of exceptions is bounded too."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.errors import MAX_EXCERPT_CHARACTERS, cause_of, excerpt


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("add_sub", "add_sub"),
        ("größe 1", "größe 1"),
        ("a\nb\x1b[31m\0", "a\\nb\\x1b[31m\\x00"),
        ("\udc80", "\\udc80"),
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 200 + "..."),
        ("\n" * 150, "\\n" * 100 + "..."),
    ],
)
def test_excerpt(text: str, shown: str) -> None:
    assert excerpt(text) == shown


@given(st.text())
def test_excerpt_is_short_and_printable(text: str) -> None:
    shown = excerpt(text)
    assert shown.isprintable()
    assert len(shown) <= MAX_EXCERPT_CHARACTERS + 3
    shown.encode()


def test_causes_are_bounded():
    text = cause_of(ValueError("begin " + "x" * 1_000_000 + " end"))
    assert len(text) < 70_000
    assert text.startswith("ValueError: begin x")
    assert text.endswith("x end")
