"""Numbers of values in JSON bodies: what texts contain does not count."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.limits import value_limits
from naiad.core.limits.value_limits import MAX_ELEMENTS, MAX_MEMBERS_AND_CONTAINERS, excess_of_values

VALUES = st.recursive(
    st.integers() | st.text(alphabet='\\",:[]{}a\n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='\\",:[{'), inner),
)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * (MAX_MEMBERS_AND_CONTAINERS + 1),
        b"{}," * (MAX_MEMBERS_AND_CONTAINERS + 1),
        b'"a":1,' * (MAX_MEMBERS_AND_CONTAINERS + 1),
    ],
)
def test_too_many_containers_or_members_are_named(body: bytes) -> None:
    assert "65537 arrays, objects and members; at most 65536" in str(excess_of_values(body))


def test_too_many_elements_are_named() -> None:
    assert "500001 commas between values; at most 500000" in str(excess_of_values(b"[" + b"1," * (MAX_ELEMENTS + 1)))
    assert excess_of_values(b"[" + b"1," * MAX_ELEMENTS + b"1]") is None


def test_texts_may_have_any_number_of_brackets() -> None:
    assert excess_of_values(json.dumps(['\\"[{:,' * 600_000]).encode()) is None


def elements_and_members(value: Any) -> tuple[int, int]:
    """Return the containers and members of a value, and its commas."""
    if not isinstance(value, dict | list):
        return 0, 0
    inner = [elements_and_members(each) for each in (value.values() if isinstance(value, dict) else value)]
    members = len(value) if isinstance(value, dict) else 0
    return 1 + members + sum(each[0] for each in inner), max(0, len(value) - 1) + sum(each[1] for each in inner)


@given(VALUES)
def test_values_are_counted_as_a_parser_finds_them(value: Any) -> None:
    containers, commas = elements_and_members(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(value_limits, "MAX_MEMBERS_AND_CONTAINERS", -1)
        patch.setattr(value_limits, "_PIECE", 7)
        assert str(excess_of_values(json.dumps(value).encode())).startswith(f"{containers} arrays")
        patch.setattr(value_limits, "MAX_MEMBERS_AND_CONTAINERS", containers)
        patch.setattr(value_limits, "MAX_ELEMENTS", -1)
        assert str(excess_of_values(json.dumps(value).encode())).startswith(f"{commas} commas")
