"""The rules of the adaptive batcher, in the order of its module."""

import pytest

from naiad.config.model_profile import ModelProfile
from naiad.core.errors import InferError
from naiad.core.model import DECISIONS
from naiad.scheduler.adaptive import MAX_HOLD_NS, AdaptiveScheduler
from naiad.scheduler.queue import QueueLimits
from support.batching_simulation import Device, Simulation, poisson
from support.scheduling import MS, waiting_request

US = 1000


def duration_ns(rows):
    return 1 * MS + 50 * US * rows


def learned(*, instances=1, parallel=1, rate_per_s=400.0, count=400, **options):
    """Return a batcher that has served Poisson load, its simulation idle again."""
    scheduler = AdaptiveScheduler(max_batch_size=16, instance_count=instances, **options)
    simulation = Simulation(scheduler, Device(duration_ns, instances, parallel))
    simulation.run(poisson(rate_per_s, count))
    return scheduler, simulation


def executed(scheduler, batch, start_ns, *, failed=False):
    batch.exec_start_ns, batch.exec_end_ns = start_ns, start_ns + duration_ns(batch.size)
    scheduler.record_execution(batch, failed=failed)


class TestProfile:
    def test_first_request_waits_for_a_burst(self):
        scheduler = AdaptiveScheduler(max_batch_size=4, profile=ModelProfile(1000.0, 50.0, 8))
        scheduler.enqueue(waiting_request(at_ns=MS), MS)
        assert scheduler.take(MS) is None
        scheduler.enqueue(waiting_request(at_ns=MS + 1), MS + 1)
        assert scheduler.take(2 * MS).size == 2

    def test_drift_is_learned_over_profile(self):
        assert learned()[0].state().drift_ratio is None
        slow = ModelProfile(2000.0, 100.0, 8)
        assert AdaptiveScheduler(max_batch_size=4, profile=slow).state().drift_ratio == pytest.approx(1.0, rel=0.01)
        assert learned(profile=slow)[0].state().drift_ratio == pytest.approx(0.5, rel=0.02)


class TestBatchesThatGoAnyway:
    def test_a_new_batcher_holds_nothing(self):
        scheduler = AdaptiveScheduler(max_batch_size=4, latency_goal_ns=50 * MS)
        for number in range(1, 6):
            scheduler.enqueue(waiting_request(at_ns=number * MS), number * MS)
            batch = scheduler.take(number * MS)
            executed(scheduler, batch, number * MS)
            assert len(batch.requests) == 1
        assert scheduler.state().decisions == {**dict.fromkeys(DECISIONS, 0), "no_gain": 5}

    def test_a_full_batch_goes(self):
        scheduler, simulation = learned(latency_goal_ns=100 * MS)
        now_ns = simulation.now_ns + 100 * MS
        for _ in range(16):
            scheduler.enqueue(waiting_request(at_ns=now_ns), now_ns)
        batch = scheduler.take(now_ns)
        assert (batch.size, batch.release_reason) == (16, "full")

    def test_a_batch_of_another_shape_is_cut(self):
        scheduler, simulation = learned(latency_goal_ns=100 * MS)
        now_ns = simulation.now_ns + 1
        scheduler.enqueue(waiting_request(at_ns=now_ns, shape="A"), now_ns)
        scheduler.enqueue(waiting_request(at_ns=now_ns, shape="B"), now_ns)
        assert scheduler.take(now_ns).release_reason == "shape"


