"""Rows whose classes nearly tie are made of samples with different classes."""

import numpy as np

from naiad.tools.optimize.correctness.boundaries.near_ties import near_tie_probes
from naiad.tools.optimize.correctness.boundaries.row_answers import RowAnswers
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.labels import LabelRelation
from naiad.tools.optimize.correctness.runners.model_runner import CallableRunner

RANDOM = np.random.default_rng(4)
WEIGHTS = RANDOM.normal(size=(5, 3)).astype(np.float32)
SAMPLES = [{"x": row} for row in RANDOM.normal(size=(8, 5)).astype(np.float32)]
LIMIT = 1e-4


def scores(inputs):
    return {"S": inputs["x"] @ WEIGHTS}


def probes(function, relation, samples=SAMPLES):
    rows = RowAnswers(CallableRunner(function), Settings())
    return list(near_tie_probes(rows, samples, "L", relation, lambda answer: LIMIT))


def test_gaps_are_beyond_the_limit_and_small():
    relation = LabelRelation("S", {place: place for place in range(3)})
    made = probes(scores, relation)
    gaps = [relation.gap(scores({"x": each.sample["x"][None]})) for each in made]
    assert made
    assert all(LIMIT < gap <= 12 * LIMIT for gap in gaps)


def test_thresholds_are_approached_too():
    relation = LabelRelation("S", threshold=0.5)
    made = probes(lambda inputs: {"S": scores(inputs)["S"][:, 0]}, relation)
    assert {bool(scores({"x": each.sample["x"][None]})["S"][0, 0] > 0.5) for each in made} == {True, False}


def test_equal_classes_and_integers_have_none():
    relation = LabelRelation("S", {place: place for place in range(3)})
    assert probes(scores, relation, SAMPLES[:1] * 4) == []
    whole = [{"x": RANDOM.integers(-9, 9, 5)} for _ in range(8)]
    assert probes(scores, relation, whole) == []
