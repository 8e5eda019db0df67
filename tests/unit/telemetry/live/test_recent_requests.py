"""The last and the slowest requests of a version, which are kept while a page shows it."""

from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, FailureReason, InferError, excerpt
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.telemetry.live.live_answer import RECENT_REQUESTS, SLOWEST_REQUESTS
from naiad.telemetry.live.recent_requests import RecentRequests
from naiad.telemetry.statistics.model_statistics import ModelStatistics

HEADER = RequestHeader(model_name="m")
OK = InferResponse(ResponseHeader("m", "1", ()))
FAILED = InferResponse(ResponseHeader("m", "1", ()), error=InferError(ErrorCode.INVALID_ARG, "no"))
MS = 1_000_000


def request(name: str, arrival_ms: int = 0) -> InferRequest:
    made = InferRequest(HEADER, (), lambda *_: None, id=name, arrival_ns=arrival_ms * MS)
    made.batch_size = 1
    return made


def record(
    statistics: ModelStatistics, requests: list[InferRequest], responses: list[InferResponse], end_ms: int
) -> None:
    batch = Batch(requests, len(requests))
    batch.exec_start_ns = (end_ms - 6) * MS
    batch.compute_start_ns, batch.compute_end_ns = (end_ms - 5) * MS, (end_ms - 2) * MS
    batch.exec_end_ns = (end_ms - 1) * MS
    statistics.record_batch(batch, responses, end_ms * MS)


def test_parts_of_a_request_add_up() -> None:
    statistics, recent = ModelStatistics("m", "1"), RecentRequests()
    statistics.observe(recent)
    record(statistics, [request("a", 10)], [OK], 30)
    (times,) = recent.recent()
    assert (times.id, times.outcome, times.batch_size) == ("a", "success", 1)
    assert [times.queue_ns, times.input_ns, times.compute_ns, times.output_ns, times.response_ns] == [
        part * MS for part in (14, 1, 3, 1, 1)
    ]
    assert times.duration_ns == 20 * MS


def test_failures_are_kept_with_their_reason() -> None:
    statistics, recent = ModelStatistics("m", "1"), RecentRequests()
    statistics.observe(recent)
    record(statistics, [request("a"), request("b")], [OK, FAILED], 30)
    statistics.record_dropped(request("c"), FailureReason.CANCELED, 40 * MS)
    statistics.record_batch_failure(Batch([request("d")], 1), 50 * MS)
    assert {times.id: times.outcome for times in recent.recent()} == {
        "a": "success",
        "b": "BACKEND",
        "c": "CANCELED",
        "d": "BACKEND",
    }


def test_nothing_is_kept_after_observation_ends() -> None:
    statistics, recent = ModelStatistics("m", "1"), RecentRequests()
    statistics.observe(recent)
    statistics.stop_observing(recent)
    record(statistics, [request("a")], [OK], 30)
    assert recent.recent() == []


def test_kept_requests_are_bounded_and_in_order() -> None:
    statistics, recent = ModelStatistics("m", "1"), RecentRequests()
    statistics.observe(recent)
    for number in range(100):
        record(statistics, [request(str(number), 1000 - (number * 37) % 100)], [OK], 1100)
    assert [times.id for times in recent.recent()] == [str(number) for number in range(99, 99 - RECENT_REQUESTS, -1)]
    slowest = recent.slowest(1100 * MS)
    durations = sorted((100 + (number * 37) % 100 for number in range(100)), reverse=True)
    assert [times.duration_ns // MS for times in slowest] == durations[:SLOWEST_REQUESTS]


def test_slow_requests_are_forgotten_after_five_minutes() -> None:
    statistics, recent = ModelStatistics("m", "1"), RecentRequests()
    statistics.observe(recent)
    record(statistics, [request("slow", 0)], [OK], 20_000)
    record(statistics, [request("quick", 100_000)], [OK], 100_010)
    assert [times.id for times in recent.slowest(200_000 * MS)] == ["slow", "quick"]
    assert [times.id for times in recent.slowest(340_000 * MS)] == ["quick"]


def test_ids_are_kept_as_the_log_has_them() -> None:
    statistics, recent = ModelStatistics("m", "1"), RecentRequests()
    statistics.observe(recent)
    long, hostile = "x" * 5_000_000, "a\x1b[2J"
    record(statistics, [request(long), request(hostile)], [OK, FAILED], 30)
    recent.note_cache_hit(request(long), 1, 2)
    statistics.record_dropped(request(long), FailureReason.CANCELED, 40 * MS)
    assert {len(times.id) for times in recent.recent()} == {203, 8}
    assert {times.id for times in recent.recent()} == {excerpt(long), excerpt(hostile)}
