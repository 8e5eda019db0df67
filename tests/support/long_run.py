"""What a long run of the tests does more than CI: all examples of properties, and tests of minutes."""

from hypothesis import settings

CI, LONG = "naiad", "naiad-long"
"""Profiles of hypothesis."""
_SHARE_IN_CI = 3
EXAMPLES = {LONG: 100, CI: 100 // _SHARE_IN_CI}
"""Of properties that do not say how many, by profile."""


def examples(count: int) -> int:
    """Return how many examples a property tries that needs another number: `count` in a long run, a third in CI.

    Each run of CI draws other examples, so that it still meets in some days what it does not meet in one.
    """
    return count if settings.get_current_profile_name() == LONG else max(1, count // _SHARE_IN_CI)
