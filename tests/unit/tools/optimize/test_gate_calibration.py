"""Faithful and sabotaged conversions of small models, as the table in docs/optimize-correctness.md counts them.

CI judges a third of the faithful conversions and an eighth of the sabotaged ones, with some of each kind; a long run
judges all.
"""

import pytest

from naiad.tools.optimize.candidate import Candidate, Precision
from naiad.tools.optimize.correctness.gate import judge
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.model_runner import CallableRunner
from support.gate_cases import faithful, sabotaged
from support.long_run import mostly_long

FAITHFUL = list(faithful())
_ALL = list(sabotaged())
_ACCEPTED = {
    ("number", "zero point of activations off by 25"),
    ("number", "zero point of the output off by 5"),
    ("amounts", "no less than 30"),
}
"""Faults in int8 that pass: docs/optimize-correctness.md has the reasons."""


def is_accepted_in_int8(case):
    return case.precision is Precision.INT8 and (case.model.name, case.name) in _ACCEPTED


SABOTAGED = [case for case in _ALL if not (case.gap or is_accepted_in_int8(case))]
NAMED = [case for case in _ALL if case.gap]


class BatchRunner(CallableRunner):
    """A function that takes the batches that are measured and served."""

    max_batch = 32


def verdict_on(case):
    candidate = Candidate("candidate", case.form, case.precision, "")
    model = case.model
    settings = Settings(has_batch=model.has_batch, compares_inputs=model.compares_inputs)
    return judge(CallableRunner(model.function), BatchRunner(case.function), model.samples, candidate, settings)


def text(case):
    return f"{case.kind}, {case.model.name}, {case.precision.value}, {case.name}"


def one_in(count, cases):
    """Return the cases as parameters; CI has one in `count`."""
    chosen = {id(case) for case in cases[::count]}
    return mostly_long(cases, lambda case: id(case) in chosen)


@pytest.mark.parametrize("case", one_in(3, FAITHFUL), ids=text)
def test_faithful_conversion_is_accepted(case):
    found = verdict_on(case)
    assert found.is_accepted, [failure.message for failure in found.failures]


@pytest.mark.parametrize("case", one_in(8, SABOTAGED), ids=text)
def test_sabotaged_conversion_is_rejected(case):
    assert not verdict_on(case).is_accepted


@pytest.mark.parametrize("case", NAMED, ids=text)
def test_fault_that_no_probe_shows_is_named(case):
    found = verdict_on(case)
    assert not found.is_accepted or any(case.gap in each for each in found.not_shown)


def test_catalogue_is_as_large_as_documented():
    assert len(_ALL) >= 120
    assert len(FAITHFUL) >= 40
    kinds = {case.kind for case in SABOTAGED[::8]}
    assert kinds >= {"batches", "classes", "columns, int8", "int8", "strings", "tails"}
    assert len([case for case in _ALL if is_accepted_in_int8(case)]) == len(_ACCEPTED)
