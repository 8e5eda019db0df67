"""Nodes of forests that would lead a library out of its memory, or in a circle."""

import contextlib
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.backend.trees.tree_nodes import check_children, check_xgboost


def make_model() -> dict[str, Any]:
    """Return what matters of a file of XGBoost: two trees, one with categories."""
    trees = [
        {
            "categories": [0, 3] if number else [],
            "categories_nodes": [1] if number else [],
            "categories_segments": [0] if number else [],
            "categories_sizes": [2] if number else [],
            "id": number,
            "left_children": [1, 3, -1, -1, -1],
            "parents": [2147483647, 0, 0, 1, 1],
            "right_children": [2, 4, -1, -1, -1],
            "split_indices": [0, 1, 0, 0, 2147483647],
            "split_type": [0, number, 0, 0, 0],
            "tree_param": {"num_nodes": "5", "size_leaf_vector": "1"},
        }
        for number in range(2)
    ]
    model = {"iteration_indptr": [0, 1, 2], "tree_info": [0, 0], "trees": trees}
    sizes = {"num_class": "0", "num_feature": "2", "num_target": "1"}
    return {"learner": {"gradient_booster": {"model": model}, "learner_model_param": sizes}}


def ubjson(value: Any) -> bytes:
    """Return a value as XGBoost writes it."""
    if isinstance(value, dict):
        return b"{" + b"".join(_text(name) + ubjson(each) for name, each in value.items()) + b"}"
    if isinstance(value, str):
        return b"S" + _text(value)
    if isinstance(value, int):
        return b"i" + struct.pack(">b", value) if -128 <= value < 128 else b"l" + struct.pack(">i", value)
    count = b"#L" + struct.pack(">q", len(value))
    if value and not isinstance(value[0], int):
        return b"[" + count + b"".join(map(ubjson, value))
    return b"[$l" + count + np.array(value, ">i4").tobytes()


def _text(text: str) -> bytes:
    return b"L" + struct.pack(">q", len(text)) + text.encode()


FORMS = {"json": lambda model: json.dumps(model).encode(), "ubjson": ubjson}


@pytest.mark.parametrize("form", FORMS)
def test_whole_trees_pass(form: str) -> None:
    check_xgboost(FORMS[form](make_model()), is_json=form == "json")
    check_xgboost(b"{}", is_json=form == "json")  # a linear model has no trees


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("field", "place", "value", "message"),
    [
        ("left_children", 1, 9, "tree 1: a node has a child that does not exist, of 5 nodes"),
        ("right_children", 0, -7, "a node has a child that does not exist"),
        ("right_children", 0, -1, "a node has a child that does not exist"),
        ("left_children", 1, 0, "a node is the child of several nodes, or of one below it"),
        ("left_children", 0, 4, "a node is the child of several nodes"),
        ("split_indices", 0, 2, "a node asks for a feature that does not exist, of 2"),
        ("split_indices", 1, -5, "a node asks for a feature that does not exist"),
        ("parents", 3, 1000, "a node has a parent that does not exist, of 5 nodes"),
        ("categories", 0, -1, "a category is no number from 0"),
        ("categories", 0, 1 << 30, "a category is no number from 0"),
        ("categories_sizes", 0, 3, "a node asks for categories that do not exist, of 2"),
        ("categories_segments", 0, 1 << 30, "a node asks for categories that do not exist"),
        ("categories_nodes", 0, 77, "it has categories of a node that does not exist"),
        ("split_type", 0, 1, "a node asks for categories, and has none"),
    ],
)
def test_damaged_trees_are_refused(form: str, field: str, place: int, value: int, message: str) -> None:
    model = make_model()
    model["learner"]["gradient_booster"]["model"]["trees"][1][field][place] = value
    with pytest.raises(ValueError, match=message):
        check_xgboost(FORMS[form](model), is_json=form == "json")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tree_info", [0, 7], "'tree_info' has an output that does not exist, of 1"),
        ("tree_info", [-1, 0], "'tree_info' has an output"),
        ("iteration_indptr", [0, 9, 2], "'iteration_indptr' has rounds that do not exist, of 2 trees"),
        ("iteration_indptr", [0, 2, 1], "'iteration_indptr' has rounds that do not exist"),
    ],
)
def test_damaged_lists_of_trees_are_refused(form: str, field: str, value: list[int], message: str) -> None:
    model = make_model()
    model["learner"]["gradient_booster"]["model"][field] = value
    with pytest.raises(ValueError, match=message):
        check_xgboost(FORMS[form](model), is_json=form == "json")


@pytest.mark.parametrize("form", FORMS)
def test_trees_in_the_wrong_place_are_refused(form: str) -> None:
    model = make_model()
    trees = model["learner"]["gradient_booster"]["model"]["trees"]
    trees[1]["id"] = 0
    with pytest.raises(ValueError, match="'id' of its 2 trees are not the numbers from 0"):
        check_xgboost(FORMS[form](model), is_json=form == "json")
    trees[1]["id"] = 1
    trees[1]["tree_param"]["size_leaf_vector"] = "3"
    with pytest.raises(ValueError, match="tree 1: its leaves have 3 values, of 1 outputs"):
        check_xgboost(FORMS[form](model), is_json=form == "json")
    del trees[1]["split_indices"]
    with pytest.raises(ValueError, match="it has 2 trees, and 'split_indices' of 1"):
        check_xgboost(FORMS[form](model), is_json=form == "json")


@given(st.binary(max_size=80))
def test_damaged_bytes_are_refused_or_pass(data: bytes) -> None:
    for is_json, content in ((True, json.dumps(make_model()).encode()), (False, ubjson(make_model()))):
        at = len(data) * 7 % len(content)
        with contextlib.suppress(ValueError):
            check_xgboost(content[:at] + data + content[at + len(data) :], is_json=is_json)


@given(st.data())
def test_no_path_from_the_root_is_endless(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    children = st.lists(st.integers(-2, count), min_size=count, max_size=count)
    left, right = np.array(data.draw(children)), np.array(data.draw(children))
    try:
        check_children(left, right)
    except ValueError:
        return
    level, depth = [0], 0
    while level:
        level = [int(child[node]) for node in level if left[node] != -1 for child in (left, right)]
        depth += 1
        assert depth <= count
