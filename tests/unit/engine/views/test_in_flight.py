"""Counts of requests in progress over all models."""

from types import SimpleNamespace

import pytest

from naiad.engine.views.in_flight import InFlight


@pytest.mark.parametrize(("held", "pending", "count"), [(None, 3, 9), (SimpleNamespace(count=4), 7, 13)])
def test_requests_that_wait_are_counted(held, pending: int, count: int) -> None:
    versions = [SimpleNamespace(in_flight_count=each, pending_count=each - 3) for each in (4, 5)]
    table = SimpleNamespace(held=held, all_versions=lambda: versions)
    in_flight = InFlight(table, None)
    assert (in_flight.pending_count, in_flight.count) == (pending, count)
