"""Capacity and the choice of measurements."""

import itertools

import pytest

from naiad.analyze.prediction.capacity import capacity
from naiad.analyze.prediction.choice import plan_measurements
from naiad.analyze.prediction.fit import fit
from naiad.analyze.prediction.fitted import Fitted, FittedBatch, predict
from naiad.analyze.prediction.system import BatchCost, RequestCost
from support.simulated_rows import config_of, measure, point_of

US, MS = 1000, 1_000_000


def server(fixed_ms=10.0, pass_us=20):
    """A server of a model that takes so long, without dynamic batching."""
    config = config_of(is_dynamic=False)
    batches = {("m", 1): FittedBatch(BatchCost(fixed_ms * MS, 0.0), 1, 4)}
    cost = RequestCost(pass_us * US, pass_us * US, delay_ns=0.0)
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


def grid(**options):
    """A grid of 60 points."""
    values = itertools.product((1, 2, 4), (1, 4, 16, 64), (1, 4, 16, 64, 256))
    return [
        point_of(config_of(instances=instances, max_batch_size=rows, **options), concurrency=concurrency)
        for instances, rows, concurrency in values
    ]


class TestChoice:
    def test_a_tenth_is_measured(self):
        chosen = plan_measurements(grid(), {"m": config_of()}, 4.0)
        assert 4 <= len(chosen) <= 6
        assert len({point.key for point in chosen}) == len(chosen)

    def test_a_lone_request_comes_first(self):
        first, second, *_ = plan_measurements(grid(), {"m": config_of()}, 4.0)
        assert first.concurrency == 1
        assert second.concurrency >= 64

    def test_every_thread_count_is_measured(self):
        points = [*grid(threads=1), *grid(threads=2)]
        chosen = plan_measurements(points, {"m": config_of()}, 4.0, budget=2)
        assert {point.variants[0].config_json.count('"2"') for point in chosen} == {0, 1}

    def test_the_chosen_points_predict_the_grid(self):
        config = config_of()
        batches = {("m", 1): FittedBatch(BatchCost(2 * MS, 0.3 * MS, 0.1), 8, 4)}
        cost = RequestCost(20 * US, 30 * US, delay_ns=100 * US)
        truth = Fitted({"m": config}, ("m",), 4.0, batches, {("m", 1): cost})
        points = grid()
        chosen = plan_measurements(points, truth.configs, truth.cores)
        found = fit([measure(truth, point) for point in chosen], truth.configs, truth.cores)
        for point in points[::7]:
            expected = predict(point, truth).throughput
            assert predict(point, found).throughput == pytest.approx(expected, rel=0.1)
