"""Nodes of forests, checked before a library follows them.

XGBoost and treelite go from a node to the children that a file names, and read the feature that it names, without a
look whether they exist: a damaged file ends the process, or the computation has no end. Here a node is reached from
one other node at most, and the root from none, so that no path from the root leads in a circle.
"""

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from naiad.core.tensor import Array

_LEAF = -1
"""The left child of a node without children."""
_MAX_CATEGORY = 1 << 24
"""XGBoost: categories are whole numbers that FP32 has exactly."""
_REQUIRED = ("left_children", "right_children", "split_indices")
_CATEGORIES = ("categories", "categories_nodes", "categories_segments", "categories_sizes", "split_type")
_NO_PARENT = (-1, (1 << 31) - 1)
"""What the root has as parent."""
_UBJSON_TYPES = {b"i": ">i1", b"U": ">u1", b"I": ">i2", b"l": ">i4", b"L": ">i8"}
"""Numbers of UBJSON are big-endian."""


def check_children(left: Array, right: Array) -> Array:
    """Return the nodes with children. Raises ValueError unless the nodes make a tree whose root is the first one.

    A node without children has -1 in `left`.
    """
    count = len(left)
    if len(right) != count:
        raise ValueError(f"it has {count} left children and {len(right)} right ones")
    inner = np.flatnonzero(left != _LEAF)
    children = np.concatenate((left[inner], right[inner]))
    if ((children < 0) | (children >= count)).any():
        raise ValueError(f"a node has a child that does not exist, of {count} nodes")
    reached = np.bincount(children, minlength=count)
    if count and (reached[0] or (reached > 1).any()):
        raise ValueError("a node is the child of several nodes, or of one below it")
    return inner


def check_features(features: Array, inner: Array, feature_count: int) -> None:
    """Raise ValueError for a node with children whose feature does not exist."""
    used = features[inner]
    if ((used < 0) | (used >= feature_count)).any():
        raise ValueError(f"a node asks for a feature that does not exist, of {feature_count}")


# --- XGBoost --------------------------------------------------------------------------------------------------------


def check_xgboost(data: bytes, *, is_json: bool) -> None:
    """Check the trees of an XGBoost file in JSON or UBJSON. Raises ValueError with tree and reason.

    A file without trees that can be found here is left to XGBoost.
    """
    file = _XGBoostFile(data, is_json=is_json)
    fields = {name: list(file.arrays(name)) for name in (*_REQUIRED, *_CATEGORIES, "parents")}
    count = len(fields["left_children"])
    for name, arrays in fields.items():
        if len(arrays) != count and (arrays or name in _REQUIRED):
            raise ValueError(f"is damaged: it has {count} trees, and '{name}' of {len(arrays)}")
    ids = file.ids()
    if ids and sorted(ids) != list(range(count)):
        raise ValueError(f"is damaged: 'id' of its {count} trees are not the numbers from 0")
    outputs = max(file.number("num_class"), file.number("num_target"), 1)
    vectors = _Vectors(file, outputs)
    for number in range(count):
        tree = {name: arrays[number] for name, arrays in fields.items() if arrays}
        try:
            _check_xgboost_tree(tree, file.number("num_feature"))
            vectors.check(number, tree)
        except ValueError as error:
            raise ValueError(f"is damaged: tree {number}: {error}") from None
    for groups in file.arrays("tree_info"):
        if ((groups < 0) | (groups >= outputs)).any():
            raise ValueError(f"is damaged: 'tree_info' has an output that does not exist, of {outputs}")
    for rounds in file.arrays("iteration_indptr"):
        if ((rounds < 0) | (rounds > count)).any() or (np.diff(rounds) < 0).any():
            raise ValueError(f"is damaged: 'iteration_indptr' has rounds that do not exist, of {count} trees")


def _check_xgboost_tree(tree: Mapping[str, Array], feature_count: int) -> None:
    left, features = tree["left_children"], tree["split_indices"]
    count = len(left)
    inner = check_children(left, tree["right_children"])
    if len(features) != count:
        raise ValueError(f"it has {count} nodes, and features of {len(features)}")
    if feature_count:
        check_features(features, inner, feature_count)
    parents = tree.get("parents", np.zeros(0, np.int64))
    if (((parents < 0) | (parents >= count)) & ~np.isin(parents, _NO_PARENT)).any():
        raise ValueError(f"a node has a parent that does not exist, of {count} nodes")
    if all(name in tree for name in _CATEGORIES):
        _check_categories(tree, inner)


