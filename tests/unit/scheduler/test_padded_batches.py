"""Requests padded to few lengths: only requests of one length share a batch, and none starves.

Shapes are those that admission gives; the clock is the test's.
"""

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.tensor import TensorSpec
from naiad.engine.admission import AdmissionRules
from naiad.scheduler.adaptive import AdaptiveScheduler
from naiad.scheduler.api import Scheduler
from naiad.scheduler.dynamic import SCAN_LIMIT, DynamicScheduler
from naiad.scheduler.factory import create_scheduler
from support.scheduling import MS, enqueue_all, waiting_request


def padded_config(**dynamic_batching: object) -> ModelConfig:
    config = ModelConfig(name="m", max_batch_size=4, dynamic_batching=dynamic_batching)
    config.input.add(name="IN", data_type="TYPE_FP32", dims=[-1])
    config.parameters["pad_input.IN"].string_value = "buckets=4,8,16 max_waste=0.75"
    return config


def admitted(config: ModelConfig, length: int, *, at_ns: int = 0, rows: int = 1) -> InferRequest:
    """A request with the shape key and rows that admission gives it."""
    header = RequestHeader(model_name="m", inputs=[TensorSpec("IN", DataType.FP32, (rows, length))])
    request = InferRequest(header, [bytes(4 * rows * length)], lambda request, response: None, arrival_ns=at_ns)
    admission = AdmissionRules(config).admit(request)
    request.shape_key, request.batch_size = admission.shape_key, admission.batch_size
    return request


def lengths(scheduler: Scheduler, now_ns: int = 0) -> list[int]:
    batch = scheduler.take(now_ns)
    return [] if batch is None else [request.shape_of(0)[1] for request in batch.requests]


def test_only_lengths_of_one_bucket_share_batch() -> None:
    # P1
    config = padded_config()
    scheduler = create_scheduler(config)
    enqueue_all(scheduler, [admitted(config, length) for length in (3, 7, 4, 1, 8)])
    assert [lengths(scheduler) for _ in range(3)] == [[3, 4, 1], [7, 8], []]


def test_unpadded_requests_share_equal_shapes_only() -> None:
    # P2: longer than the last bucket, or too much of it would be padding.
    config = padded_config()
    scheduler = create_scheduler(config)
    enqueue_all(scheduler, [admitted(config, length) for length in (17, 18, 17, 0, 4, 0)])
    assert [lengths(scheduler) for _ in range(5)] == [[17, 17], [18], [0, 0], [4], []]


def test_oldest_goes_first_from_any_bucket() -> None:
    # P3
    config = padded_config()
    scheduler = create_scheduler(config)
    enqueue_all(scheduler, [admitted(config, length) for length in [16, *[1] * 9]])
    assert [lengths(scheduler) for _ in range(4)] == [[16], [1] * 4, [1] * 4, [1]]


def test_full_bucket_is_sent_while_oldest_waits() -> None:
    # P4
    config = padded_config(max_queue_delay_microseconds=10_000)
    scheduler = create_scheduler(config)
    enqueue_all(scheduler, [admitted(config, 16, at_ns=1), *[admitted(config, 1, at_ns=MS) for _ in range(4)]])
    assert lengths(scheduler, 2 * MS) == [1] * 4
    assert lengths(scheduler, 2 * MS) == []
    assert scheduler.wake_ns() == 1 + 10 * MS
    assert lengths(scheduler, 1 + 10 * MS) == [16]


def test_each_bucket_is_held_for_its_own_delay() -> None:
    # P4
    config = padded_config(max_queue_delay_microseconds=10_000)
    scheduler = create_scheduler(config)
    enqueue_all(scheduler, [admitted(config, 16, at_ns=1), admitted(config, 1, at_ns=3 * MS)])
    assert lengths(scheduler, 11 * MS) == [16]
    assert lengths(scheduler, 11 * MS) == []
    assert scheduler.wake_ns() == 13 * MS
    assert lengths(scheduler, 13 * MS) == [1]


def test_rows_count_and_requests_are_not_split() -> None:
    # P5
    config = padded_config()
    scheduler = create_scheduler(config)
    enqueue_all(scheduler, [admitted(config, 3, rows=3), admitted(config, 2, rows=2), admitted(config, 1, rows=1)])
    assert [lengths(scheduler) for _ in range(3)] == [[3], [2, 1], []]


def test_preferred_sizes_hold_for_each_bucket() -> None:
    # P5
    config = padded_config(preferred_batch_size=[2])
    scheduler = create_scheduler(config)
    enqueue_all(scheduler, [admitted(config, length) for length in (1, 8, 2, 7, 3)])
    assert [lengths(scheduler) for _ in range(4)] == [[1, 2], [8, 7], [3], []]


def test_a_cancelled_request_between_is_gone() -> None:
    config = padded_config()
    scheduler = create_scheduler(config)
    requests = enqueue_all(scheduler, [admitted(config, length) for length in (1, 8, 2, 3)])
    assert scheduler.cancel(requests[2])
    assert [lengths(scheduler) for _ in range(3)] == [[1, 3], [8], []]
    assert scheduler.pending_count == 0


def test_scan_is_bounded_and_forgets_taken_requests() -> None:
    # P3
    scheduler = DynamicScheduler(max_batch_size=4, skips_shapes=True)
    others = [waiting_request(shape=number) for number in range(SCAN_LIMIT)]
    enqueue_all(scheduler, [waiting_request(shape="A"), *others, waiting_request(shape="A")])
    batch = scheduler.take(0)
    assert batch is not None
    assert [request.shape_key for request in batch.requests] == ["A"]
    taken = [scheduler.take(0) for _ in range(SCAN_LIMIT + 1)]
    assert all(batch is not None and batch.size == 1 for batch in taken)
    assert scheduler.pending_count == 0
    assert scheduler.take(0) is None


def test_gaps_in_the_queue_are_closed() -> None:
    scheduler = DynamicScheduler(max_batch_size=100, skips_shapes=True)
    rare = waiting_request(shape="rare")
    for _ in range(50):
        enqueue_all(scheduler, [waiting_request(shape="A", at_ns=1) for _ in range(10)])
        batch = scheduler.take(1)
        assert batch is not None
        assert batch.size == 10
        scheduler.enqueue(rare, 1)
        assert scheduler.cancel(rare)
    assert len(scheduler._default_level.waiting.requests) < 100


@pytest.mark.parametrize("adaptive", [False, True])
def test_batchers_skip_shapes_of_padded_models_only(adaptive: bool) -> None:
    # P3
    config = padded_config()
    config.parameters["adaptive_batching"].string_value = str(adaptive).lower()
    scheduler = create_scheduler(config)
    assert isinstance(scheduler, AdaptiveScheduler) is adaptive
    enqueue_all(scheduler, [admitted(config, length) for length in (3, 7, 4)])
    assert lengths(scheduler) == [3, 4]
    del config.parameters["pad_input.IN"]
    scheduler = create_scheduler(config)
    enqueue_all(scheduler, [admitted(config, length) for length in (3, 7, 3)])
    assert lengths(scheduler) == [3]
