"""The dynamic batcher's rules on size, shape and delay, with time as an argument."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.scheduler.dynamic import DynamicScheduler
from support.scheduling import MS, enqueue_all, waiting_request


def batcher(**settings):
    return DynamicScheduler(**{"max_batch_size": 8, **settings})


def taken(scheduler, now_ns=0):
    """(rows, reason) of the next batch, or None."""
    batch = scheduler.take(now_ns)
    return None if batch is None else (batch.size, batch.release_reason)


@pytest.mark.parametrize(
    ("settings", "rows", "expected"),
    [
        pytest.param({}, [], [], id="nothing-waits"),
        pytest.param({}, [1], [(1, "idle")], id="no-delay-sends-what-there-is"),
        pytest.param({}, [1] * 8, [(8, "full")], id="exactly-full"),
        pytest.param({}, [1] * 10, [(8, "full"), (2, "idle")], id="growth-while-busy-up-to-max"),
        pytest.param({}, [5, 5], [(5, "full"), (5, "idle")], id="rows-count-not-requests"),
        pytest.param({}, [3, 5, 1], [(8, "full"), (1, "idle")], id="requests-never-split"),
        pytest.param({}, [9], [(9, "full")], id="rule-1-first-is-taken-as-is"),
        pytest.param(
            {"preferred_batch_sizes": [4]}, [6, 1], [(6, "preferred"), (1, "idle")], id="rule-1-above-preferred"
        ),
        pytest.param({"preferred_batch_sizes": [4]}, [3, 3], [(3, "preferred"), (3, "idle")], id="rule-2-mark"),
        pytest.param(
            {"preferred_batch_sizes": [4]}, [1] * 6, [(4, "preferred"), (2, "idle")], id="rule-5-mark-moves"
        ),
        pytest.param(
            {"preferred_batch_sizes": [2, 4]}, [1] * 5, [(4, "preferred"), (1, "idle")], id="largest-preferred"
        ),
        pytest.param(
            {"preferred_batch_sizes": [2, 4]}, [1] * 3, [(2, "preferred"), (1, "idle")], id="smaller-preferred"
        ),
        pytest.param({"preferred_batch_sizes": [4, 8]}, [1] * 8, [(8, "full")], id="preferred-that-is-max"),
        pytest.param({"preferred_batch_sizes": [4]}, [1] * 2, [(2, "idle")], id="below-preferred-without-delay"),
        pytest.param({"max_batch_size": 0}, [1, 1], [(1, "full"), (1, "full")], id="a-model-without-batching"),
        pytest.param({}, [0] * 10, [(0, "full"), (0, "idle")], id="empty-requests-count-one-for-the-limit"),
    ],
)
def test_size_rules_without_delay(settings, rows, expected):
    # B1, B2, B3, B5, B10
    scheduler = batcher(**settings)
    enqueue_all(scheduler, [waiting_request(rows=n) for n in rows])
    assert [taken(scheduler) for _ in expected] == expected
    assert taken(scheduler) is None
    assert scheduler.pending_count == 0


def test_forty_requests_within_delay_make_one_batch():
    # B7
    # users.md 16: 40 queued singles, max 400, delay 10 s -> one batch of 40.
    scheduler = batcher(max_batch_size=400, delay_ns=10_000 * MS)
    requests = enqueue_all(scheduler, [waiting_request(at_ns=n * MS) for n in range(40)])
    assert scheduler.take(39 * MS) is None
    assert scheduler.wake_ns() == 10_000 * MS
    assert scheduler.take(10_000 * MS - 1) is None
    batch = scheduler.take(10_000 * MS)
    assert (list(batch.requests), batch.size, batch.release_reason) == (requests, 40, "delay")
    assert scheduler.wake_ns() == 0


def test_full_batch_ignores_delay():
    # B7
    scheduler = batcher(delay_ns=100 * MS)
    enqueue_all(scheduler, [waiting_request() for _ in range(9)])
    assert taken(scheduler) == (8, "full")
    assert taken(scheduler) is None
    assert scheduler.wake_ns() == 100 * MS


def test_preferred_size_ignores_delay():
    # B6
    scheduler = batcher(delay_ns=100 * MS, preferred_batch_sizes=[4])
    enqueue_all(scheduler, [waiting_request() for _ in range(6)])
    assert taken(scheduler) == (4, "preferred")
    assert taken(scheduler) is None


def test_after_the_delay_the_mark_is_ignored():
    # B6
    # Decision d: once the delay is over everything goes that fits.
    scheduler = batcher(delay_ns=100 * MS, preferred_batch_sizes=[4])
    enqueue_all(scheduler, [waiting_request() for _ in range(6)])
    assert taken(scheduler, 100 * MS) == (6, "delay")


def test_after_the_delay_the_maximum_still_holds():
    # B3
    scheduler = batcher(delay_ns=100 * MS, preferred_batch_sizes=[3])
    enqueue_all(scheduler, [waiting_request() for _ in range(9)])
    assert taken(scheduler, 100 * MS) == (8, "full")
    assert taken(scheduler, 100 * MS) == (1, "delay")


def test_cut_batch_is_sent_whole_after_delay():
    # B7
    # Decision a does not hold once the delay is over; c sends everything up to the cut.
    scheduler = batcher(delay_ns=100 * MS, preferred_batch_sizes=[2])
    enqueue_all(scheduler, [waiting_request(shape=shape) for shape in "AAAB"])
    assert taken(scheduler, 100 * MS) == (3, "shape")


def test_cancelled_request_leaves_no_trace():
    # B12
    scheduler = batcher(delay_ns=100 * MS, preferred_batch_sizes=[2])
    first, other_shape, _ = enqueue_all(scheduler, [waiting_request(shape=shape) for shape in "ABA"])
    scheduler.cancel(other_shape)
    assert taken(scheduler) == (2, "preferred")
    assert first.queue is None


def test_reached_preferred_size_is_sent_at_once():
    # B5
    scheduler = batcher(delay_ns=100 * MS, preferred_batch_sizes=[2, 8])
    enqueue_all(scheduler, [waiting_request() for _ in range(3)])
    assert taken(scheduler) == (2, "preferred")
    assert taken(scheduler) is None


def test_the_age_is_that_of_the_oldest():
    # B9
    scheduler = batcher(delay_ns=10 * MS)
    enqueue_all(scheduler, [waiting_request(at_ns=5 * MS), waiting_request(at_ns=2 * MS)])
    assert scheduler.take(6 * MS) is None
    assert scheduler.wake_ns() == 12 * MS
    assert taken(scheduler, 12 * MS) == (2, "delay")


def test_other_shape_cuts_batch_within_delay():
    # B4
    # Rule 4, D-09 and D-10: the key covers shapes of non-ragged inputs and the set of optional inputs.
    scheduler = batcher(delay_ns=100 * MS)
    enqueue_all(scheduler, [waiting_request(shape=shape) for shape in "AABA"])
    assert taken(scheduler) == (2, "shape")
    assert taken(scheduler) == (1, "shape")
    assert taken(scheduler) is None


def test_equal_shape_keys_need_not_be_identical():
    # B4
    scheduler = batcher()
    enqueue_all(scheduler, [waiting_request(shape=(16, n)) for n in (1, 1, 2)])
    assert taken(scheduler) == (2, "shape")


def test_a_preferred_size_before_a_cut_goes_alone():
    # B6
    # Decision a comes before c: the mark is honoured although the batch was cut.
    scheduler = batcher(preferred_batch_sizes=[2])
    enqueue_all(scheduler, [waiting_request(shape=shape) for shape in "AAAB"])
    assert [taken(scheduler) for _ in range(3)] == [(2, "preferred"), (1, "shape"), (1, "idle")]


class _NoOddIds:
    """Keeps what it was asked, batch by batch."""

    def __init__(self):
        self.asked = []
        self.ended = []

    def begin(self):
        self.asked.append([])
        return self.asked[-1]

    def includes(self, record, request):
        record.append(request.id)
        return request.id != "odd"

    def end(self, record):
        self.ended.append(list(record))

    def close(self):
        self.ended.append("closed")


def test_a_strategy_can_refuse_a_request():
    # B4
    # D-14: rule 4, "custom hook refuses: stop, send now".
    strategy = _NoOddIds()
    scheduler = batcher(strategy=strategy, delay_ns=100 * MS)
    enqueue_all(scheduler, [waiting_request(id="a"), waiting_request(id="odd"), waiting_request(id="b")])
    assert taken(scheduler) == (1, "strategy")
    assert taken(scheduler) is None, "the refused request is the first of the next batch, which waits"
    assert taken(scheduler, 100 * MS) == (2, "delay")
    scheduler.close()
    assert strategy.ended == [["a", "odd"], ["odd", "b"], ["odd", "b"], "closed"]


def test_a_strategy_is_not_asked_about_another_shape():
    strategy = _NoOddIds()
    scheduler = batcher(strategy=strategy)
    enqueue_all(scheduler, [waiting_request(id="a", shape="A"), waiting_request(id="b", shape="B")])
    assert taken(scheduler) == (1, "shape")
    assert strategy.ended == [["a"]]


def test_delay_count_holds_requests_once():
    # B16
    # D-16, TRITONSERVER_DELAY_SCHEDULER.
    scheduler = batcher(delay_count=3)
    enqueue_all(scheduler, [waiting_request(), waiting_request()])
    assert (taken(scheduler), scheduler.wake_ns()) == (None, 0)
    enqueue_all(scheduler, [waiting_request()])
    assert taken(scheduler) == (3, "idle")
    enqueue_all(scheduler, [waiting_request()])
    assert taken(scheduler) == (1, "idle")


class TestWaking:
    """What `enqueue` returns: whether a free instance that holds a batch back should look again."""

    def test_without_delay_the_first_is_after_each_look(self):
        # B14: an instance woken for the first finds the later requests, too.
        scheduler = batcher()
        assert [scheduler.enqueue(waiting_request(), 0) for _ in range(3)] == [True, False, False]
        assert scheduler.take(0).size == 3
        assert scheduler.enqueue(waiting_request(), 0)

    def test_no_delay_wakes_for_first_after_rest(self):
        # B14: an instance that leaves requests wakes another one for them.
        scheduler = batcher(max_batch_size=2)
        enqueue_all(scheduler, [waiting_request() for _ in range(3)])
        assert scheduler.take(0).size == 2
        assert scheduler.enqueue(waiting_request(), 0)

    def test_delay_wakes_for_first_and_filling_request(self):
        # B14
        scheduler = batcher(max_batch_size=4, delay_ns=100 * MS)
        answers = []
        for _ in range(4):
            answers.append(scheduler.enqueue(waiting_request(), 0))
            if len(answers) < 4:
                assert scheduler.take(0) is None
        assert answers == [True, False, False, True]

    def test_another_shape_is(self):
        scheduler = batcher(delay_ns=100 * MS)
        scheduler.enqueue(waiting_request(), 0)
        assert scheduler.take(0) is None
        assert scheduler.enqueue(waiting_request(shape="B"), 0)

    def test_departed_shape_does_not_hide_next(self):
        scheduler = batcher(delay_ns=100 * MS)
        other = waiting_request(shape="B")
        enqueue_all(scheduler, [waiting_request(), other])
        assert scheduler.cancel(other)
        assert scheduler.take(0) is None
        assert scheduler.enqueue(waiting_request(shape="B"), 0)

    def test_an_older_one_is(self):
        scheduler = batcher(delay_ns=100 * MS)
        scheduler.enqueue(waiting_request(at_ns=5), 5)
        assert scheduler.take(5) is None
        assert scheduler.enqueue(waiting_request(at_ns=3), 5)
        assert scheduler.wake_ns() == 100 * MS + 3

    def test_the_first_after_all_were_cancelled_is(self):
        scheduler = batcher(delay_ns=100 * MS)
        request = waiting_request()
        scheduler.enqueue(request, 0)
        assert scheduler.take(0) is None
        scheduler.cancel(request)
        assert scheduler.enqueue(waiting_request(at_ns=1), 1)


@given(
    preferred=st.sets(st.integers(1, 8), max_size=3),
    rows=st.lists(st.integers(0, 10), min_size=1, max_size=5),
    cancelled=st.sets(st.integers(0, 4)),
    levels=st.sampled_from([0, 2]),
)
def test_a_single_request_leaves_as_by_all_rules(preferred, rows, cancelled, levels):
    settings = {"preferred_batch_sizes": preferred, "priority_levels": levels}
    found = []
    for takes_single in (True, False):
        scheduler = batcher(**settings)
        requests = [waiting_request(rows=n) for n in rows]
        if not takes_single:
            scheduler._takes_single = False
        for number, request in enumerate(requests):
            scheduler.enqueue(request, 0)
            if number in cancelled:
                scheduler.cancel(request)
            elif number % 2:
                found.append((taken(scheduler), scheduler.pending_count))
        found += [(taken(scheduler), scheduler.pending_count) for _ in rows]
        assert scheduler.pending_count == 0
    assert found[: len(found) // 2] == found[len(found) // 2 :]
