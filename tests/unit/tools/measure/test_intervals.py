import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.tools.measure.intervals import NONE, Sample, half_width, t_quantile

SECOND = 1_000_000_000


def sample_of(values, seconds=1.0):
    ends = np.linspace(0, seconds * SECOND, len(values) + 1)[1:].astype(np.int64)
    return Sample(ends, np.asarray(values, np.float64), 0, int(seconds * SECOND))


@pytest.mark.parametrize(("degrees", "expected"), [(1, 12.706), (2, 4.303), (3, 3.182), (7, 2.365), (31, 2.040)])
def test_t_quantile_matches_tables(degrees, expected):
    assert t_quantile(degrees) == pytest.approx(expected, rel=0.01)


def test_no_values_give_zeros():
    empty = sample_of([])
    assert empty.mean() == NONE
    assert empty.percentiles((50, 99)) == {50: NONE, 99: NONE}
    assert empty.rate().value == 0
    assert empty.rate().high == pytest.approx(3.69, rel=0.05)  # exact Poisson: at most 3.69 were due


def test_single_value_is_uncertain():
    one = sample_of([5.0])
    assert one.mean().half_width_share == 1
    assert one.percentiles((99,))[99].value == 5


def test_constant_values_have_narrow_interval():
    constant = sample_of([2.0] * 1000)
    assert constant.mean().half_width_share == pytest.approx(0, abs=1e-9)
    assert constant.rate().value == 1000
    assert constant.rate().half_width_share < 0.005


def test_few_even_requests_have_steady_rate():
    assert sample_of([1.0] * 40).rate().half_width_share < 0.01


def test_correlated_values_widen_interval():
    random = np.random.default_rng(3)
    values = random.exponential(1.0, 6400)
    alone = sample_of(values).mean()
    together = sample_of(np.sort(values.reshape(-1, 400), axis=1).reshape(-1)).mean()
    assert alone.value == pytest.approx(together.value)
    runs = sample_of(np.repeat(values[:64], 100)).mean()
    assert runs.half_width_share > 5 * alone.half_width_share


@pytest.mark.parametrize(("length", "blocks"), [(1, 32), (2, 16), (4, 8)])
def test_widest_block_length_counts(length, blocks):
    deviations = np.where(np.arange(32) // length % 2, 1.0, -1.0)
    deviation = math.sqrt(blocks / (blocks - 1))
    # Shorter blocks vary as much and are more, longer ones do not vary at all: both would give a narrower interval.
    expected = t_quantile(blocks - 1) * deviation / math.sqrt(blocks)
    assert half_width(deviations) == pytest.approx(expected)


def test_percentile_of_two_modes_spans_both():
    values = np.where(np.arange(1000) % 2, 50.0, 1.0)
    interval = sample_of(values).percentiles((50,))[50]
    assert (interval.low, interval.high) == (1.0, 50.0)


def test_thinned_sample_keeps_distribution():
    values = np.random.default_rng(1).exponential(1.0, 100_000)
    thinned = sample_of(values).thinned(10_000)
    assert 10_000 <= len(thinned.values) < 20_000
    assert thinned.mean().value == pytest.approx(values.mean(), rel=0.05)


@given(st.lists(st.floats(0.001, 1e9), max_size=300), st.floats(0.001, 1000))
def test_intervals_are_finite_and_hold_value(values, seconds):
    sample = sample_of(values, seconds)
    for interval in (sample.rate(), sample.mean(), *sample.percentiles((1, 50, 99, 100)).values()):
        numbers = (interval.low, interval.value, interval.high)
        assert all(math.isfinite(number) and number >= 0 for number in numbers)
        assert interval.low <= interval.value * (1 + 1e-9)
        assert interval.value <= interval.high * (1 + 1e-9)