class TestTurns:
    def test_second_instance_on_device_waits_for_first(self):
        scheduler, simulation = learned(instances=2)
        now_ns = simulation.now_ns + 10 * MS
        scheduler.enqueue(waiting_request(at_ns=now_ns), now_ns)
        first = scheduler.take(now_ns, 0)
        scheduler.enqueue(waiting_request(at_ns=now_ns + 1), now_ns + 1)
        assert scheduler.take(now_ns + 1, 1) is None
        assert scheduler.wake_ns(1) > now_ns + duration_ns(1)
        executed(scheduler, first, now_ns)
        assert scheduler.take(now_ns + duration_ns(1), 0) is not None
        assert scheduler.state().decisions["turn"] >= 1

    def test_a_second_instance_with_its_own_device_starts(self):
        scheduler, simulation = learned(instances=2, parallel=2, rate_per_s=1500.0, count=3000)
        assert scheduler.state().parallelism == pytest.approx(2.0, abs=0.15)
        now_ns = simulation.now_ns + 100 * MS
        scheduler.enqueue(waiting_request(at_ns=now_ns), now_ns)
        assert scheduler.take(now_ns, 0) is not None
        scheduler.enqueue(waiting_request(at_ns=now_ns + 1), now_ns + 1)
        assert scheduler.take(now_ns + 1, 1) is not None

    def test_late_batch_does_not_stop_other_batches(self):
        scheduler, simulation = learned(instances=2)
        now_ns = simulation.now_ns + 10 * MS
        scheduler.enqueue(waiting_request(at_ns=now_ns), now_ns)
        assert scheduler.take(now_ns, 0) is not None
        scheduler.enqueue(waiting_request(at_ns=now_ns + 1), now_ns + 1)
        wake_ns = now_ns + 1 if scheduler.take(now_ns + 1, 1) else scheduler.wake_ns(1)
        assert wake_ns <= now_ns + 4 * duration_ns(1)


class TestNoInstanceIsWokenToWait:
    """The instance that ends takes what waits for its turn; `wake_up_ns` is for an instance that is late."""

    def crowded(self, **options):
        scheduler, simulation = learned(instances=2, **options)
        now_ns = simulation.now_ns + 10 * MS
        for _ in range(16):  # some batches are probes, or are to be alone
            assert scheduler.enqueue(waiting_request(at_ns=now_ns), now_ns)
            batch = scheduler.take(now_ns, 0)
            request = waiting_request(at_ns=now_ns + 1)
            if not scheduler.enqueue(request, now_ns + 1):
                return scheduler, batch, request, now_ns
            scheduler.cancel(request)
            executed(scheduler, batch, now_ns)
            scheduler.take(now_ns + duration_ns(1), 0)
            now_ns += 10 * MS
        raise AssertionError("an instance was woken each time")

    def test_the_second_instance_is_left_asleep(self):
        scheduler, batch, _, now_ns = self.crowded()
        assert now_ns + duration_ns(1) < scheduler.wake_up_ns <= now_ns + 4 * duration_ns(1)
        assert not scheduler.enqueue(waiting_request(at_ns=now_ns + 2), now_ns + 2)
        executed(scheduler, batch, now_ns)
        following = scheduler.take(now_ns + duration_ns(1), 0)
        assert (following.size, following.decision) == (2, "turn")
        assert scheduler.wake_up_ns == 0

    def test_begins_at_wake_up_after_late_first(self):
        scheduler, _, _, _ = self.crowded()
        late = scheduler.take(scheduler.wake_up_ns, 1)
        assert (late.size, late.decision) == (1, "turn")

    def test_woken_for_full_batch_and_other_shape(self):
        for rows, shape in ((15, None), (1, "B")):
            scheduler, _, _, now_ns = self.crowded()
            other = waiting_request(at_ns=now_ns + 2, rows=rows, **({"shape": shape} if shape else {}))
            assert scheduler.enqueue(other, now_ns + 2)
            assert scheduler.take(now_ns + 2, 1) is not None

    def test_request_after_cancelled_batch_starts_new_hold(self):
        scheduler, _, request, now_ns = self.crowded()
        wake_up_ns = scheduler.wake_up_ns
        assert scheduler.cancel(request)
        later_ns = now_ns + duration_ns(1) // 2
        is_woken = scheduler.enqueue(waiting_request(at_ns=later_ns), later_ns)
        assert is_woken or scheduler.wake_up_ns == wake_up_ns

    def test_it_is_woken_before_a_request_times_out(self):
        policy = QueueLimits(timeout_ns=1000 * MS, allows_override=True)
        scheduler, _, request, now_ns = self.crowded(default_policy=policy)
        assert scheduler.cancel(request)
        scheduler.enqueue(waiting_request(at_ns=now_ns + 2, timeout_us=500), now_ns + 2)
        assert now_ns < scheduler.wake_up_ns < now_ns + 500 * US


