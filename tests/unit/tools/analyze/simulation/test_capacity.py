"""Capacity for a rate, from known costs."""

import pytest

from naiad.tools.analyze.simulation.capacity import capacity
from naiad.tools.analyze.simulation.fitted import Fitted, FittedBatch
from naiad.tools.analyze.simulation.simulated_system import BatchTime, RequestCost
from support.simulated_rows import config_of, point_of

US, MS = 1000, 1_000_000


def server(fixed_ms=10.0, pass_us=20):
    """A server of a model that takes so long, without dynamic batching."""
    config = config_of(is_dynamic=False)
    batches = {("m", 1): FittedBatch(BatchTime(fixed_ms * MS, 0.0), 1, 4)}
    cost = RequestCost(pass_us * US)
    return Fitted({"m": config}, ("m",), 2.0, batches, {("m", 1): cost})


def need(rate, limit_ms=100.0, machine_cores=16, **options):
    fitted = server(**options)
    return capacity(fitted, point_of(*fitted.configs.values()), rate, limit_ms * 1000, machine_cores=machine_cores)


def test_cores_follow_the_rate():
    # A core does 100 requests/s; the event loop takes some of it.
    found = {rate: need(rate).cores for rate in (50, 350, 1200)}
    assert found[50] == 1
    assert 4 <= found[350] <= 5
    assert 13 <= found[1200] <= 15


@pytest.mark.long
def test_a_tighter_limit_needs_more():
    assert need(350, limit_ms=13).cores > need(350, limit_ms=100).cores


def test_more_than_a_machine_is_several():
    found = need(5000, machine_cores=16)
    assert 4 <= found.machines <= 5
    assert found.rate_per_s == pytest.approx(5000 / found.machines)
    assert found.expected_us <= 100_000


def test_small_models_need_processes():
    found = need(20_000, fixed_ms=0.01, pass_us=40, machine_cores=8)
    assert (found.machines, found.processes) == (1, 2)


def test_no_machine_beats_the_model():
    assert need(10, limit_ms=5) is None


@pytest.mark.parametrize(("rate", "limit_ms"), [(0, 10), (10, 0)])
def test_rate_and_limit_must_be_positive(rate, limit_ms):
    with pytest.raises(ValueError, match="must be above 0"):
        need(rate, limit_ms)
