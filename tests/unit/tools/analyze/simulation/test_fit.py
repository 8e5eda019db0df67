"""Costs are found again from the figures of a server with known costs."""

import functools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.config.model_config_pb2 import ModelConfig
from naiad.tools.analyze.point_measurement import Measured
from naiad.tools.analyze.simulation.fit import fit
from naiad.tools.analyze.simulation.fitted import Fitted, FittedBatch, predict
from naiad.tools.analyze.simulation.regression import fit_line
from naiad.tools.analyze.simulation.simulated_system import BatchTime, RequestCost
from support.long_run import mostly_long
from support.simulated_rows import config_of, measure, point_of

US = 1000
SPREAD = tuple(0.9 + 0.002 * index for index in range(101))


def server(
    fixed_us,
    row_us,
    *,
    slowdown=0.0,
    pass_us=30,
    batch_us=0,
    delay_us=100,
    client_us=0,
    cores=4.0,
    configs=None,
    loaded="m",
):
    """A server with these costs, for all models."""
    configs = configs or {"m": config_of()}
    cost = BatchTime(fixed_us * US, row_us * US, slowdown, SPREAD)
    batches = {(name, 1): FittedBatch(cost, 8, 4) for name in configs}
    request = RequestCost(pass_us * US, delay_us * US, client_ns=client_us * US, batch_ns=batch_us * US)
    requests = {(loaded, 1): request}
    return Fitted(configs, (loaded,), cores, batches, requests)


def fitted_of(truth, points):
    return fit([measure(truth, point) for point in points], truth.configs, truth.cores)


FEW = [
    point_of(config_of(), concurrency=1),
    point_of(config_of(), concurrency=32),
    point_of(config_of(max_batch_size=4), concurrency=16),
    point_of(config_of(instances=4), concurrency=64),
]


@functools.cache
def fitted_once():
    """A fit that several tests look at."""
    return fitted_of(server(2000, 500), FEW)


@given(
    fixed=st.floats(0.0, 1e4),
    per_row=st.floats(0.0, 1e3),
    rows=st.lists(st.integers(1, 64), min_size=3, max_size=9, unique=True),
)
def test_a_line_is_found(fixed, per_row, rows):
    times = [fixed + per_row * each + 1.0 for each in rows]
    found_fixed, found_per_row = fit_line(rows, times)
    for each, time in zip(rows, times, strict=True):
        assert found_fixed + found_per_row * each == pytest.approx(time, rel=0.03)


def test_an_outlier_does_not_bend_the_line():
    rows = [1, 2, 4, 8, 16, 3]
    times = [100 + 10 * each for each in rows]
    times[-1] *= 5
    fixed, per_row = fit_line(rows, times)
    assert fixed + 16 * per_row == pytest.approx(260, rel=0.1)
    assert fixed + per_row == pytest.approx(110, rel=0.15)


def test_costs_of_a_batch_are_found():
    found = fitted_once()
    cost = found.batches["m", 1].cost
    assert cost.fixed_ns == pytest.approx(2000 * US, rel=0.05)
    assert cost.row_ns == pytest.approx(500 * US, rel=0.05)
    assert abs(cost.slowdown) < 0.05
    assert found.error_share < 0.05
    assert found.cpu_factor == pytest.approx(1.0, abs=0.1)


def test_slowdown_between_instances_is_found():
    cost = fitted_of(server(2000, 500, slowdown=0.2), FEW).batches["m", 1].cost
    assert cost.slowdown == pytest.approx(0.2, abs=0.05)
    assert cost.fixed_ns == pytest.approx(2000 * US, rel=0.1)


@pytest.mark.long
def test_sharing_of_cores_is_no_slowdown():
    cost = fitted_of(server(2000, 500, cores=1.5), FEW).batches["m", 1].cost
    assert abs(cost.slowdown) < 0.1
    assert cost.row_ns == pytest.approx(500 * US, rel=0.1)


@pytest.mark.parametrize("client_us", mostly_long([0, 120], bool))
def test_capacity_outside_the_model_is_found(client_us):
    # The event loop needs 80 us for a request; the load generator 120 us in the second case.
    truth = server(10, 2, pass_us=40, delay_us=200, client_us=client_us)
    found = fitted_of(truth, FEW)
    for concurrency in (2, 8, 24, 128):
        point = point_of(config_of(), concurrency=concurrency)
        assert predict(point, found).throughput == pytest.approx(predict(point, truth).throughput, rel=0.1)


