"""ModelStatistics counts as Triton does."""

import sys
import threading
from dataclasses import replace

import pytest

from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, FailureReason, InferError
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.telemetry.statistics.model_statistics import LATENCIES, RECENT_LIMIT, LatencySample, ModelStatistics
from naiad.telemetry.statistics.version_statistics import LATENCY_BOUNDS_NS, Duration

MS = 1_000_000
HEADER = ResponseHeader("m", "1", ())
OK = InferResponse(HEADER)


def failure(code=ErrorCode.INTERNAL, reason=None):
    return InferResponse(HEADER, error=InferError(code, "no", reason=reason))


def request(arrival_ns, rows=1):
    made = InferRequest(RequestHeader(model_name="m"), (), lambda request, response: None, arrival_ns=arrival_ns)
    made.batch_size = rows
    return made


def batch(requests, *, start_ns=10 * MS, input_ns=1 * MS, infer_ns=5 * MS, output_ns=2 * MS, reason="idle"):
    made = Batch(requests, sum(r.batch_size for r in requests), reason)
    made.exec_start_ns = start_ns
    made.compute_start_ns = start_ns + input_ns
    made.compute_end_ns = made.compute_start_ns + infer_ns
    made.exec_end_ns = made.compute_end_ns + output_ns
    return made


def test_a_new_version_has_counted_nothing():
    counts = ModelStatistics("m", "3").snapshot()
    assert (counts.name, counts.version, counts.last_inference_ms) == ("m", "3", 0)
    assert counts.success == counts.fail == counts.queue == counts.cache_hit == counts.cache_miss == Duration(0, 0)
    assert counts.batch_stats == []
    assert counts.failures == dict.fromkeys(FailureReason, 0)


def test_each_request_adds_durations_of_whole_batch():
    statistics = ModelStatistics("m", "1")
    executed = batch([request(2 * MS), request(6 * MS, rows=3)], reason="full")
    statistics.record_batch(executed, [OK, OK], 20 * MS, wall_ms=1234)
    counts = statistics.snapshot()
    assert counts.last_inference_ms == 1234
    assert counts.inference_count == 4
    assert counts.execution_count == 1
    assert counts.success == Duration(2, (18 + 14) * MS)
    assert counts.queue == Duration(2, (8 + 4) * MS)
    assert counts.compute_input == Duration(2, 2 * MS)
    assert counts.compute_infer == Duration(2, 10 * MS)
    assert counts.compute_output == Duration(2, 4 * MS)
    assert counts.fail == Duration(0, 0)
    assert counts.release_reasons == {"full": 1}


def test_batch_statistics_count_executions_by_size():
    statistics = ModelStatistics("m", "1")
    for rows in (4, 1, 4):
        statistics.record_batch(batch([request(0, rows)]), [OK], 20 * MS)
    rows = statistics.snapshot().batch_stats
    assert [row.batch_size for row in rows] == [1, 4]
    assert rows[1].compute_input == Duration(2, 2 * MS)
    assert rows[1].compute_infer == Duration(2, 10 * MS)
    assert rows[1].compute_output == Duration(2, 4 * MS)


def test_without_a_wall_time_the_present_is_taken():
    statistics = ModelStatistics("m", "1")
    statistics.record_batch(batch([request(0)]), [OK], 20 * MS)
    assert statistics.snapshot().last_inference_ms > 1_600_000_000_000


def test_a_request_without_rows_counts_as_one_inference():
    statistics = ModelStatistics("m", "1")
    statistics.record_batch(batch([request(0, rows=0), request(0, rows=2)]), [OK, OK], 20 * MS)
    assert statistics.snapshot().inference_count == 3


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (failure(), FailureReason.BACKEND),
        (failure(ErrorCode.CANCELLED), FailureReason.CANCELED),
        (failure(reason=FailureReason.OTHER), FailureReason.OTHER),
    ],
)
def test_a_request_that_fails_alone_is_a_failure(answer, reason):
    statistics = ModelStatistics("m", "1")
    statistics.record_batch(batch([request(0, rows=2), request(4 * MS)]), [OK, answer], 20 * MS)
    counts = statistics.snapshot()
    assert counts.success == Duration(1, 20 * MS)
    assert counts.fail == Duration(1, 16 * MS)
    assert counts.failures[reason] == 1
    assert sum(counts.failures.values()) == 1
    assert (counts.inference_count, counts.execution_count) == (2, 1)
    assert counts.batch_stats[0].batch_size == 3


