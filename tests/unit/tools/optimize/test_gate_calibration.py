"""A fast part of `python -m bench.optimize_gate`: faithful and sabotaged conversions of each kind."""

import pytest
from bench.gate_cases import faithful, sabotaged
from bench.optimize_gate import is_right, verdict_on

FAITHFUL = [case for number, case in enumerate(faithful()) if number % 3 == 0]
_ALL = list(sabotaged())
_LIMITS_OF_INT8 = ("number", "amounts")
"""Models of single numbers: docs/optimize-correctness.md names their faults that pass in int8."""
SABOTAGED = [
    case
    for number, case in enumerate(_ALL)
    if number % 8 == 0 and not (case.model.name in _LIMITS_OF_INT8 and case.precision.value == "int8")
]
"""One of eight; all kinds are among them."""
NAMED = [case for case in _ALL if case.gap]


def text(case):
    return f"{case.kind}, {case.model.name}, {case.precision.value}, {case.name}"


@pytest.mark.parametrize("case", FAITHFUL, ids=text)
def test_faithful_conversion_is_accepted(case):
    found = verdict_on(case)
    assert found.is_accepted, [failure.message for failure in found.failures]


@pytest.mark.parametrize("case", SABOTAGED, ids=text)
def test_sabotaged_conversion_is_rejected(case):
    assert is_right(case, verdict_on(case))


@pytest.mark.parametrize("case", NAMED, ids=text)
def test_fault_that_no_probe_shows_is_named(case):
    assert is_right(case, verdict_on(case))


def test_catalogue_is_as_large_as_documented():
    assert len(_ALL) >= 120
    assert len(list(faithful())) >= 40
    assert {case.kind for case in SABOTAGED} >= {"batches", "classes", "columns, int8", "int8", "strings", "tails"}
