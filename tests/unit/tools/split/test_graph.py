"""Graphs: every node in one stage, all crossing values declared, constants copied."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from naiad.core.errors import InferError
from naiad.tools.split.node_sequence import SplitGraph, load_graph
from naiad.tools.split.split_source import StageModel

FLOAT = helper.make_tensor_type_proto(TensorProto.FLOAT, ["N"])


def value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"])


def make(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], weights: Sequence[str] = ()) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(np.ones(1, np.float32), name) for name in weights]
    graph = helper.make_graph(list(nodes), "g", [value("x")], [value(name) for name in outputs], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def cut(graph: SplitGraph, cuts: Sequence[int]) -> list[StageModel]:
    crossing = graph.crossing()
    return graph.stages(cuts, {name: FLOAT for at in cuts for name in crossing[at]}, "m")


@st.composite
def models(draw: st.DrawFn) -> tuple[onnx.ModelProto, list[int]]:
    """A random graph of additions, and places to cut it."""
    count = draw(st.integers(3, 12))
    names = ["x", "w0", "w1"]
    nodes = []
    for index in range(count):
        inputs = [draw(st.sampled_from(names)), draw(st.sampled_from(names))]
        nodes.append(helper.make_node("Add", inputs, [f"v{index}"]))
        names.append(f"v{index}")
    nodes.append(helper.make_node("Sum", ["x", *names[3:]], ["y"]))
    return make(nodes, ["y"], ["w0", "w1"]), draw(st.lists(st.integers(1, count), max_size=3))


@given(models())
def test_every_node_is_in_one_stage(drawn: tuple[onnx.ModelProto, list[int]]) -> None:
    model, positions = drawn
    graph = SplitGraph(model)
    cuts = sorted({each for each in positions if each < len(graph.nodes)})
    stages = cut(graph, cuts)
    own = [node.proto.output[0] for node in graph.nodes]
    placed = [node.output[0] for stage in stages for node in stage.model.graph.node if node.output[0] in own]
    assert placed == own
    known = {"x"}
    for stage in stages:
        onnx.checker.check_model(stage.model)
        assert known.issuperset(stage.inputs)
        known.update(stage.outputs)
    assert "y" in known
    declared = {name for at in cuts for name in graph.crossing()[at]}
    assert declared == {name for stage in stages for name in stage.outputs if name != "y"}


def test_shared_constants_are_in_both_stages() -> None:
    nodes = [
        helper.make_node("Neg", ["w"], ["negative"]),
        helper.make_node("Mul", ["x", "negative"], ["a"]),
        helper.make_node("Mul", ["a", "negative"], ["y"]),
    ]
    first, second = cut(SplitGraph(make(nodes, ["y"], ["w"])), [1])
    assert (first.inputs, second.inputs) == (("x",), ("a",))
    for stage in (first, second):
        assert [node.op_type for node in stage.model.graph.node] == ["Neg", "Mul"]
        assert stage.parameter_bytes > 0


def test_subgraphs_capture_outer_values() -> None:
    then = helper.make_graph([helper.make_node("Add", ["a", "w"], ["t"])], "then", [], [value("t")])
    otherwise = helper.make_graph([helper.make_node("Mul", ["x", "x"], ["e"])], "else", [], [value("e")])
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "w"], ["large"]),
        helper.make_node("If", ["large"], ["y"], then_branch=then, else_branch=otherwise),
    ]
    graph = SplitGraph(make(nodes, ["y"], ["w"]))
    first, second = cut(graph, [3])
    assert set(second.inputs) == {"a", "large", "x"}
    assert set(first.outputs) == {"a", "large"}
    assert [tensor.name for tensor in second.model.graph.initializer] == ["w"]


def test_unneeded_nodes_are_left_out() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["dead"]), helper.make_node("Neg", ["x"], ["y"])]
    assert [node.outputs for node in SplitGraph(make(nodes, ["y"])).nodes] == [("y",)]


@pytest.mark.parametrize(
    ("nodes", "outputs", "reason"),
    [
        ([helper.make_node("Neg", ["x"], ["y"])], ["y", "x"], "output 'x' is an input"),
        ([helper.make_node("Neg", ["w"], ["y"])], ["y"], "do not depend on its inputs"),
    ],
)
def test_graph_for_no_ensemble_is_rejected(nodes: list[onnx.NodeProto], outputs: list[str], reason: str) -> None:
    with pytest.raises(InferError, match=reason):
        SplitGraph(make(nodes, outputs, ["w"]))


def test_other_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not a model at all")
    with pytest.raises(InferError, match="not a valid ONNX model"):
        load_graph(path)
