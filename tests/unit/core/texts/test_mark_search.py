"""Marks in texts, as a search for each of them finds them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.texts.mark_search import MarkSearch

SHORT = st.text("<|a]^\\-", max_size=7)


@given(marks=st.lists(SHORT, max_size=12), text=st.text("<|a]^\\-", max_size=30))
def test_found_is_what_the_text_has(marks: list[str], text: str) -> None:
    search = MarkSearch(marks)
    found = search.find(text)
    assert search.has_marks == any(marks)
    assert bool(found) == any(mark and mark in text for mark in marks)
    assert not found or (found in marks and found in text)


def test_marks_are_not_tried_one_by_one() -> None:
    looked_at: list[int] = []

    class Text(str):
        __slots__ = ()

        def __contains__(self, other: object) -> bool:
            raise AssertionError("the text is searched for one mark")

        def startswith(self, *arguments: object) -> bool:  # type: ignore[override]
            looked_at.append(1)
            return str.startswith(self, *arguments)  # type: ignore[arg-type]

    search = MarkSearch(f"<|reserved_{number}|>" for number in range(6000))
    assert search.find(Text("<|reserved_ " * 10)) == ""
    assert len(looked_at) == 10
    assert search.find(Text("a <|reserved_17|>")) == "<|reserved_17|>"


def test_check_is_called_in_a_long_search() -> None:
    def leave() -> None:
        raise InterruptedError

    assert MarkSearch(["<a>"]).find("<" * 100, leave) == ""
    with pytest.raises(InterruptedError):
        MarkSearch(["<a>"]).find("<" * 100_000, leave)