def test_batch_without_surviving_requests_is_no_execution():
    statistics = ModelStatistics("m", "1")
    statistics.record_batch(batch([request(0), request(0)]), [failure(), failure()], 20 * MS)
    counts = statistics.snapshot()
    assert (counts.fail.count, counts.execution_count, counts.last_inference_ms) == (2, 0, 0)
    assert counts.batch_stats == []


def test_python_models_succeed_with_error_responses():
    # Triton's Python backend counts a request with an error response as a success.
    statistics = ModelStatistics("m", "1", answered_is_success=True)
    statistics.record_batch(batch([request(0)]), [failure()], 20 * MS)
    counts = statistics.snapshot()
    assert (counts.success.count, counts.fail.count, counts.execution_count) == (1, 0, 1)


def test_cancelled_answers_of_python_models_are_failures():
    statistics = ModelStatistics("m", "1", answered_is_success=True)
    answers = [OK, failure(ErrorCode.CANCELLED), failure()]
    statistics.record_batch(batch([request(0), request(4 * MS), request(0)]), answers, 20 * MS)
    counts = statistics.snapshot()
    assert (counts.success.count, counts.fail, counts.execution_count) == (2, Duration(1, 16 * MS), 1)
    assert counts.failures[FailureReason.CANCELED] == 1
    statistics.record_batch(batch([request(0)]), [failure(ErrorCode.CANCELLED)], 20 * MS)
    assert statistics.snapshot().execution_count == 2


def test_a_model_cancels_its_whole_batch():
    statistics = ModelStatistics("m", "1")
    statistics.record_batch_failure(batch([request(0)]), 20 * MS, reason=FailureReason.CANCELED)
    assert statistics.snapshot().failures[FailureReason.CANCELED] == 1


@pytest.mark.parametrize(("answered_is_success", "executions"), [(False, 0), (True, 1)])
def test_a_batch_that_fails_as_a_whole(answered_is_success, executions):
    statistics = ModelStatistics("m", "1", answered_is_success=answered_is_success)
    statistics.record_batch_failure(batch([request(0), request(5 * MS)]), 20 * MS)
    counts = statistics.snapshot()
    assert counts.fail == Duration(2, 35 * MS)
    assert counts.failures[FailureReason.BACKEND] == 2
    assert counts.success.count == counts.inference_count == 0
    assert counts.execution_count == len(counts.batch_stats) == executions


def test_a_dropped_request_fails_for_its_reason():
    statistics = ModelStatistics("m", "1")
    statistics.record_dropped(request(5 * MS), FailureReason.REJECTED, 8 * MS)
    counts = statistics.snapshot()
    assert counts.fail == Duration(1, 3 * MS)
    assert counts.failures[FailureReason.REJECTED] == 1
    assert counts.queue.count == 0


class TestHistograms:
    def test_every_latency_lands_in_its_bucket(self):
        statistics = ModelStatistics("m", "1")
        executed = batch([request(0), request(9_900_000)], input_ns=100_000, infer_ns=100_001, output_ns=70 * 10**9)
        statistics.record_batch(executed, [OK, OK], executed.exec_end_ns)
        latencies = statistics.snapshot().latencies
        bounds = LATENCY_BOUNDS_NS
        assert latencies["compute_input"][0] == 2, "a bound belongs to its bucket"
        assert latencies["compute_infer"][1] == 2
        assert latencies["compute_output"][-1] == 2, "beyond every bound"
        assert latencies["queue"][0] == latencies["queue"][bounds.index(10 * MS)] == 1
        assert latencies["request"][-1] == 2

    def test_counts_equal_the_successes(self):
        statistics = ModelStatistics("m", "1")
        for number in range(1, 200):
            requests = [request(10 * MS - 50_000 * number * n) for n in range(4)]
            statistics.record_batch(batch(requests), [OK, OK, failure(), OK], 20 * MS)
        counts = statistics.snapshot()
        assert set(counts.latencies) == set(LATENCIES)
        assert {sum(row) for row in counts.latencies.values()} == {counts.success.count} == {199 * 3}


