"""What a long run of the tests does more than CI: all examples of properties, all of a matrix, tests of minutes."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import settings

CI, LONG = "naiad", "naiad-long"
"""Profiles of hypothesis."""
_SHARE_IN_CI = 5
EXAMPLES = {LONG: 100, CI: 100 // _SHARE_IN_CI}
"""Of properties that do not say how many, by profile."""


def is_long() -> bool:
    """Return whether this is a long run; known when a test file is imported."""
    return settings.get_current_profile_name() == LONG


def examples(count: int) -> int:
    """Return how many examples a property tries that needs another number: `count` in a long run, a fifth in CI.

    Each run of CI draws other examples, so that it still meets in some days what it does not meet in one.
    """
    return count if is_long() else max(1, count // _SHARE_IN_CI)


def mostly_long(cases: Iterable[Any], is_in_ci: Callable[[Any], bool]) -> list[Any]:
    """Return the cases of a matrix, for `parametrize`; a long run tries all, CI those that `is_in_ci` chooses.

    For cases that repeat one path through servers and processes, where tests of units have all inputs. A case is the
    value of one argument, or a `pytest.param`.
    """
    return [case if is_in_ci(case) else _long(case) for case in cases]


def _long(case: Any) -> Any:
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.long])
    return pytest.param(case, marks=pytest.mark.long)
