"""What a split promises of its stages: the same answers, batches, and a repository that a server accepts."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from naiad.core.errors import InferError
from naiad.repository.model_check import check_path
from naiad.tools.split.split_source import difference
from naiad.tools.split.split_stages import Split, SplitOptions, split_model

WEIGHT = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32) / 4


def matmul(source: str, target: str) -> NodeProto:
    return helper.make_node("MatMul", [source, "w"], [target])


def split(folder: Path, nodes: Sequence[NodeProto], dims: Sequence[object] = ("b", 16), kind: int = 1) -> Split:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 16])],
        [helper.make_tensor_value_info("y", kind, list(dims))],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    return split_model(folder / "m.onnx", folder / "models", SplitOptions(2, "bytes", ()))


def test_rows_that_mix_are_no_batch(tmp_path: Path) -> None:
    """All values that cross have a row for each row of the input."""
    mixed = helper.make_node("CumSum", ["a", "axis"], ["sum"], reverse=1)
    axis = helper.make_node("Constant", [], ["axis"], value_int=0)
    assert not split(tmp_path, [axis, matmul("x", "a"), mixed, matmul("sum", "y")]).can_batch


def test_rows_for_themselves_are_a_batch(tmp_path: Path) -> None:
    assert split(tmp_path, [matmul("x", "a"), helper.make_node("Relu", ["a"], ["r"]), matmul("r", "y")]).can_batch


def test_one_number_a_row_without_batches(tmp_path: Path) -> None:
    nodes = [
        matmul("x", "a"),
        helper.make_node("ReduceSum", ["a"], ["sum"], keepdims=0),
        matmul("a", "c"),
        helper.make_node("Mul", ["c", "sum"], ["d"]),
        helper.make_node("Sin", ["d"], ["e"]),
        helper.make_node("ArgMax", ["e"], ["y"], axis=1, keepdims=0),
    ]
    assert not split(tmp_path, nodes, ["b"], TensorProto.INT64).can_batch
    reports = check_path(tmp_path / "models", known_backends=("onnxruntime",))
    assert [str(each) for report in reports for each in report.problems] == []
    ensemble = next(report.config for report in reports if report.name == "m")
    assert [list(each.dims) for each in ensemble.output] == [[-1]]


def test_answers_that_show_nothing_prove_nothing(tmp_path: Path) -> None:
    negative = [helper.make_node("Abs", ["x"], ["p"]), helper.make_node("Neg", ["p"], ["n"])]
    with pytest.raises(InferError, match=r"output 'y' has only NaN and infinity for these inputs.*--data"):
        split(tmp_path, [*negative, helper.make_node("Log", ["n"], ["l"]), matmul("l", "y")])
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("one", "other"), [(np.inf, -np.inf), (np.inf, np.nan), (np.nan, 1.0), (1.0, 1.001)], ids=str
)
def test_other_values_are_a_difference(one: float, other: float) -> None:
    whole, staged = (np.array([1.0, each], np.float32) for each in (one, other))
    assert difference(whole, whole) == (0, 0, True)
    assert not difference(whole, staged)[2]