def _check_categories(tree: Mapping[str, Array], inner: Array) -> None:
    categories, nodes, begins, lengths, kinds = (tree[name] for name in _CATEGORIES)
    count = len(tree["left_children"])
    if not len(nodes) == len(begins) == len(lengths):
        raise ValueError("its lists of categories have different lengths")
    if ((nodes < 0) | (nodes >= count)).any():
        raise ValueError(f"it has categories of a node that does not exist, of {count} nodes")
    if ((begins < 0) | (lengths < 0) | (begins > len(categories) - lengths)).any():
        raise ValueError(f"a node asks for categories that do not exist, of {len(categories)}")
    if ((categories < 0) | (categories >= _MAX_CATEGORY)).any():
        raise ValueError(f"a category is no number from 0 to {_MAX_CATEGORY - 1}")
    if len(kinds) != count or not np.isin(inner[kinds[inner] == 1], nodes).all():
        raise ValueError("a node asks for categories, and has none")


class _Vectors:
    """Checks the values of leaves that have one for each output."""

    def __init__(self, file: "_XGBoostFile", outputs: int) -> None:
        self._outputs = outputs
        self._widths = file.numbers("size_leaf_vector")
        self._has_vectors = any(width > 1 for width in self._widths)
        self._values = file.lengths("base_weights") if self._has_vectors else ()
        self._leaves = file.lengths("leaf_weights") if self._has_vectors else ()

    def check(self, number: int, tree: Mapping[str, Array]) -> None:
        """Raise ValueError if a leaf of a tree has not as many values as outputs."""
        if number >= len(self._widths) or self._widths[number] in (0, 1):
            return
        width, left, right = self._widths[number], tree["left_children"], tree["right_children"]
        leaves = left == _LEAF
        if width != self._outputs or self._values[number : number + 1] != [width * len(left)]:
            raise ValueError(f"its leaves have {width} values, of {self._outputs} outputs")
        if not self._leaves:
            return  # before XGBoost 3.1
        # The right child of a leaf is its position among the leaves.
        count, places = int(leaves.sum()), right[leaves]
        if self._leaves[number : number + 1] != [width * count] or ((places < -1) | (places >= count)).any():
            raise ValueError(f"a leaf has values that do not exist, of {count} leaves")


class _XGBoostFile:
    """The lists and numbers of a file by their names, found without the rest of it."""

    def __init__(self, data: bytes, *, is_json: bool) -> None:
        self._data = data
        self._is_json = is_json

    def arrays(self, name: str) -> Iterator[Array]:
        """Yield each list of whole numbers of this name. Raises ValueError for something else."""
        return _json_arrays(self._data, name) if self._is_json else _ubjson_arrays(self._data, name)

    def lengths(self, name: str) -> Sequence[int]:
        """Return how many numbers each list of this name has."""
        if self._is_json:
            return [match[1].count(b",") + bool(match[1].strip()) for match in _json_lists(self._data, name)]
        return [count for _, _, count in _ubjson_lists(self._data, name)]

    def numbers(self, name: str, at: int = 0) -> Sequence[int]:
        """Return each number of this name, which the file has as text."""
        pattern = rb'"%b"\s*:\s*"(\d{1,18})"' if self._is_json else rb"%bSL.{8}(\d{1,18})"
        found = re.compile(pattern % name.encode(), re.DOTALL).finditer(self._data, at)
        return [int(match[1]) for match in found]

    def ids(self) -> Sequence[int]:
        """Return the number that each tree has: XGBoost puts it into this place."""
        if self._is_json:
            return [int(match[1]) for match in re.finditer(rb'"id"\s*:\s*(\d{1,18})', self._data)]
        places = re.finditer(re.escape(_ubjson_key("id")), self._data)
        return [int(_mixed(self._data, place.end(), "id", 1)[0]) for place in places]

    def number(self, name: str) -> int:
        """Return a number of the whole model; 0 if the file does not have it."""
        return next(iter(self.numbers(name, max(self._data.rfind(b"learner_model_param"), 0))), 0)


def _json_lists(data: bytes, name: str) -> Iterator[re.Match[bytes]]:
    return re.finditer(rb'"%b"\s*:\s*\[([^\]]*)\]' % name.encode(), data)


