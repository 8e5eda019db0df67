"""What the adaptive batcher learns from: latencies, arrivals, instances that slow each other down."""

import random

import pytest

from naiad.scheduler.adaptive.arrival_model import LOWER_NS, ArrivalModel, bin_of
from naiad.scheduler.adaptive.burst_record import BurstRecord
from naiad.scheduler.adaptive.latency_model import LatencyModel
from naiad.scheduler.adaptive.parallelism import Parallelism
from support.scheduling import waiting_request

US = 1000


class TestLatencyModel:
    def test_a_line_is_found(self):
        model = LatencyModel()
        for rows in (1, 2, 8, 4, 16, 1, 3, 9, 12, 5, 7, 2) * 10:
            model.observe(rows, 200 * US + 20 * US * rows)
        assert model.is_certain
        assert model.fixed_ns == pytest.approx(200 * US, rel=0.02)
        assert model.row_ns == pytest.approx(20 * US, rel=0.02)
        assert model.duration_ns(32) == pytest.approx(840 * US, rel=0.02)

    def test_the_first_executions_of_a_model_do_not_count(self):
        model = LatencyModel()
        model.observe(1, 1_000_000 * US)
        model.observe(1, 900_000 * US)
        assert model.duration_ns(1) == 0
        model.observe(1, 100 * US)
        assert model.duration_ns(1) == pytest.approx(100 * US)

    def test_batches_of_one_size_leave_half_of_the_time_fixed(self):
        model = LatencyModel()
        for _ in range(50):
            model.observe(4, 400 * US)
        assert model.fixed_ns == pytest.approx(200 * US)
        assert model.row_ns == pytest.approx(50 * US)

    def test_an_outlier_is_clipped(self):
        model = LatencyModel()
        for _ in range(100):
            model.observe(1, 100 * US)
        model.observe(1, 1_000_000 * US)
        assert model.duration_ns(1) < 110 * US

    def test_a_model_that_has_become_faster_is_learned_anew(self):
        model = LatencyModel()
        for _ in range(1000):
            model.observe(2, 1000 * US)
        for _ in range(1500):
            model.observe(2, 100 * US)
        assert model.duration_ns(2) == pytest.approx(100 * US, rel=0.05)

    def test_the_tail_ratio_is_a_99th_percentile(self):
        rng, model = random.Random(1), LatencyModel()
        for _ in range(20_000):
            model.observe(1, int(100 * US * (3.0 if rng.random() < 0.03 else 1.0)))
        assert model.tail_ratio > 2.0
        for _ in range(20_000):
            model.observe(1, 100 * US)
        assert model.tail_ratio < 1.2

    def test_executions_without_a_duration_make_it_no_more_certain(self):
        model = LatencyModel()
        for _ in range(100):
            model.observe(1, 0)
        assert not model.is_certain

    def test_neither_part_is_ever_negative(self):
        model = LatencyModel()
        for rows, duration_us in ((1, 500), (8, 100), (1, 500), (8, 100), (4, 10), (1, 900)) * 5:
            model.observe(rows, duration_us * US)
            assert model.fixed_ns >= 0
            assert model.row_ns >= 0


class TestArrivalModel:
    @pytest.mark.parametrize("gap_ns", [0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 1000, 10**6, 10**9])
    def test_a_gap_lies_in_its_bin(self, gap_ns):
        index = bin_of(gap_ns)
        assert LOWER_NS[index] <= gap_ns < LOWER_NS[index + 1]

    def test_a_gap_of_hours_is_in_the_last_bin(self):
        assert bin_of(1 << 60) == len(LOWER_NS) - 2

    def test_independent_arrivals_are_not_waited_for(self):
        rng, model, now = random.Random(2), ArrivalModel(), 1.0
        for _ in range(5000):
            now += rng.expovariate(1 / (100 * US))
            model.observe([waiting_request(at_ns=int(now))])
        assert model.mean_gap_ns == pytest.approx(100 * US, rel=0.15)
        assert model.best_hold_ns(0, 1, 300 * US, 30 * US) == 0

    def test_the_rest_of_a_burst_is_waited_for(self):
        model, now = ArrivalModel(), 1
        for _ in range(200):
            for gap_ns in (10_000 * US, 2 * US, 2 * US, 2 * US):
                now += gap_ns
                model.observe([waiting_request(at_ns=now)])
        hold_ns = model.best_hold_ns(0, 1, 500 * US, 1 * US)
        assert 2 * US <= hold_ns <= 10 * US
        assert model.best_hold_ns(100 * US, 4, 500 * US, 1 * US) == 0

    def test_the_probability_of_another_request(self):
        model, now = ArrivalModel(), 1
        for _ in range(100):
            for gap_ns in (1000 * US, 10 * US):
                now += gap_ns
                model.observe([waiting_request(at_ns=now)])
        assert model.probability_within(0, 50 * US) == pytest.approx(0.5, abs=0.02)
        assert model.probability_within(0, 5000 * US) == 1.0
        assert model.probability_within(50 * US, 5000 * US) == 1.0
        assert model.probability_within(10_000 * US, 10_000 * US) == 0.0

    def test_nothing_is_likely_before_anything_came(self):
        model = ArrivalModel()
        assert model.probability_within(0, 10**9) == 0.0
        assert model.best_hold_ns(0, 1, 10**6, 0) == 0
        assert model.mean_gap_ns == 0.0


