"""Bisection: which nodes stay in higher precision."""

import itertools

import pytest

from naiad.tools.optimize.sensitivity.kept_nodes import KeptNode, groups, keep_few


def network(errors):
    return [KeptNode(f"n{index}", error) for index, error in enumerate(errors)]


class Trials:
    """Accepts when all culprits are kept; counts the calls with different nodes."""

    def __init__(self, *culprits):
        self.culprits = set(culprits)
        self.kept = set()

    def __call__(self, kept):
        self.kept.add(frozenset(kept))
        return self.culprits <= set(kept)


@pytest.mark.parametrize("culprit", [0, 17, 99])
def test_single_culprit_is_found_in_few_steps(culprit):
    trials = Trials(f"n{culprit}")
    errors = [0.01] * 100
    errors[culprit] = 0.5
    assert keep_few(network(errors), trials) == [f"n{culprit}"]
    assert len(trials.kept) <= 9


@pytest.mark.parametrize("culprits", list(itertools.combinations([0, 5, 6, 31, 63], 2)))
def test_culprits_without_a_hint_are_found(culprits):
    trials = Trials(*(f"n{each}" for each in culprits))
    assert set(keep_few(network([0.0] * 64), trials)) == trials.culprits


def test_misleading_errors_cost_steps_only():
    trials = Trials("n3")
    assert keep_few(network([9.0, 8.0, 7.0, 0.0, *[1.0] * 60]), trials) == ["n3"]


def test_nothing_is_kept_where_all_is_well():
    assert keep_few(network([1.0] * 8), Trials()) == []


def test_kept_nodes_that_do_not_suffice():
    assert keep_few(network([1.0] * 8), Trials("unknown")) is None
    assert keep_few([], Trials("unknown")) is None


def test_groups_are_consecutive_nodes():
    found = groups(network([0.0] * 33 + [float("inf")] + [0.0] * 6))
    assert [len(group) for group in found] == [3] * 13 + [1]
    assert [node.name for node in found[0]] == ["n33", "n34", "n35"]