def _json_arrays(data: bytes, name: str) -> Iterator[Array]:
    for match in _json_lists(data, name):
        text = match[1].strip()
        try:
            yield np.array(text.split(b",") if text else [], np.int64)
        except (ValueError, OverflowError):
            raise ValueError(f"is damaged: '{name}' has something else than numbers") from None


def _ubjson_key(name: str) -> bytes:
    return b"L" + struct.pack(">q", len(name)) + name.encode()


def _ubjson_lists(data: bytes, name: str) -> Iterator[tuple[int, bytes, int]]:
    """Yield the place, the type and the length of each list; the type is empty if each number has its own."""
    key = _ubjson_key(name) + b"["
    at = data.find(key)
    while at >= 0:
        at += len(key)
        kind = data[at + 1 : at + 2] if data[at : at + 1] == b"$" else b""
        at += 2 if kind else 0
        if data[at : at + 2] != b"#L" or len(data) < at + 10:
            raise ValueError(f"is damaged: '{name}' is no list")
        (count,) = struct.unpack_from(">q", data, at + 2)
        yield at + 10, kind, count
        at = data.find(key, at)


def _ubjson_arrays(data: bytes, name: str) -> Iterator[Array]:
    for at, kind, count in _ubjson_lists(data, name):
        if kind and kind not in _UBJSON_TYPES:
            raise ValueError(f"is damaged: '{name}' has something else than whole numbers")
        yield _typed(data, at, name, kind, count) if kind else _mixed(data, at, name, count)


def _typed(data: bytes, at: int, name: str, kind: bytes, count: int) -> Array:
    dtype = np.dtype(_UBJSON_TYPES[kind])
    if not 0 <= count <= (len(data) - at) // dtype.itemsize:
        raise ValueError(f"is damaged: '{name}' has {count} numbers, more than the file")
    return np.frombuffer(data, dtype, count, at).astype(np.int64)


def _mixed(data: bytes, at: int, name: str, count: int) -> Array:
    """Return numbers that have a type each."""
    found: list[int] = []
    while len(found) < count:
        dtype = np.dtype(_UBJSON_TYPES.get(data[at : at + 1], "V1"))
        if dtype.kind == "V" or at + 1 + dtype.itemsize > len(data):
            raise ValueError(f"is damaged: '{name}' has something else than whole numbers")
        found.append(int(np.frombuffer(data, dtype, 1, at + 1)[0]))
        at += 1 + dtype.itemsize
    return np.array(found, np.int64)


# --- treelite -------------------------------------------------------------------------------------------------------


def check_treelite(model: Any) -> None:
    """Check the trees of a loaded model of treelite, which has not followed them yet. Raises ValueError."""
    header = model.get_header_accessor()
    targets, shape = int(header.get_field("num_target")[0]), header.get_field("leaf_vector_shape")
    classes = header.get_field("num_class")
    for name, most in (("target_id", targets), ("class_id", int(max(classes, default=1)))):
        numbers = header.get_field(name)
        # -1: all of them.
        if len(numbers) != model.num_tree or ((numbers < -1) | (numbers >= most)).any():
            raise ValueError(f"is damaged: '{name}' has a number that does not exist, of {most}")
    for number in range(model.num_tree):
        tree = model.get_tree_accessor(number)
        try:
            _check_treelite_tree(tree.get_field, model.num_feature, int(np.prod(shape)))
        except ValueError as error:
            raise ValueError(f"is damaged: tree {number}: {error}") from None


def _check_treelite_tree(field: Any, feature_count: int, width: int) -> None:
    left = field("cleft").astype(np.int64)
    inner = check_children(left, field("cright").astype(np.int64))
    check_features(field("split_index").astype(np.int64), inner, feature_count)
    vectors: Sequence[Array] = [field(f"leaf_vector_{end}").astype(np.int64) for end in ("begin", "end")]
    for name, (begins, ends) in {
        "leaf_vector": vectors,
        "category_list": [field(f"category_list_{end}").astype(np.int64) for end in ("begin", "end")],
    }.items():
        if not len(begins) == len(ends) == len(left) or ((begins > ends) | (ends > len(field(name)))).any():
            raise ValueError(f"a node asks for numbers of '{name}' that do not exist")
    lengths = (vectors[1] - vectors[0])[left == _LEAF]
    if width > 1 and ((lengths != 0) & (lengths != width)).any():
        raise ValueError(f"a leaf has another number of values than {width}")
