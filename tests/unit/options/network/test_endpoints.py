"""Derived options of endpoints: to which clients the dashboard is served, and which see what the log says."""

import pytest

from naiad.options.network.endpoints import HttpOptions


@pytest.mark.parametrize(
    ("flag", "is_served", "is_local"), [(None, True, True), (True, True, False), (False, False, True)]
)
def test_only_the_true_flag_opens_the_dashboard(flag: bool | None, is_served: bool, is_local: bool) -> None:
    options = HttpOptions(dashboard=flag)
    assert (options.serves_dashboard, options.dashboard_is_local) == (is_served, is_local)
