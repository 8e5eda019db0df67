"""What the adaptive batcher learns: the cost of a batch, and what instances gain from each other."""

import random

import pytest

from naiad.core.batch import Batch
from naiad.scheduler.adaptive import BatchCost, ExecutingBatches
from support.scheduling import waiting_request

US = 1000


class TestKnownCost:
    def test_batches_execute_together_at_once(self):
        cost = BatchCost()
        cost.start(200 * US, 20 * US, 8)
        concurrency = ExecutingBatches(cost, 2)
        concurrency.begin(batch(), 0)
        assert not concurrency.is_learning


class TestBatchCost:
    def test_a_line_is_found(self):
        cost = BatchCost()
        for rows in (1, 2, 8, 4, 16, 1, 3, 9, 12, 5, 7, 2) * 10:
            cost.observe(rows, 200 * US + 20 * US * rows)
        assert cost.is_known
        assert cost.fixed_ns == pytest.approx(200 * US, rel=0.02)
        assert cost.row_ns == pytest.approx(20 * US, rel=0.02)
        assert cost.duration_ns(32) == pytest.approx(840 * US, rel=0.02)

    def test_first_executions_do_not_count_as_cost(self):
        cost = BatchCost()
        cost.observe(1, 1_000_000 * US)
        cost.observe(1, 900_000 * US)
        assert cost.duration_ns(1) == 0
        cost.observe(1, 100 * US)
        assert cost.duration_ns(1) == pytest.approx(100 * US)

    def test_single_batch_size_assumes_half_fixed_time(self):
        cost = BatchCost()
        for _ in range(50):
            cost.observe(4, 400 * US)
        assert cost.fixed_ns == pytest.approx(200 * US)
        assert cost.row_ns == pytest.approx(50 * US)

    def test_known_cost_is_replaced_gradually(self):
        cost = BatchCost()
        cost.start(200 * US, 20 * US, 8)
        assert cost.is_known
        assert cost.duration_ns(4) == pytest.approx(280 * US, rel=0.01)
        for rows in (1, 8) * 200:
            cost.observe(rows, 100 * US + 10 * US * rows)
        assert cost.duration_ns(4) == pytest.approx(140 * US, rel=0.02)

    def test_an_outlier_is_clipped(self):
        cost = BatchCost()
        for _ in range(100):
            cost.observe(1, 100 * US)
        cost.observe(1, 1_000_000 * US)
        assert cost.duration_ns(1) < 110 * US

    def test_lower_cost_is_learned_again(self):
        cost = BatchCost()
        for _ in range(1000):
            cost.observe(2, 1000 * US)
        for _ in range(1500):
            cost.observe(2, 100 * US)
        assert cost.duration_ns(2) == pytest.approx(100 * US, rel=0.05)

    def test_the_tail_ratio_is_a_99th_percentile(self):
        rng, cost = random.Random(1), BatchCost()
        for _ in range(100):
            cost.observe(1, 100 * US)
        for _ in range(20_000):
            cost.observe_tail(1, 100 * US * (3.0 if rng.random() < 0.03 else 1.0))
        assert cost.tail_ratio > 2.0
        for _ in range(20_000):
            cost.observe_tail(1, 100 * US)
        assert cost.tail_ratio < 1.2

    def test_executions_without_duration_add_no_certainty(self):
        cost = BatchCost()
        for _ in range(100):
            cost.observe(1, 0)
        assert not cost.is_known

    def test_neither_part_is_ever_negative(self):
        cost = BatchCost()
        for rows, duration_us in ((1, 500), (8, 100), (1, 500), (8, 100), (4, 10), (1, 900)) * 5:
            cost.observe(rows, duration_us * US)
            assert cost.fixed_ns >= 0
            assert cost.row_ns >= 0


class TestConcurrency:
    """Pairs of batches of which the second begins when the first is half done; a batch takes 100 us alone."""

    def learned(self, *, slowdown, instances=2, pairs=40, failed=False, rest_ns=50 * US):
        cost = BatchCost()
        concurrency = ExecutingBatches(cost, instances)
        now_ns = 1
        for _ in range(20):
            now_ns = self.execute(concurrency, now_ns, now_ns + 100 * US)
        for _ in range(pairs):
            first, second = batch(), batch()
            concurrency.begin(first, now_ns)
            concurrency.begin(second, now_ns + 50 * US)
            first.exec_end_ns = now_ns + 50 * US + int(50 * US * slowdown)
            concurrency.end(first, failed=failed)
            second.exec_end_ns = first.exec_end_ns + rest_ns
            concurrency.end(second, failed=failed)
            now_ns = second.exec_end_ns + 1
        return concurrency, now_ns

    def execute(self, concurrency, start_ns, end_ns):
        alone = batch()
        concurrency.begin(alone, start_ns)
        alone.exec_end_ns = end_ns
        concurrency.end(alone, failed=False)
        return end_ns + 1

    def test_a_shared_device_is_left_to_one_instance(self):
        concurrency, now_ns = self.learned(slowdown=2.0)
        assert concurrency.gain == pytest.approx(1.0, abs=0.02)
        assert concurrency.limit == 1
        concurrency.begin(batch(), now_ns)
        assert concurrency.is_crowded
        assert concurrency.late_ns() == pytest.approx(now_ns + 200 * US, abs=5 * US)

    def test_devices_of_their_own_are_not_limited(self):
        concurrency, now_ns = self.learned(slowdown=1.0, pairs=400)
        assert concurrency.gain == pytest.approx(2.0, abs=0.05)
        assert concurrency.limit == 2
        concurrency.begin(batch(), now_ns)
        assert not concurrency.is_crowded

    def test_nothing_is_limited_before_enough_is_known(self):
        concurrency, _ = self.learned(slowdown=2.0, pairs=9)
        assert (concurrency.limit, concurrency.gain) == (2, 1.0)

    def test_work_without_company_shows_no_gain(self):
        # A busy machine: the second batch is alone for longer than the whole batch would take.
        concurrency, _ = self.learned(slowdown=2.0, rest_ns=150 * US)
        assert (concurrency.limit, concurrency.gain) == (2, 1.0)

    def test_failed_batches_show_nothing(self):
        concurrency, _ = self.learned(slowdown=2.0, failed=True)
        assert (concurrency.limit, concurrency.gain) == (2, 1.0)

    def test_a_batch_that_began_alone_shows_the_cost(self):
        concurrency, _ = self.learned(slowdown=2.0, pairs=200)
        assert concurrency.cost.duration_ns(1) == pytest.approx(100 * US, rel=0.05)

    def test_changed_instance_count_is_learned_again(self):
        concurrency, _ = self.learned(slowdown=2.0)
        concurrency.change_instance_count(3)
        assert (concurrency.limit, concurrency.gain) == (3, 1.0)
        assert concurrency.cost.is_known

    def test_the_first_batches_execute_alone(self):
        concurrency = ExecutingBatches(BatchCost(), 2)
        now_ns = 1
        for _ in range(10):
            concurrency.begin(waiting := batch(), now_ns)
            assert concurrency.is_learning
            waiting.exec_end_ns = now_ns = now_ns + 100 * US
            concurrency.end(waiting, failed=False)
        concurrency.begin(batch(), now_ns)
        assert not concurrency.is_learning


def batch():
    return Batch([waiting_request()], 1)
