"""Delays of schedulers for test suites, under the names of Triton's environment variables."""

import logging

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.request import InferRequest, RequestHeader
from naiad.options.artificial_delays import ArtificialDelays, read_artificial_delays
from naiad.scheduler.factory import create_scheduler

MS = 1_000_000


def of_sequence(correlation_id: int, *, start: bool = False) -> InferRequest:
    header = RequestHeader(model_name="m", sequence_id=correlation_id, sequence_start=start)
    made = InferRequest(header, (), lambda request, response: None)
    made.batch_size = 1
    made.shape_key = "A"
    return made


def sequences(strategy: str, instance_count: int = 1, **delays: int):
    config = ModelConfig(name="m", max_batch_size=2)
    getattr(config.sequence_batching, strategy).SetInParent()
    return create_scheduler(config, instance_count=instance_count, delays=ArtificialDelays(**delays))


def test_direct_holds_all_instances_until_the_count():
    scheduler = sequences("direct", instance_count=2, scheduler_count=3)
    for number in (1, 2):
        assert not scheduler.enqueue(of_sequence(number, start=True), 0)
    assert [scheduler.take(0, instance) for instance in (0, 1)] == [None, None]
    # Nothing but the end of an idle sequence is waited for.
    assert scheduler.wake_ns(0) >= 1000 * MS
    assert scheduler.enqueue(of_sequence(1), 0)
    assert set(scheduler.pop_woken()) == {0, 1}
    assert [scheduler.take(0, instance).size for instance in (0, 1)] == [1, 1]


def test_direct_holds_only_once():
    scheduler = sequences("direct", scheduler_count=1)
    for number in (1, 2):
        assert scheduler.enqueue(of_sequence(number, start=True), 0)
        assert len(scheduler.take(0).requests) == 1


def test_direct_waits_for_the_backlog_too():
    scheduler = sequences("direct", scheduler_count=2, backlog_count=2)
    for number in (1, 2, 3):
        scheduler.enqueue(of_sequence(number, start=True), 0)
        assert scheduler.take(0) is None
    # The fourth request is the second in the backlog.
    assert scheduler.enqueue(of_sequence(3), 0)
    assert scheduler.take(0).size == 2


def test_backlog_count_alone_has_no_effect():
    scheduler = sequences("direct", backlog_count=2)
    scheduler.enqueue(of_sequence(1, start=True), 0)
    assert scheduler.take(0).size == 1


def test_oldest_holds_like_the_dynamic_batcher():
    scheduler = sequences("oldest", scheduler_count=2)
    scheduler.enqueue(of_sequence(1, start=True), 0)
    scheduler.enqueue(of_sequence(1), 0)
    # Triton: each sequence has one request in the batcher, so the second one does not count.
    assert scheduler.take(0) is None
    scheduler.enqueue(of_sequence(2, start=True), 0)
    assert scheduler.take(0).size == 2


def test_environment_is_read_and_logged(caplog):
    environ = {
        "TRITONSERVER_DELAY_SCHEDULER": "4",
        "TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "2",
        "TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC": "3",
    }
    with caplog.at_level(logging.WARNING):
        assert read_artificial_delays(environ) == ArtificialDelays(4, 2, 3)
    assert "TRITONSERVER_BACKLOG_DELAY_SCHEDULER" in caplog.text
    caplog.clear()
    assert read_artificial_delays({}) == ArtificialDelays()
    assert not caplog.records


@pytest.mark.parametrize("text", ["many", "-1", "1.5"])
def test_a_delay_without_a_number_is_ignored(text, caplog):
    assert read_artificial_delays({"TRITONSERVER_DELAY_SCHEDULER": text}) == ArtificialDelays()
    assert f"is '{text}', expected a whole number" in caplog.text