@pytest.mark.parametrize(
    ("fixed_us", "row_us", "slowdown", "cores"),
    mostly_long(
        [pytest.param(50, 400, 0.0, 8.0, id="slow rows"), pytest.param(1000, 20, 0.15, 4.0, id="slow batches")],
        lambda case: case.id == "slow batches",
    ),
)
def test_points_not_measured_are_predicted(fixed_us, row_us, slowdown, cores):
    truth = server(fixed_us, row_us, slowdown=slowdown, cores=cores)
    found = fitted_of(truth, FEW)
    for instances, concurrency in ((1, 40), (2, 4), (3, 24)):
        point = point_of(config_of(instances=instances, max_batch_size=16), concurrency=concurrency)
        expected, actual = predict(point, truth), predict(point, found)
        assert actual.throughput == pytest.approx(expected.throughput, rel=0.1)
        assert actual.latency_us[50] == pytest.approx(expected.latency_us[50], rel=0.15)


def test_measured_loop_time_gives_its_costs():
    truth = server(10, 2, pass_us=20, batch_us=60, delay_us=200)
    found = fit([measure(truth, point, knows_loop=True) for point in FEW], truth.configs, truth.cores)
    cost = found.requests["m", 1]
    assert cost.pass_ns == pytest.approx(20 * US, rel=0.25)
    assert cost.batch_ns == pytest.approx(60 * US, rel=0.25)
    assert fitted_of(truth, FEW).requests["m", 1].batch_ns == 0


def ensemble():
    config = ModelConfig(name="chain", platform="ensemble", max_batch_size=8)
    config.input.add(name="in")
    for number, name in enumerate(("a", "b", "b")):
        step = config.ensemble_scheduling.step.add(model_name=name)
        step.input_map["x"] = f"t{number}" if number else "in"
        step.output_map["y"] = f"t{number + 1}"
    return config


def test_members_of_an_ensemble_are_fitted():
    configs = {"chain": ensemble(), "a": config_of("a"), "b": config_of("b")}
    truth = server(2000, 500, configs=configs, loaded="chain")
    points = [point_of(concurrency=count) for count in (1, 8, 48)]
    found = fitted_of(truth, points)
    for name in ("a", "b"):
        assert found.batches[name, 1].cost.work_ns(4) == pytest.approx(4000 * US, rel=0.1)
    point = point_of(config_of("a", instances=2), config_of("b", instances=3), concurrency=24)
    assert predict(point, found).throughput == pytest.approx(predict(point, truth).throughput, rel=0.1)


@pytest.mark.long
def test_pauses_of_the_machine_lengthen_predicted_latencies():
    measured = [measure(server(2000, 500), point) for point in FEW[:2]]
    longer = [replace(each, rows={"m": slower(each.rows["m"])}) for each in measured]
    found = fit(longer, {"m": config_of()}, 4.0)
    assert found.latency_factors[99] > 1.3
    assert found.latency_factors[50] == pytest.approx(1.0, abs=0.1)


def slower(row):
    """The row with three times the p99."""
    p99 = row.latency.percentiles[99]
    p99 = replace(p99, value=3 * p99.value)
    return replace(row, latency=replace(row.latency, percentiles={**row.latency.percentiles, 99: p99}))


class TestDoubts:
    def test_what_was_measured_leaves_no_doubt(self):
        prediction = predict(FEW[0], fitted_once())
        assert list(prediction.doubts) == []

    @pytest.mark.parametrize(
        ("config", "load", "text"),
        [
            (config_of(threads=3), {"concurrency": 1}, "measured with 1 threads and not with 3"),
            (config_of(max_batch_size=64), {"concurrency": 1}, "measured up to 8 rows, not 64"),
            (config_of(instances=9), {"concurrency": 1}, "measured with 4 instances, not 9"),
            (config_of(), {"concurrency": 1, "batch_size": 4}, "with 4 rows cost what those with 1 do"),
            (config_of(), {"request_rate": 1e5}, "beyond the capacity"),
        ],
    )
    def test_extrapolation_is_named(self, config, load, text):
        found = fitted_once()
        prediction = predict(point_of(config, **load), found)
        assert text in " ".join(prediction.doubts)
        assert prediction.error_share > found.error_share

    def test_a_model_without_measurement_is_an_error(self):
        found = fitted_once()
        with pytest.raises(ValueError, match="'m' was not measured"):
            predict(FEW[0], Fitted(found.configs, found.loaded, 4.0, {}, found.requests))

    def test_failed_points_are_left_out(self):
        failed = Measured(FEW[0], error="out of memory")
        with pytest.raises(ValueError, match="no measured point"):
            fit([failed], {"m": config_of()}, 4.0)
