"""Loads that make no sense, and the ids of sequences."""

import random

import pytest

from naiad.core.errors import InferError
from naiad.tools.perf.generator.next_request import model_chooser
from naiad.tools.perf.load.arrivals import arrivals_ns, check_load, is_played_once
from naiad.tools.perf.load.search import check_loads, load_of, values
from naiad.tools.perf.load.sequences import SequenceSource
from naiad.tools.perf.perf_plan import (
    Concurrency,
    Intervals,
    Load,
    Phase,
    Ramp,
    RequestRate,
    Schedule,
    Search,
    Sequences,
)


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (Concurrency(0), "concurrency is 0"),
        (RequestRate(0), "request rate is 0/s"),
        (RequestRate(1e-300), "request rate is 1e-300/s"),
        (Intervals((1 << 62,)), "a request interval is"),
        (RequestRate(float("nan")), "request rate is nan/s"),
        (Intervals(()), "request intervals"),
        (Intervals((0, 0)), "request intervals"),
        (Intervals((5, -1)), "request intervals"),
        (Schedule(()), "the schedule is empty"),
        (Schedule((0, 5, 4)), "entry 2 of the schedule is 4 ns"),
        (Ramp(()), "the ramp sends nothing"),
        (Ramp((Phase(1, 0, 0),)), "the ramp sends nothing"),
        (Ramp((Phase(1, 5, 5), Phase(0, 5, 5))), "phase 1 of the ramp lasts 0 s"),
    ],
)
def test_senseless_loads_are_refused(load: Load, message: str) -> None:
    with pytest.raises(InferError, match=message):
        check_load(load)


@pytest.mark.parametrize("offsets_ns", [(0, 0), (0, 5, 5, 5, 9), (7,)])
def test_schedule_may_have_equal_times(offsets_ns: tuple[int, ...]) -> None:
    check_load(Schedule(offsets_ns))
    assert tuple(arrivals_ns(Schedule(offsets_ns))) == offsets_ns


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (Search(0, 4), "concurrency is 0"),
        (Search(8, 4), "ends at 4, below its start of 8"),
        (Search(1, 4, 0), "the step of the concurrency range is 0"),
        (Search(1, 4, 0.5), "the step of the concurrency range is 0.5"),
        (Search(1, 0), "without an end needs a latency limit"),
        (Search(1, 8, is_binary=True), "binary search needs"),
        (Search(1, 1e9, is_rate=True), "the request rate range ends at 1e"),
    ],
)
def test_senseless_ranges_are_refused(search: Search, message: str) -> None:
    with pytest.raises(InferError, match=message):
        check_loads(search, 0)


def test_ranges_that_make_sense_pass() -> None:
    check_loads(Search(1, 0), 5)
    check_loads(Search(0.5, 2, 0.5, is_rate=True), 0)
    check_loads(Schedule((0, 1)), 0)
    assert load_of(Search(is_rate=True), 2.5) == RequestRate(2.5)
    assert load_of(Search(), 2.0) == Concurrency(2)


def test_spike_is_short_phase() -> None:
    ramp = Ramp((Phase(1, 10, 10), Phase(0.1, 100, 100), Phase(1, 10, 10)))
    offsets = list(arrivals_ns(ramp))
    assert len([each for each in offsets if 1e9 <= each < 1.1e9]) == 10
    assert len(offsets) == 30
    assert is_played_once(ramp)
    assert not is_played_once(RequestRate(1))


@pytest.mark.parametrize("weights", [[0.0], [1, -1], [float("nan")]])
def test_wrong_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(InferError, match="the weight of model"):
        model_chooser(weights)


def test_asked_ids_start_at_first() -> None:
    source = SequenceSource(Sequences(first_id=10, last_id=12), [[0]])
    sequences = [source.begin() for _ in range(3)]
    assert [each.sequence_id for each in sequences] == [10, 11, 12]
    with pytest.raises(InferError, match="all 3 sequence ids from 10 to 12 are in use"):
        source.begin()
    source.release(sequences[1])
    assert source.begin().sequence_id == 11


def test_default_ids_start_at_random() -> None:
    starts = {SequenceSource(Sequences(), [[0]], chance=random.Random(seed)).begin().sequence_id for seed in range(9)}
    assert len(starts) == 9


def test_too_few_ids_for_processes_are_refused() -> None:
    with pytest.raises(InferError, match="2 sequence ids are too few for 3 processes"):
        SequenceSource(Sequences(first_id=4, last_id=5), [[0]], part=0, parts=3)


def test_streams_are_used_in_turn() -> None:
    source = SequenceSource(Sequences(length=7, length_variation_percent=0), [[0], [1, 2]], uses_stream_length=True)
    assert [(each.templates, each.length) for each in (source.begin() for _ in range(3))] == [
        ([0], 1),
        ([1, 2], 2),
        ([0], 1),
    ]
    asked = SequenceSource(Sequences(length=3, length_variation_percent=0, has_length=True), [[0]])
    assert asked.begin().length == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Sequences(length=0), "the sequence length is 0"),
        (Sequences(length_variation_percent=101), "is 101 %"),
        (Sequences(count=0), "number of sequences is 0"),
        (Sequences(first_id=-1), "the sequence ids are -1 to"),
        (Sequences(first_id=9, last_id=8), "the sequence ids are 9 to 8"),
    ],
)
def test_wrong_sequences_are_refused(settings: Sequences, message: str) -> None:
    with pytest.raises(InferError, match=message):
        SequenceSource(settings, [[0]])


def test_sweep_without_end_stops_at_highest_load() -> None:
    found = values(Search(60_000, 0, 30_000))
    assert next(found) == 60_000
    assert found.send(True) == 90_000
    with pytest.raises(StopIteration) as end:
        found.send(True)
    assert end.value.value == 90_000
