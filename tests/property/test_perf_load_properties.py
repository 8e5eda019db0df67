"""Arrivals, searches and sequences of the load generator, for any plan."""

import random
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.tools.perf.generator.next_request import model_chooser
from naiad.tools.perf.load.arrivals import arrivals_ns, deal
from naiad.tools.perf.load.search import values
from naiad.tools.perf.load.sequences import SentSequence, SequenceSource
from naiad.tools.perf.perf_plan import Intervals, Phase, Ramp, RequestRate, Schedule, Search, Sequences

_RATES = st.floats(0.1, 1e6)
_PHASES = st.lists(st.builds(Phase, st.floats(0.01, 5), st.floats(0, 500), st.floats(0, 500)), min_size=1, max_size=5)


@given(_RATES, st.booleans(), st.integers(0, 100))
def test_rates_ascend_and_repeat_by_seed(rate: float, is_poisson: bool, seed: int) -> None:
    offsets = list(islice(arrivals_ns(RequestRate(rate, is_poisson), seed), 300))
    assert all(first <= second for first, second in pairwise(offsets))
    assert offsets == list(islice(arrivals_ns(RequestRate(rate, is_poisson), seed), 300))


@given(_RATES)
def test_constant_rate_is_exact_over_time(rate: float) -> None:
    offset = next(islice(arrivals_ns(RequestRate(rate)), 5000, None))
    assert offset == pytest.approx(5000e9 / rate, rel=1e-9, abs=1)


def test_poisson_rate_holds_over_time() -> None:
    offset = next(islice(arrivals_ns(RequestRate(100, is_poisson=True), 7), 100_000, None))
    assert offset == pytest.approx(1000e9, rel=0.02)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=9))
def test_intervals_repeat(gaps: list[int]) -> None:
    offsets = list(islice(arrivals_ns(Intervals(tuple(gaps))), 3 * len(gaps) + 1))
    assert [second - first for first, second in pairwise(offsets)] == gaps * 3


@given(_PHASES)
def test_ramp_sends_integral_of_rate(phases: list[Phase]) -> None:
    offsets = list(arrivals_ns(Ramp(tuple(phases))))
    area = sum(phase.duration_s * (phase.start_per_s + phase.end_per_s) / 2 for phase in phases)
    assert abs(len(offsets) - area) <= 1
    assert all(first <= second for first, second in pairwise(offsets))
    if offsets:
        assert offsets[-1] <= sum(phase.duration_s for phase in phases) * 1e9


@given(st.lists(st.integers(0, 1000)), st.integers(1, 5))
def test_dealt_schedules_hold_each_request_once(gaps: list[int], parts: int) -> None:
    schedule = sorted(gaps)
    dealt = sorted(each for part in range(parts) for each in deal(iter(schedule), part, parts))
    assert dealt == list(enumerate(schedule))
    assert list(arrivals_ns(Schedule(tuple(schedule)))) == schedule


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=6))
def test_models_get_their_share(weights: list[float]) -> None:
    choose = model_chooser(weights)
    chosen = [choose() for _ in range(500)]
    for index, weight in enumerate(weights):
        assert abs(chosen.count(index) - 500 * weight / sum(weights)) <= len(weights)


@given(st.integers(1, 200), st.integers(0, 300), st.integers(1, 9), st.integers(0, 400))
def test_binary_search_finds_highest_load(start: int, width: int, step: int, limit: int) -> None:
    search = Search(start, start + width, step, is_binary=True)
    passed, found = _run(search, limit)
    assert found == max(passed, default=None)
    if found is not None and found < search.end:
        assert limit - found < step


@given(st.integers(1, 50), st.integers(0, 50), st.integers(1, 9), st.integers(0, 120))
def test_sweep_ends_at_end_or_limit(start: int, width: int, step: int, limit: int) -> None:
    passed, found = _run(Search(start, start + width, step), limit)
    assert passed == [value for value in range(start, start + width + 1, step) if value <= limit]
    assert found == max(passed, default=None)


def _run(search: Search, limit: int) -> tuple[list[float], float | None]:
    run = values(search)
    passed: list[float] = []
    try:
        value = next(run)
        while True:
            if value <= limit:
                passed.append(value)
            value = run.send(value <= limit)
    except StopIteration as end:
        return passed, end.value


@given(
    st.builds(Sequences, st.integers(1, 30), st.floats(0, 100), first_id=st.integers(1, 5), last_id=st.just(200)),
    st.integers(1, 4),
    st.integers(1, 8),
    st.randoms(use_true_random=False),
)
def test_sequences_keep_protocol(settings: Sequences, parts: int, live: int, chance: random.Random) -> None:
    spread = settings.length * settings.length_variation_percent / 100
    seen: dict[int, list[tuple[int, bool, bool]]] = {}
    for part in range(parts):
        source = SequenceSource(settings, [[0, 1], [2]], part=part, parts=parts, chance=random.Random(part))
        sequences = [source.begin() for _ in range(live)]
        for _ in range(100):
            index = chance.randrange(live)
            if sequences[index].is_sent:
                source.release(sequences[index])
                sequences[index] = source.begin()
            _take_step(sequences[index], seen)
            assert abs(sequences[index].length - settings.length) <= max(spread, 1) + 0.5
            assert len({each.sequence_id for each in sequences}) == live
        for each in sequences:
            assert seen.pop(each.sequence_id, None) is None or each.position
    assert all(settings.first_id <= each <= settings.last_id for each in seen)


def _take_step(sequence: SentSequence, seen: dict[int, list[tuple[int, bool, bool]]]) -> None:
    template, starts, ends = sequence.step()
    steps = seen.setdefault(sequence.sequence_id, [])
    assert starts == (not steps)
    assert template in ((0, 1)[len(steps) % 2], 2)
    if ends:
        assert sequence.is_sent
        del seen[sequence.sequence_id]
    else:
        steps.append((template, starts, ends))


@given(st.integers(1, 10), st.integers(0, 9))
def test_cut_sequences_end_with_next_request(length: int, sent: int) -> None:
    sequence = SentSequence(1, length, [0])
    for _ in range(min(sent, length)):
        sequence.step()
    sequence.cut()
    if not sequence.is_sent:
        assert sequence.step()[2]
    assert sequence.is_sent