class TestBursts:
    def bursts(self, *, burst=4, gap_ns=10 * US, pause_ns=20 * MS, count=400):
        return [1 + i * pause_ns + j * gap_ns for i in range(count) for j in range(burst)]

    def test_the_rest_of_a_burst_is_waited_for(self):
        scheduler = AdaptiveScheduler(max_batch_size=16)
        outcome = Simulation(scheduler, Device(duration_ns)).run(self.bursts())
        sizes = [batch.size for batch in outcome.batches[-20:]]
        assert sizes == [4] * 20
        assert max(outcome.latencies_ns[-80:]) < duration_ns(4) + 200 * US

    def test_what_comes_at_random_is_not(self):
        scheduler, _ = learned(rate_per_s=300.0, count=2000)
        state = scheduler.state()
        assert state.decisions["burst"] <= 20
        assert state.hold_ns < 20 * MS

    def test_serial_clients_are_batched_together(self):
        """Without holding, 8 such clients fall apart: some execute while other ones get responses."""
        scheduler = AdaptiveScheduler(max_batch_size=8)
        simulation = Simulation(scheduler, Device(duration_ns))
        left = [2000]

        def answer(batch):
            count = min(left[0], len(batch.requests))
            left[0] -= count
            return [simulation.now_ns + 20 * US + 5 * US * i for i in range(count)]

        simulation.on_done = answer
        outcome = simulation.run([1 + 5 * US * i for i in range(8)])
        assert len(outcome.latencies_ns) == 2008
        assert sum(batch.size for batch in outcome.batches[-50:]) / 50 > 7


class TestLatencyGoal:
    def test_batches_grow_for_a_goal_and_keep_it(self):
        arrivals = poisson(2000.0, 4000)
        means = {}
        for goal_ns in (0, 20 * MS):
            scheduler = AdaptiveScheduler(max_batch_size=16, latency_goal_ns=goal_ns)
            outcome = Simulation(scheduler, Device(duration_ns)).run(arrivals)
            means[goal_ns] = outcome.mean_rows
            if goal_ns:
                assert sorted(outcome.latencies_ns[500:])[-35] <= goal_ns
        assert means[20 * MS] > 2 * means[0]

    def test_a_goal_that_cannot_be_kept_holds_nothing(self):
        scheduler, _ = learned(latency_goal_ns=1 * US, rate_per_s=700.0)
        assert scheduler.state().decisions["goal"] == 0

    def test_model_without_fixed_cost_does_not_wait(self):
        scheduler = AdaptiveScheduler(max_batch_size=16, latency_goal_ns=50 * MS)
        device = Device(lambda rows: rows * MS)
        Simulation(scheduler, device).run(poisson(400.0, 2000))
        state = scheduler.state()
        assert state.row_ns == pytest.approx(MS, rel=0.2)
        assert state.decisions["goal"] < 0.05 * sum(state.decisions.values())

    def test_no_hold_without_expected_requests(self):
        scheduler, _ = learned(latency_goal_ns=20 * MS, rate_per_s=5.0)
        assert scheduler.state().decisions["goal"] == 0


class TestLimits:
    def test_hold_ends_with_configured_delay(self):
        scheduler = AdaptiveScheduler(max_batch_size=16, latency_goal_ns=500 * MS, max_hold_ns=3 * MS)
        outcome = Simulation(scheduler, Device(duration_ns)).run(poisson(800.0, 2000))
        # Beyond the hold: a batch that executes, and its own.
        assert max(outcome.latencies_ns) <= 3 * MS + 2 * duration_ns(16)
        assert scheduler.state().decisions["limit"] > 100

    def test_nothing_is_held_for_more_than_a_second(self):
        scheduler, _ = learned(latency_goal_ns=3600 * 1000 * MS, rate_per_s=5.0)
        assert scheduler.state().hold_ns <= 400 * MAX_HOLD_NS

    def test_growing_batch_does_not_cause_timeouts(self):
        policy = QueueLimits(timeout_ns=5 * MS)
        scheduler = AdaptiveScheduler(max_batch_size=16, latency_goal_ns=500 * MS, default_policy=policy)
        for now_ns in range(1, 100 * MS, 2 * MS):
            scheduler.enqueue(waiting_request(at_ns=now_ns), now_ns)
            batch = scheduler.take(now_ns)
            if batch is None:
                break
            executed(scheduler, batch, now_ns)
        wake_ns = scheduler.wake_ns()
        assert now_ns < wake_ns < now_ns + 5 * MS
        assert not scheduler.expire(wake_ns)
        assert scheduler.take(wake_ns).size == 1
        assert scheduler.state().decisions["limit"] == 1

    def test_a_full_queue_refuses(self):
        scheduler = AdaptiveScheduler(max_batch_size=4, default_policy=QueueLimits(max_queue_size=1))
        scheduler.enqueue(waiting_request(at_ns=1), 1)
        with pytest.raises(InferError, match="Exceeds maximum queue size"):
            scheduler.enqueue(waiting_request(at_ns=2), 2)