class TestParallelism:
    def test_instances_that_share_a_device_are_worth_one(self):
        parallelism = Parallelism(4)
        for _ in range(100):
            parallelism.observe(600 * US, 1.0, 300 * US)
        assert parallelism.worthwhile == 1
        assert parallelism.gain == 1.0

    def test_instances_that_do_not_are_worth_all_of_them(self):
        parallelism = Parallelism(2)
        for _ in range(100):
            parallelism.observe(306 * US, 1.0, 300 * US)
        assert parallelism.worthwhile == 2
        assert parallelism.gain == pytest.approx(1.96, abs=0.02)
        assert parallelism.slowed(0.0) == 1.0
        assert parallelism.slowed(0.5) == pytest.approx(1.01, abs=0.002)

    def test_one_instance_is_never_probed(self):
        parallelism = Parallelism(1)
        assert not any(parallelism.should_probe() for _ in range(1000))

    def test_probes_become_rare(self):
        parallelism = Parallelism(2)
        early = sum(parallelism.should_probe() for _ in range(256))
        for _ in range(5000):
            parallelism.should_probe()
        late = sum(parallelism.should_probe() for _ in range(2560))
        assert early > 5
        assert 5 <= late <= 15

    def test_some_that_take_far_longer_do_not_hide_what_most_gain(self):
        parallelism = Parallelism(2)
        for number in range(400):
            parallelism.observe((900 if number % 8 == 0 else 330) * US, 1.0, 300 * US)
        assert parallelism.gain > 1.4

    def test_what_lies_between_batches_is_gained_even_on_a_shared_device(self):
        parallelism = Parallelism(2)
        for _ in range(200):
            parallelism.observe_between(300 * US)
            parallelism.observe(600 * US, 1.0, 300 * US)
        # 600 us from batch to batch alone, 900 us with another one beside it.
        assert parallelism.gain == pytest.approx(2 * 600 / 900, rel=0.02)

    def test_a_company_for_part_of_the_time_tells_as_well(self):
        parallelism = Parallelism(2)
        for _ in range(200):
            # A quarter of the time alone, three quarters 1.1 times as slow.
            parallelism.observe(400 * US, 0.75, (100 + 300 / 1.1) * US)
        assert parallelism.slowdown[1] == pytest.approx(1.1, abs=0.02)


class TestBurstRecord:
    def hold(self, record, *, came, held_us=50):
        record.note(held_ns=held_us * US, before=2, came=came, turn_ns=500 * US, mean_gap_ns=500 * US)

    def opens(self, record, count=100_000):
        return sum(record.opens() for _ in range(count))

    def test_holds_that_bring_requests_go_on(self):
        record = BurstRecord()
        for _ in range(1000):
            self.hold(record, came=2)
        assert self.opens(record, 1000) == 1000

    def test_holds_that_bring_nothing_end_for_longer_and_longer(self):
        record = BurstRecord()
        pauses = []
        for _ in range(12):
            for _ in range(8):
                self.hold(record, came=0)
            pauses.append(0)
            while not record.opens():
                pauses[-1] += 1
        assert pauses == [min(16_384, 64 << number) for number in range(12)]

    def test_a_few_lost_holds_are_forgiven(self):
        record = BurstRecord()
        for number in range(1000):
            self.hold(record, came=0 if number % 4 == 0 else 2)
            assert record.opens()

    def test_where_there_are_no_bursts_they_are_looked_for_now_and_then(self):
        record = BurstRecord()
        looks = 0
        for _ in range(10_000):
            if record.opens():
                looks += 1
                record.note_none()
        assert 400 < looks < 800
