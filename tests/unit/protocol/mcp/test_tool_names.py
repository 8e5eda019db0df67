"""Names of tools are allowed and differ; pages of a list show each model once."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.protocol.mcp.tool_names import PAGE_TOOLS, page_after, tool_name


@given(st.sets(st.text(min_size=1, max_size=200), max_size=20))
def test_names_are_allowed_and_differ(models: set[str]) -> None:
    names = {tool_name(model) for model in models}
    assert len(names) == len(models)
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name) for name in names)


@given(st.sets(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), max_size=350))
def test_pages_show_each_name_once(models: set[str]) -> None:
    names = sorted(models)
    shown: list[str] = []
    cursor = None
    while True:
        page, cursor = page_after(names, cursor)
        assert len(page) <= PAGE_TOOLS
        shown += page
        if cursor is None:
            break
    assert shown == names


def test_models_that_go_hide_no_other() -> None:
    names = [f"m{number:04}" for number in range(250)]
    first, cursor = page_after(names, None)
    second, _ = page_after([name for name in names if name not in first], cursor)
    assert second == names[100:200]


@pytest.mark.parametrize("cursor", ["*", "x", "/w=="])
def test_cursor_of_another_form_is_refused(cursor: str) -> None:
    with pytest.raises(ValueError, match="the cursor is none"):
        page_after(["m"], cursor)
