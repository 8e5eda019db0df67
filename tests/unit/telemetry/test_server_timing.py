"""The parts of a request are contiguous: they sum to the time from its first byte to its response."""

import pytest

from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.telemetry import server_timing
from naiad.telemetry.server_timing import RequestTiming
from naiad.tools.perf.statistics.timing import parse_server_timing

MS = 1_000_000
HEADER = ResponseHeader("m", "1", ())


@pytest.fixture
def clock(monkeypatch):
    """The time, to set."""
    now = [0]
    monkeypatch.setattr(server_timing, "_now_ns", lambda: now[0])

    def advance_to(milliseconds):
        now[0] = int(milliseconds * MS)

    return advance_to


def submitted(clock, at_ms=2):
    timing = RequestTiming(1 * MS)
    clock(at_ms)
    timing.submit(InferRequest(RequestHeader(model_name="m"), (), lambda request, response: None))
    return timing


def execute(timing, free_ms, *moments_ms):
    timing.free_ns = free_ms * MS
    names = ("exec_start_ns", "compute_start_ns", "compute_end_ns", "exec_end_ns")
    for name, moment in zip(names, moments_ms, strict=True):
        setattr(timing, name, moment * MS)


def parts(timing):
    """Return the durations in ms: parse, queue, hold, cache, gather, compute, scatter, encode."""
    return tuple(ns / MS for ns in parse_server_timing(timing.value().decode()).durations_ns)


def test_every_part_has_its_time(clock):
    timing = submitted(clock)
    execute(timing, 5, 9, 10, 20, 22)
    clock(23)
    timing.note_answer(InferResponse(HEADER))
    clock(26)
    assert parts(timing) == (1, 3, 4, 0, 1, 10, 2, 4)


@pytest.mark.parametrize(("free_ms", "queue_ms", "hold_ms"), [(1, 0, 7), (0, 7, 0), (7, 5, 2)])
def test_wait_for_free_instance_is_hold(clock, free_ms, queue_ms, hold_ms):
    timing = submitted(clock)
    execute(timing, free_ms, 9, 9, 9, 9)
    clock(9)
    assert parts(timing) == (1, queue_ms, hold_ms, 0, 0, 0, 0, 0)


def test_value_is_in_milliseconds_with_nanoseconds(clock):
    timing = RequestTiming(10)
    clock(2.000_001)
    assert timing.value() == (
        b"parse;dur=1.999991, queue;dur=0.000000, hold;dur=0.000000, gather;dur=0.000000, compute;dur=0.000000, "
        b'scatter;dur=0.000000, encode;dur=0.000000, clock;desc="10"'
    )


def test_cached_response_has_a_cache_part(clock):
    timing = submitted(clock)
    clock(6)
    timing.note_answer(InferResponse(HEADER, parameters={"cache": "hit"}))
    clock(7)
    assert b"cache;dur=4.000000" in timing.value()
    assert parts(timing) == (1, 0, 0, 4, 0, 0, 0, 1)


def test_cache_miss_has_none(clock):
    timing = submitted(clock)
    execute(timing, 2, 3, 3, 6, 6)
    timing.note_answer(InferResponse(HEADER, parameters={"cache": "miss"}))
    assert b"cache" not in timing.value()


def test_steps_of_ensemble_are_its_compute(clock):
    timing = submitted(clock)
    timing.note_step("detect faces", 3 * MS)
    timing.note_step("classify", 2 * MS)
    clock(8)
    timing.note_answer(InferResponse(HEADER))
    clock(9)
    assert parts(timing) == (1, 0, 0, 0, 0, 6, 0, 1)
    assert timing.value().endswith(b", step_detect_faces;dur=3.000000, step_classify;dur=2.000000")


def test_steps_are_bounded(clock):
    timing = submitted(clock)
    for _ in range(1000):
        timing.note_step("m" * 1000, MS)
    assert timing.value().count(b"step_") == 16
    assert len(timing.value()) < 2000


def test_request_dropped_from_queue_was_queued(clock):
    timing = submitted(clock)
    clock(5)
    timing.note_answer(InferResponse(HEADER))
    clock(6)
    assert parts(timing) == (1, 3, 0, 0, 0, 0, 0, 1)


def test_late_response_ends_the_computation(clock):
    timing = submitted(clock)
    execute(timing, 2, 3, 3, 4, 4)
    timing.is_open = True
    clock(9)
    timing.note_answer(InferResponse(HEADER))
    clock(10)
    assert parts(timing) == (1, 0, 1, 0, 0, 6, 0, 1)


def test_moments_out_of_order_keep_the_sum(clock):
    timing = submitted(clock)
    execute(timing, 1, 3, 0, 0, 0)
    clock(5)
    timing.note_answer(InferResponse(HEADER))
    assert sum(parts(timing)) == 4
