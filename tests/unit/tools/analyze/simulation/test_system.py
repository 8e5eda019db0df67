"""The simulation against formulas of queueing theory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.config.model_config_pb2 import ModelConfig
from naiad.tools.analyze.simulation.simulated_system import (
    BatchTime,
    RequestCost,
    RouteStep,
    SimulatedLoad,
    SimulatedModel,
    SimulatedRoute,
    System,
    simulate,
)
from support.long_run import examples
from support.simulated_rows import config_of

US = 1000
NO_COST = RequestCost()
SMALL = settings(max_examples=examples(15), deadline=None)


def one(
    fixed_us=1000.0, row_us=0.0, *, instances=1, cost=NO_COST, cores=64.0, config=None, processes=1, slowdown=0.0
):
    """A system with one model."""
    config = config or config_of(instances=instances, is_dynamic=False)
    served = SimulatedModel(config, BatchTime(fixed_us * US, row_us * US, slowdown), instances)
    return System({"m": served}, [SimulatedRoute("m", [RouteStep("m")], cost)], cores, processes)


@SMALL
@given(service_us=st.integers(50, 5000), pass_us=st.integers(1, 200), delay_us=st.integers(0, 1000))
def test_a_lone_client_waits_for_nothing(service_us, pass_us, delay_us):
    cost = RequestCost(pass_us * US, delay_us * US)
    result = simulate(one(service_us, cost=cost), SimulatedLoad(concurrency=1))
    expected_us = service_us + 2 * pass_us + delay_us
    assert result.throughput == pytest.approx(1e6 / expected_us, rel=0.01)
    assert result.percentile_us(99) == pytest.approx(expected_us, rel=0.01)
    assert result.overhead_ns == pytest.approx((expected_us - service_us) * US, rel=0.01, abs=100)


@SMALL
@given(instances=st.integers(1, 6), concurrency=st.integers(1, 40))
def test_a_closed_loop_saturates_its_instances(instances, concurrency):
    result = simulate(one(2000, instances=instances), SimulatedLoad(concurrency=concurrency))
    assert result.throughput == pytest.approx(min(instances, concurrency) * 500, rel=0.03)
    # Little's law.
    assert result.throughput * np.mean(result.latencies_ns) / 1e9 == pytest.approx(concurrency, rel=0.05)


@SMALL
@given(rows=st.integers(1, 16))
def test_saturated_batches_are_full(rows):
    config = config_of(max_batch_size=rows)
    result = simulate(one(1000, 100, config=config), SimulatedLoad(concurrency=4 * rows))
    assert result.executions["m"].mean_rows == pytest.approx(rows, rel=0.02)
    assert result.throughput == pytest.approx(rows * 1e6 / (1000 + 100 * rows), rel=0.03)


@pytest.mark.parametrize("utilisation", [0.2, 0.5, 0.7])
def test_wait_is_that_of_m_d_1(utilisation):
    load = SimulatedLoad(rate_per_s=1000 * utilisation, is_poisson=True)
    found = [simulate(one(1000), load, seed).executions["m"] for seed in range(8)]
    waits = [each.queue_ns / each.requests for each in found]
    assert np.mean(waits) == pytest.approx(utilisation / (2 * (1 - utilisation)) * 1000 * US, rel=0.15)


def test_constant_arrivals_below_capacity_never_wait():
    result = simulate(one(1000), SimulatedLoad(rate_per_s=900))
    assert result.percentile_us(99) == pytest.approx(1000, rel=0.01)
    assert result.throughput == pytest.approx(900, rel=0.01)


def test_overload_gives_the_capacity():
    result = simulate(one(1000), SimulatedLoad(rate_per_s=50_000))
    assert result.throughput == pytest.approx(1000, rel=0.05)
    assert result.throughput < result.asked_per_s


def test_an_idle_instance_wakes_up_first():
    served = SimulatedModel(config_of(), BatchTime(500 * US, 0.0, wake_up_ns=100 * US))
    result = simulate(
        System({"m": served}, [SimulatedRoute("m", [RouteStep("m")])], 2.0), SimulatedLoad(concurrency=1)
    )
    assert result.percentile_us(50) == pytest.approx(600, rel=0.01)


def test_an_instance_pauses_between_batches():
    served = SimulatedModel(config_of(is_dynamic=False), BatchTime(500 * US, 0.0, gap_ns=300 * US))
    result = simulate(
        System({"m": served}, [SimulatedRoute("m", [RouteStep("m")])], 2.0), SimulatedLoad(concurrency=4)
    )
    assert result.throughput == pytest.approx(1250, rel=0.01)


def test_batches_of_a_lone_client_are_shorter():
    served = SimulatedModel(config_of(is_dynamic=False), BatchTime(500 * US, 0.0, lone_share=0.4))
    system = System({"m": served}, [SimulatedRoute("m", [RouteStep("m")])], 2.0)
    assert simulate(system, SimulatedLoad(concurrency=1)).percentile_us(50) == pytest.approx(200, rel=0.01)
    assert simulate(system, SimulatedLoad(concurrency=2)).throughput == pytest.approx(2000, rel=0.01)


def test_requests_share_turns_of_the_load_generator():
    system = one(
        10, config=config_of(max_batch_size=32), cost=RequestCost(client_ns=50 * US, client_turn_ns=100 * US)
    )
    assert simulate(system, SimulatedLoad(concurrency=1)).throughput == pytest.approx(1e6 / 160, rel=0.01)
    assert simulate(system, SimulatedLoad(concurrency=32)).throughput > 0.8 * 1e6 / 50


def test_requests_of_one_turn_share_a_batch():
    # Event loops that wake up slowly, and keep an instance waiting for their turn, let requests stay together.
    config = config_of(max_batch_size=8, instances=2)
    costs = RequestCost(20 * US, client_ns=5 * US), RequestCost(20 * US, 300 * US, client_ns=5 * US)
    scattered, together = (
        simulate(one(100, config=config, instances=2, cost=cost), SimulatedLoad(concurrency=8)).executions["m"]
        for cost in costs
    )
    assert together.requests / together.batches > 1.5 * scattered.requests / scattered.batches


def test_the_load_generator_limits_the_throughput():
    system = one(10, instances=4, cost=RequestCost(client_ns=200 * US), cores=8)
    assert simulate(system, SimulatedLoad(concurrency=64)).throughput == pytest.approx(5000, rel=0.02)


@SMALL
@given(pass_us=st.integers(20, 400), processes=st.integers(1, 3))
def test_the_event_loop_limits_small_models(pass_us, processes):
    cost = RequestCost(pass_us * US)
    system = one(1, instances=4, cost=cost, processes=processes)
    result = simulate(system, SimulatedLoad(concurrency=32 * processes))
    assert result.throughput == pytest.approx(processes * 1e6 / (2 * pass_us), rel=0.03)


def test_batches_cost_the_event_loop_once():
    config = config_of(max_batch_size=8)
    costs = RequestCost(10 * US), RequestCost(10 * US, batch_ns=400 * US)
    free, costly = (simulate(one(100, config=config, cost=cost), SimulatedLoad(concurrency=16)) for cost in costs)
    batches, requests = costly.executions["m"].batches, costly.executions["m"].requests
    assert costly.loop_ns == pytest.approx(requests * 20 * US + batches * 400 * US, rel=0.05)
    assert costly.throughput < 0.6 * free.throughput


@SMALL
@given(cores=st.integers(1, 4), instances=st.integers(4, 8))
def test_instances_share_the_cores(cores, instances):
    result = simulate(one(1000, instances=instances, cores=cores), SimulatedLoad(concurrency=3 * instances))
    assert result.throughput == pytest.approx(cores * 1000, rel=0.03)
    assert result.cpu_cores == pytest.approx(cores, rel=0.03)
    assert result.executions["m"].stretch == pytest.approx(instances / cores, rel=0.05)


def test_company_slows_a_batch():
    result = simulate(one(1000, instances=2, slowdown=0.25), SimulatedLoad(concurrency=8))
    assert result.throughput == pytest.approx(2000 / 1.25, rel=0.03)


@SMALL
@given(st.integers(1, 12))
def test_more_clients_bring_no_less(concurrency):
    system = one(800, 60, instances=2, cores=2, config=config_of(instances=2), cost=RequestCost(2e4, 1e5))
    fewer, more = (simulate(system, SimulatedLoad(concurrency=each)) for each in (concurrency, 2 * concurrency))
    assert more.throughput >= 0.97 * fewer.throughput


def test_a_delay_gathers_batches():
    batches = {}
    for delay_us in (0, 5000):
        config = config_of(delay_us=delay_us, max_batch_size=16)
        result = simulate(one(100, 10, config=config), SimulatedLoad(rate_per_s=1000, is_poisson=True))
        batches[delay_us] = result.executions["m"].mean_rows
    assert batches[0] < 1.5
    assert batches[5000] > 4


def test_rejected_requests_are_counted():
    config = config_of(max_batch_size=1)
    config.dynamic_batching.default_queue_policy.max_queue_size = 2
    result = simulate(one(1000, config=config), SimulatedLoad(rate_per_s=3000))
    assert result.dropped_count > 1000
    assert result.percentile_us(99) <= 3100


def network(routes, cores=64.0, **durations_us):
    models = {
        name: SimulatedModel(config_of(name, is_dynamic=False), BatchTime(duration_us * US, 0.0))
        for name, duration_us in durations_us.items()
    }
    return System(models, routes, cores)


def test_steps_in_a_row_add_up():
    route = SimulatedRoute("e", [RouteStep("a"), RouteStep("b", (0,)), RouteStep("a", (1,))])
    result = simulate(network([route], a=1000, b=500), SimulatedLoad(concurrency=1))
    assert result.percentile_us(50) == pytest.approx(2500, rel=0.01)
    # Two passes through the slowest member limit the throughput.
    assert simulate(network([route], a=1000, b=500), SimulatedLoad(concurrency=9)).throughput == pytest.approx(
        500, rel=0.03
    )


def test_branches_run_side_by_side():
    route = SimulatedRoute("e", [RouteStep("a"), RouteStep("b"), RouteStep("c", (0, 1))])
    result = simulate(network([route], a=1000, b=3000, c=500), SimulatedLoad(concurrency=1))
    assert result.percentile_us(50) == pytest.approx(3500, rel=0.01)
    assert result.executions["a"].requests == result.executions["c"].requests


def test_several_models_share_a_machine():
    routes = [SimulatedRoute("a", [RouteStep("a")]), SimulatedRoute("b", [RouteStep("b")])]
    result = simulate(network(routes, cores=1.0, a=1000, b=3000), SimulatedLoad(concurrency=8))
    assert result.throughput == pytest.approx(500, rel=0.05)


def test_the_same_seed_gives_the_same():
    spread = (0.5, 1.0, 1.5)
    config = config_of()
    system = System(
        {"m": SimulatedModel(config, BatchTime(1e6, 1e5, spread=spread))},
        [SimulatedRoute("m", [RouteStep("m")], NO_COST)],
        2.0,
    )
    first, again, other = (simulate(system, SimulatedLoad(concurrency=8), seed) for seed in (1, 1, 2))
    assert first.latencies_ns.tolist() == again.latencies_ns.tolist()
    assert first.latencies_ns.tolist() != other.latencies_ns.tolist()


def test_model_without_batching_takes_single_requests():
    config = ModelConfig(name="m", max_batch_size=0)
    result = simulate(one(1000, config=config), SimulatedLoad(concurrency=8))
    assert result.executions["m"].mean_rows == 1
