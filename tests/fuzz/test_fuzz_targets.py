"""A short pass over every fuzzing target: all that is kept, then some new inputs, the same ones every time."""

import pytest
from fuzz.targets import TARGETS

from fuzz import campaign

CHECKS = 1500


@pytest.mark.parametrize("name", TARGETS)
def test_short_pass_finds_nothing(name):
    report = campaign.run(TARGETS[name], seconds=280.0, most_checks=CHECKS)
    assert report.checks >= CHECKS
    assert report.outcomes > 1