class TestSamples:
    def test_none_are_kept_unless_asked(self):
        statistics = ModelStatistics("m", "1")
        statistics.record_batch(batch([request(0)]), [OK], 20 * MS)
        assert statistics.samples() == []

    def test_they_hold_each_request_and_are_bounded(self):
        statistics = ModelStatistics("m", "1")
        statistics.keep_samples()
        statistics.record_batch(batch([request(0), request(4 * MS)]), [OK, OK], 20 * MS)
        assert statistics.samples() == [
            LatencySample(20 * MS, 20 * MS, 10 * MS, 1 * MS, 5 * MS, 2 * MS),
            LatencySample(20 * MS, 16 * MS, 6 * MS, 1 * MS, 5 * MS, 2 * MS),
        ]
        for _ in range(10_000):
            statistics.record_batch(batch([request(0)]), [OK], 20 * MS)
            statistics.record_cache_hit(request(0), 1, 20 * MS)
            statistics.record_cache_miss(1)
        assert len(statistics.samples()) < 10_000


def test_response_from_the_cache_is_a_use():
    statistics = ModelStatistics("m", "1")
    assert statistics.last_use_ns == 0
    statistics.record_cache_hit(request(20 * MS), 1, 21 * MS)
    assert statistics.last_use_ns == 21 * MS


def test_cache_hits_count_queue_but_not_compute():
    statistics = ModelStatistics("m", "1")
    statistics.record_batch(batch([request(2 * MS)]), [OK], 20 * MS)
    statistics.record_cache_miss(3)
    statistics.record_cache_hit(request(21 * MS), 5, 22 * MS)
    counts = statistics.snapshot()
    assert (counts.success, counts.queue) == (Duration(2, 19 * MS), Duration(2, 8 * MS))
    assert counts.compute_input.count == counts.compute_infer.count == counts.compute_output.count == 1
    assert (counts.cache_hit, counts.cache_miss) == (Duration(1, 5), Duration(1, 3))
    assert [sum(counts.latencies[name]) for name in LATENCIES] == [2, 2, 1, 1, 1]


class TestSingleRequests:
    """Batches of one request are noted, and counted together."""

    @pytest.mark.parametrize("count", [1, 15, 16, 17, 40])
    def test_every_reader_sees_all_of_them(self, count):
        for read in ("snapshot", "live_counts", "recent_batches"):
            statistics = ModelStatistics("m", "1")
            for number in range(count):
                statistics.record_batch(batch([request(number * MS, rows=2)]), [OK], 50 * MS)
            assert statistics.request_count == count
            found = getattr(statistics, read)(*([0, 0] if read == "live_counts" else []))
            if read == "recent_batches":
                assert [each.arrival_ns for each in found] == [n * MS for n in range(count)][-RECENT_LIMIT:]
            else:
                assert (found.inferences if read == "live_counts" else found.inference_count) == 2 * count
        assert statistics.last_use_ns == batch([]).exec_end_ns

    def test_they_count_as_when_each_is_observed(self):
        class Observer:
            def note_successes(self, requests, durations, start_ns, end_ns):
                """Make each batch count at once."""

        noted, observed = ModelStatistics("m", "1"), ModelStatistics("m", "1")
        observed.observe(Observer())
        for statistics in (noted, observed):
            for number in range(1, 60):
                rows = number % 3
                made = batch(
                    [request(number * 40_000, rows)], input_ns=number * 9_999, reason=("idle", "full")[rows % 2]
                )
                statistics.record_batch(made, [OK], made.exec_end_ns)
                if number % 7 == 0:
                    statistics.record_batch(batch([request(0), request(MS)]), [OK, OK], 20 * MS)
        counts, expected = noted.snapshot(), observed.snapshot()
        assert noted.recent_batches() == observed.recent_batches()
        assert abs(counts.last_inference_ms - expected.last_inference_ms) < 60_000
        assert replace(counts, last_inference_ms=0) == replace(expected, last_inference_ms=0)

    def test_their_requests_are_not_kept(self):
        statistics = ModelStatistics("m", "1")
        one = request(0)
        references = sys.getrefcount(one)
        statistics.record_batch(batch([one]), [OK], 20 * MS)
        assert sys.getrefcount(one) == references

    def test_threads_lose_none(self):
        statistics = ModelStatistics("m", "1")

        def record():
            for _ in range(2000):
                statistics.record_batch(batch([request(0)]), [OK], 20 * MS)

        threads = [threading.Thread(target=record) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            statistics.snapshot()
        assert statistics.snapshot().success.count == 8000
