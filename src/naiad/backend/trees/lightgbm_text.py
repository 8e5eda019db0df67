"""LightGBM's text files, checked before LightGBM reads them: it ends the process on some, and computes without end.

It reads the trees of a file in parallel where `tree_sizes` says where each begins; an error there ends the process.
Without that line it reads them one after the other, as fast, and reports errors; but it stops at the first line that
is no tree, so the trees are counted here. It follows the numbers of children without looking at them.
"""

import itertools
import re
from collections.abc import Iterator, Mapping

import numpy as np

from naiad.core.errors import excerpt
from naiad.core.tensor import Array

_SIZES = re.compile(r"^tree_sizes=(.*)\n", re.MULTILINE)
_TREE = re.compile(r"^Tree=", re.MULTILINE)
_END = "end of trees"
_IS_CATEGORICAL = 1
"""Bit of a node's `decision_type`."""


def readable_text(text: str) -> tuple[str, int]:
    """Return the text that LightGBM can read with errors instead of an end of the process, and its number of trees.

    Raises ValueError for trees that are missing, and for nodes that do not make a tree.
    """
    # LightGBM ends the process on a file without its end.
    if _END not in text:
        raise ValueError(f"is truncated: the line '{_END}' is missing; copy the whole file")
    sizes = _SIZES.search(text)
    features = re.search(r"^max_feature_idx=(\d+)\s*$", text, re.MULTILINE)
    found = 0
    for tree in _trees(text):
        try:
            _check_tree(tree, int(features[1]) if features else None)
        except ValueError as error:
            raise ValueError(f"is damaged: tree {found}: {error}; copy the file again") from None
        found += 1
    count = len(sizes[1].split()) if sizes else found
    if found != count:
        raise ValueError(f"is damaged: it has {found} trees, and 'tree_sizes' lists {count}; copy the file again")
    return _SIZES.sub("", text, count=1), count


def _trees(text: str) -> Iterator[Mapping[str, str]]:
    """Yield the fields of each tree."""
    last = text.index(_END)
    starts = [match.start() for match in _TREE.finditer(text, 0, last)]
    for start, end in itertools.pairwise([*starts, last]):
        lines = text[start:end].splitlines()
        yield {name: value for name, _, value in (line.partition("=") for line in lines)}


def _check_tree(tree: Mapping[str, str], last_feature: int | None) -> None:
    """Raise ValueError unless each node has children and a feature that exist; a child comes after its parent."""
    leaves = int(_numbers(tree, "num_leaves", 1)[0])
    _numbers(tree, "leaf_value", leaves, np.float64)
    nodes = leaves - 1
    if nodes < 1:
        return
    for name in ("left_child", "right_child"):
        children = _numbers(tree, name, nodes)
        if (children >= nodes).any() or (children < -leaves).any():
            raise ValueError(f"'{name}' has nodes that do not exist, of {nodes} nodes and {leaves} leaves")
        if ((children >= 0) & (children <= np.arange(nodes))).any():
            raise ValueError(f"'{name}' goes back to a node before its own")
    features = _numbers(tree, "split_feature", nodes)
    if last_feature is not None and ((features < 0) | (features > last_feature)).any():
        raise ValueError(f"'split_feature' has features above 'max_feature_idx', which is {last_feature}")
    thresholds = _numbers(tree, "threshold", nodes, np.float64)
    if "num_cat" in tree and (categories := int(_numbers(tree, "num_cat", 1)[0])):
        _check_categories(tree, thresholds, categories)


def _check_categories(tree: Mapping[str, str], thresholds: Array, count: int) -> None:
    """Raise ValueError unless the categories exist to which the thresholds of categorical nodes lead."""
    bounds = _numbers(tree, "cat_boundaries", count + 1)
    words = len(tree.get("cat_threshold", "").split())
    if bounds[0] < 0 or (np.diff(bounds) < 0).any() or bounds[-1] > words:
        raise ValueError(f"'cat_boundaries' has numbers that do not exist, of {words} in 'cat_threshold'")
    sets = thresholds[_numbers(tree, "decision_type", len(thresholds)) & _IS_CATEGORICAL == 1]
    if not ((sets >= 0) & (sets < count)).all():
        raise ValueError(f"'threshold' has categories that do not exist, of {count}")


def _numbers(tree: Mapping[str, str], name: str, count: int, dtype: type = np.int64) -> Array:
    if name not in tree:
        raise ValueError(f"'{name}' is missing")
    try:
        found: Array = np.array(tree[name].split(), dtype)
    except (ValueError, OverflowError):
        raise ValueError(f"'{name}' has something else than numbers: {excerpt(tree[name])}") from None
    if len(found) != count:
        raise ValueError(f"'{name}' has {len(found)} numbers, expected {count}")
    return found
