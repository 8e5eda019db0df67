"""Outputs of a classifier's graph, as the source has them."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from naiad.tools.optimize.converters.conversion_job import JobTensor
from naiad.tools.optimize.converters.onnx.graph_outputs import fit_outputs


def classifier():
    """Return a graph from x [N, 2] to label [N] and scores [N, 2], which equals x."""
    nodes = [helper.make_node("ArgMax", ["x"], ["label"], axis=1, keepdims=0), helper.make_node("Abs", ["x"], ["y"])]
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.INT64, ["N"]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2]),
    ]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


X = np.array([[0.25, 0.75], [1, 0]], np.float32)
LABEL = JobTensor("predict", "INT64", (-1, 1))
SCORES = JobTensor("label", "FP64", (-1, 2))


def answers(*wanted):
    graph = classifier()
    fit_outputs(graph, wanted)
    onnx.checker.check_model(graph)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, {"x": X}), strict=True))


def test_score_of_second_class():
    found = answers(JobTensor("output__0", "FP32", (-1, 1)))
    assert {name: value.tolist() for name, value in found.items()} == {"output__0": [[0.75], [0.0]]}


@pytest.mark.parametrize("wanted", [(LABEL, SCORES), (SCORES, LABEL)])
def test_names_datatypes_and_shapes_are_the_sources(wanted):
    found = answers(*wanted)
    assert list(found) == [each.name for each in wanted]
    assert found["predict"].tolist() == [[1], [0]]
    assert found["label"].dtype == np.float64
    np.testing.assert_array_equal(found["label"], X)


def test_outputs_without_counterpart_stay():
    assert list(answers(LABEL, SCORES, LABEL)) == ["label", "y"]
    assert list(answers()) == ["label", "y"]
