from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.backend.texts.generation.token_sampling import Sampler
from naiad.core.errors import InferError

LOGITS = np.log(np.array([0.05, 0.4, 0.25, 0.2, 0.1], np.float32))


def drawn(count=300, logits=LOGITS, **given):
    sampler = Sampler({"temperature": 1, "seed": 1, **given})
    return Counter(sampler.pick(logits) for _ in range(count))


def test_greedy_takes_the_largest():
    assert set(drawn(temperature=0)) == set(drawn(top_k=1)) == {1}


def test_frequencies_follow_the_logits():
    found = drawn(4000)
    for token, share in enumerate(np.exp(LOGITS)):
        assert abs(found[token] / 4000 - share) < 0.04


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ({"top_k": 2}, {1, 2}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.6}, {1, 2}),
        ({"top_p": 0.0}, {1}),
        ({"top_k": 3, "top_p": 0.5}, {1, 2}),
        ({"min_p": 0.45}, {1, 2, 3}),
        ({"temperature": 1e-9}, {1}),
        ({"temperature": 1e-46}, {1}),
        ({"temperature": 1e-50, "min_p": 0.1}, {1}),
    ],
)
def test_rare_tokens_are_left_out(given, tokens):
    assert set(drawn(**given)) == tokens


def test_any_number_is_a_seed_that_repeats():
    logits = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    for seed in (-1, 0, 7, (1 << 63) - 1):
        first, again = (
            [sampler.pick(logits) for _ in range(20)]
            for sampler in (Sampler({"temperature": 1, "seed": seed}), Sampler({"temperature": 1, "seed": seed}))
        )
        assert first == again
    assert len({tuple(drawn(20, logits, seed=seed)) for seed in range(5)}) > 1


@given(
    logits=st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=200),
    top_p=st.floats(0, 1),
    top_k=st.integers(0, 300),
)
def test_nucleus_is_that_of_a_sorted_vocabulary(logits, top_p, top_k):
    values = np.array(logits, np.float32)
    token = Sampler({"temperature": 1, "seed": 3, "top_p": top_p, "top_k": top_k}).pick(values)
    order = np.argsort(-values, kind="stable")[: top_k or None]
    weights = np.exp(values[order].astype(np.float64) - values.max())
    before = np.cumsum(weights) - weights
    allowed = values[order][before <= top_p * weights.sum() * (1 + 1e-5)]
    assert values[token] >= allowed.min()


def test_penalties_change_what_follows():
    logits = np.array([2.0, 1.9, -1.0], np.float32)
    for penalty in ({"presence_penalty": 0.5}, {"frequency_penalty": 0.5}, {"repetition_penalty": 1.5}):
        sampler = Sampler(penalty)
        assert [sampler.pick(logits) for _ in range(2)] == [0, 1]
    assert logits.tolist() == pytest.approx([2.0, 1.9, -1.0])


def test_logits_that_are_no_numbers_are_an_error():
    for value in (np.nan, np.inf):
        with pytest.raises(InferError, match="logit"):
            Sampler({}).pick(np.array([1.0, value], np.float32))


def test_impossible_tokens_are_never_drawn():
    logits = np.array([-np.inf, 0.0, -np.inf], np.float32)
    assert set(drawn(50, logits)) == {1}


@pytest.mark.parametrize("penalty", [1e-38, 1e-300, 100])
def test_any_penalty_leaves_numbers(penalty):
    assert sum(drawn(20, LOGITS + 5, repetition_penalty=penalty).values()) == 20


@pytest.mark.parametrize("sampling", [{}, {"presence_penalty": 1.0}, {"temperature": 1, "seed": 1, "top_k": 2}])
def test_excluded_tokens_are_never_picked(sampling):
    sampler = Sampler(sampling)
    assert {sampler.pick(LOGITS, {1, 2}) for _ in range(40)} <= {3, 4, 0}
    # All tokens of a tiny vocabulary: one of them all the same.
    assert Sampler(sampling).pick(LOGITS[:2], {0, 1}) in (0, 1)


@pytest.mark.parametrize("given", [{"temperature": 0}, {}, {"min_p": 0.1}, {"top_p": 0.5}])
def test_excluded_token_is_taken_as_last_resort(given):
    logits = np.full(5, -np.inf, np.float32)
    logits[3] = 2
    sampler = Sampler({"temperature": 1, "seed": 1, **given})
    assert sampler.pick(logits, {3}) == 3
    logits[1] = -1e30
    assert sampler.pick(logits, {3}) == 1
