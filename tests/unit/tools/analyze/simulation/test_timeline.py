"""Simulated time and the sharing of cores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.scheduler.direct import DirectScheduler
from naiad.scheduler.dynamic import DynamicScheduler
from naiad.scheduler.queue import QueueLimits
from naiad.tools.analyze.simulation.station import Station
from naiad.tools.analyze.simulation.timeline import Timeline
from support.scheduling import MS, waiting_request


def ends_of(works, cores, threads=1):
    """Return when each of several works that begin together ends."""
    timeline, ends = Timeline(cores), {}
    for number, work_ns in enumerate(works):
        timeline.work(work_ns, lambda number=number: ends.update({number: timeline.now_ns}), threads)
    timeline.run()
    return [ends[number] for number in range(len(works))]


def test_events_run_in_order_of_time():
    timeline, seen = Timeline(), []
    for time_ns in (30, 10, 20, 10):
        timeline.at(time_ns, lambda: seen.append(timeline.now_ns))
    timeline.run()
    assert seen == [10, 10, 20, 30]


def test_work_on_enough_cores_is_not_slowed():
    assert ends_of([100, 300], cores=2) == [100, 300]


def test_work_shares_cores_evenly():
    # Three on two cores run at 2/3 until the first ends at 150; then the other two at full speed.
    assert ends_of([100, 200, 200], cores=2) == [150, 250, 250]


def test_threads_of_work_count_as_demand():
    assert ends_of([100], cores=1, threads=2) == [200]


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=20), st.integers(1, 4))
def test_cores_do_no_more_than_they_can(works, cores):
    ends = ends_of(works, cores)
    assert max(ends) >= sum(works) / cores - len(works)
    assert all(end >= work - 1 for end, work in zip(ends, works, strict=True))
    if len(works) >= cores:
        assert max(ends) <= sum(works) / cores + max(works) + len(works)


def test_a_stopped_timeline_keeps_the_rest():
    timeline, seen = Timeline(), []
    timeline.at(1, lambda: setattr(timeline, "is_stopped", True))
    timeline.at(2, lambda: seen.append(2))
    timeline.run()
    assert (timeline.now_ns, seen) == (1, [])


class TestStation:
    def station(self, scheduler, **options):
        timeline, batches = Timeline(), []
        station = Station(timeline, scheduler, lambda batch: 10 * MS, on_end=batches.append, **options)
        return timeline, station, batches

    def arrive(self, timeline, station, time_ns):
        timeline.at(time_ns, lambda: station.enqueue(waiting_request(at_ns=time_ns)))

    def test_a_batch_waits_for_its_delay(self):
        timeline, station, batches = self.station(DynamicScheduler(max_batch_size=8, delay_ns=3 * MS))
        for time_ns in (1 * MS, 2 * MS):
            self.arrive(timeline, station, time_ns)
        timeline.run()
        assert [(batch.size, batch.exec_start_ns) for batch in batches] == [(2, 4 * MS)]

    def test_instances_execute_side_by_side(self):
        timeline, station, batches = self.station(DirectScheduler(), instance_count=2)
        for time_ns in (1, 2, 3):
            self.arrive(timeline, station, time_ns)
        timeline.run()
        assert [batch.exec_end_ns for batch in batches] == [10 * MS + 1, 10 * MS + 2, 20 * MS + 1]
        assert station.running_count == 0

    def test_requests_past_their_timeout_are_dropped(self):
        dropped = []
        scheduler = DynamicScheduler(max_batch_size=1, default_policy=QueueLimits(timeout_ns=4 * MS))
        timeline, station, batches = self.station(scheduler, on_drop=dropped.extend)
        for time_ns in (1, 2):
            self.arrive(timeline, station, time_ns)
        timeline.run()
        assert (len(batches), len(dropped)) == (1, 1)
        assert dropped[0].error.message == "Request timeout expired"


@pytest.mark.parametrize("count", [1, 3])
def test_each_request_is_executed_once(count):
    timeline, done = Timeline(cores=1), []
    station = Station(
        timeline,
        DynamicScheduler(max_batch_size=4),
        lambda batch: 1000 * batch.size,
        instance_count=count,
        on_end=lambda batch: done.extend(batch.requests),
    )
    requests = [waiting_request(at_ns=100 * number) for number in range(50)]
    for request in requests:
        timeline.at(request.arrival_ns, lambda request=request: station.enqueue(request))
    timeline.run()
    assert {id(each) for each in done} == {id(each) for each in requests}
    assert len(done) == 50
