"""Text files of LightGBM that it cannot read without an end of the process, or of the computation."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.backend.trees.lightgbm_text import readable_text

TREE = """Tree=%d
num_leaves=3
split_feature=1 0
threshold=0.5 1e-3
left_child=1 -1
right_child=-2 -3
leaf_value=0.1 0.2 0.3

"""
HEAD = "tree\nversion=v4\nmax_feature_idx=1\ntree_sizes=120 120\n\n"
TEXT = HEAD + TREE % 0 + TREE % 1 + "end of trees\n\nparameters:\nend of parameters\n"


def test_trees_are_counted_and_read_in_order():
    text, count = readable_text(TEXT)
    assert (text, count) == (TEXT.replace("tree_sizes=120 120\n", ""), 2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Tree=1\n", "Trxe=1\n", "it has 1 trees, and 'tree_sizes' lists 2"),
        ("end of trees", "", "is truncated: the line 'end of trees' is missing"),
        ("left_child=1 -1", "left_child=1 9", "tree 0: 'left_child' has nodes that do not exist, of 2 nodes and 3"),
        ("left_child=1 -1", "left_child=1 -4", "'left_child' has nodes that do not exist"),
        ("left_child=1 -1", "left_child=0 -1", "'left_child' goes back to a node before its own"),
        ("right_child=-2 -3", "right_child=-2", "'right_child' has 1 numbers, expected 2"),
        ("right_child=-2 -3", "right_child=", "'right_child' has 0 numbers, expected 2"),
        ("split_feature=1 0", "split_feature=2 0", "above 'max_feature_idx', which is 1"),
        ("threshold=0.5 1e-3", "threshold=0.5 x", "'threshold' has something else than numbers: 0.5 x"),
        ("leaf_value=0.1 0.2 0.3", "leaf_value=0.1 0.2", "'leaf_value' has 2 numbers, expected 3"),
        ("num_leaves=3", "num_leaves=99999999999999999999", "'num_leaves' has something else than numbers"),
        ("leaf_value=0.1 0.2 0.3\n", "", "'leaf_value' is missing"),
    ],
)
def test_damaged_trees_are_refused(old, new, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        readable_text(TEXT.replace(old, new, 1))


CATEGORIES = "num_cat=1\ndecision_type=1 2\ncat_boundaries=0 2\ncat_threshold=5 7\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("threshold=0 ", "threshold=1 ", "'threshold' has categories that do not exist, of 1"),
        ("cat_boundaries=0 2", "cat_boundaries=0 9", "'cat_boundaries' has numbers that do not exist, of 2"),
        ("cat_boundaries=0 2", "cat_boundaries=3 2", "'cat_boundaries' has numbers that do not exist, of 2"),
        ("cat_boundaries=0 2", "cat_boundaries=0", "'cat_boundaries' has 1 numbers, expected 2"),
        ("num_cat=1", "num_cat=7", "'cat_boundaries' has 2 numbers, expected 8"),
        ("num_cat=1", "num_cat=x", "'num_cat' has something else than numbers: x"),
    ],
)
def test_damaged_categories_are_refused(old, new, message):
    text = TEXT.replace("threshold=0.5 1e-3\n", f"threshold=0 1e-3\n{CATEGORIES}")
    assert readable_text(text)[1] == 2
    with pytest.raises(ValueError, match=re.escape(message)):
        readable_text(text.replace(old, new, 1))


def test_file_without_trees_has_none():
    text = HEAD.replace("tree_sizes=120 120\n", "") + "end of trees\n"
    assert readable_text(text) == (text, 0)


@given(st.data())
def test_children_never_lead_in_a_circle(data):
    nodes = data.draw(st.integers(1, 6))
    children = st.lists(st.integers(-nodes - 3, nodes + 2), min_size=nodes, max_size=nodes)
    left, right = data.draw(children), data.draw(children)
    zeros = " ".join("0" * nodes)
    tree = (
        f"Tree=0\nnum_leaves={nodes + 1}\nsplit_feature={zeros}\nthreshold={zeros}\nleaf_value={zeros} 0\n"
        f"left_child={' '.join(map(str, left))}\nright_child={' '.join(map(str, right))}\nend of trees\n"
    )
    try:
        readable_text(tree)
    except ValueError:
        return
    for side in (left, right):
        node, steps = 0, 0
        while node >= 0:
            node, steps = side[node], steps + 1
            assert steps <= nodes
        assert -node <= nodes + 1
