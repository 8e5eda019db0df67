"""Operators in an exported graph that ONNX lacks."""

import math

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from naiad.tools.optimize.converters.onnx.operators import check_loads, replace_missing

ROW = np.array([0.1, 0.5, 2.0, 30.0], np.float32)


def graph(*operators, kind=TensorProto.FLOAT):
    names = ["x", *(f"t{place}" for place in range(len(operators) - 1)), "y"]
    nodes = [helper.make_node(each, [names[place]], [names[place + 1]]) for place, each in enumerate(operators)]
    tensors = [helper.make_tensor_value_info(name, kind, [4]) for name in ("x", "y")]
    made = helper.make_graph(nodes, "g", tensors[:1], tensors[1:])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.parametrize(
    ("operator", "function"),
    [
        ("Erfc", math.erfc),
        ("Expm1", math.expm1),
        ("Log1p", math.log1p),
        ("Rsqrt", lambda value: value**-0.5),
        ("Square", lambda value: value * value),
    ],
)
def test_missing_operator_is_written_as_others(operator, function):
    made = graph("Neg", "Neg", operator)
    replace_missing(made)
    onnx.checker.check_model(made)
    (found,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": ROW})
    assert found == pytest.approx([function(float(each)) for each in ROW], rel=1e-5, abs=1e-6)


def test_operators_without_counterpart_are_all_named():
    with pytest.raises(ValueError, match="operator Erfinv, Bincount has no counterpart in ONNX"):
        replace_missing(graph("Erfinv", "Relu", "Bincount", "Erfinv"))


def test_graph_that_does_not_load_is_an_error(tmp_path):
    onnx.save(graph("Relu"), tmp_path / "good.onnx")
    check_loads(str(tmp_path / "good.onnx"))
    onnx.save(graph("Erfc"), tmp_path / "bad.onnx")
    with pytest.raises(ValueError, match="Erfc"):
        check_loads(str(tmp_path / "bad.onnx"))