class TestLearning:
    def test_wait_for_busy_instance_is_no_hold(self):
        """BentoML mixes the two, so that batches still wait on a quiet server after a burst."""
        scheduler = AdaptiveScheduler(max_batch_size=16)
        Simulation(scheduler, Device(duration_ns)).run([*poisson(400.0, 300), *([10_000 * MS] * 200)])
        state = scheduler.state()
        assert state.hold_ns < 300 * 50 * US

    def test_rows_count_and_not_requests(self):
        scheduler = AdaptiveScheduler(max_batch_size=16)
        for number in range(40):
            now_ns, rows = 1 + number * 100 * MS, 1 + number % 8
            scheduler.enqueue(waiting_request(at_ns=now_ns, rows=rows), now_ns)
            batch = scheduler.take(now_ns)
            if batch is None:  # held for a burst, which does not come
                now_ns = scheduler.wake_ns()
                batch = scheduler.take(now_ns)
            executed(scheduler, batch, now_ns)
        assert scheduler.state().fixed_ns == pytest.approx(1 * MS, rel=0.02)
        assert scheduler.state().row_ns == pytest.approx(50 * US, rel=0.05)

    def test_nothing_is_learned_from_failures(self):
        scheduler = AdaptiveScheduler(max_batch_size=16, instance_count=2)
        for number in range(40):
            now_ns = 1 + number * 100 * MS
            scheduler.enqueue(waiting_request(at_ns=now_ns), now_ns)
            executed(scheduler, scheduler.take(now_ns), now_ns, failed=True)
        state = scheduler.state()
        assert (state.fixed_ns, state.row_ns) == (0.0, 0.0)
        assert state.decisions["no_gain"] == 40

    def test_batch_reported_twice_counts_once(self):
        scheduler = AdaptiveScheduler(max_batch_size=16)
        scheduler.enqueue(waiting_request(at_ns=1), 1)
        batch = scheduler.take(1)
        executed(scheduler, batch, 1)
        executed(scheduler, batch, 1)
        scheduler.enqueue(waiting_request(at_ns=9 * MS), 9 * MS)
        assert scheduler.take(9 * MS) is not None

    def test_slow_company_shows_that_instances_share_a_device(self):
        scheduler, _ = learned(instances=4, parallel=1, rate_per_s=3000.0, count=4000)
        assert scheduler.state().parallelism == pytest.approx(1.0, abs=0.15)

    def test_the_rate_of_arrivals(self):
        scheduler, _ = learned(rate_per_s=500.0, count=4000)
        assert scheduler.state().arrival_rate == pytest.approx(500.0, rel=0.2)

    def test_instances_that_come_are_found_out_about(self):
        scheduler, simulation = learned(instances=1, rate_per_s=800.0)
        scheduler.change_instance_count(2)
        assert scheduler.state().parallelism == 1.0
        later = Simulation(scheduler, Device(duration_ns, 2, 2), simulation.now_ns)
        later.run([simulation.now_ns + at_ns for at_ns in poisson(1500.0, 4000)])
        assert scheduler.state().parallelism == pytest.approx(2.0, abs=0.15)
        state = scheduler.state()
        assert state.fixed_ns + state.row_ns == pytest.approx(duration_ns(1), rel=0.2)
