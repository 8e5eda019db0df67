"""The classifier of digits as an ONNX file."""

import onnx
from onnx import TensorProto, helper, numpy_helper

from support.digits_classifier import digits_classifier


def onnx_digits(rows: int | str = "N") -> bytes:
    """Return a model from IMAGE [rows, 64] to PROBABILITIES [rows, 10]."""
    weights = digits_classifier()
    arrays = {"w": weights.hidden_weights, "b": weights.hidden_bias, "v": weights.weights, "c": weights.bias}
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["IMAGE", "w", "b"], ["hidden"]),
            helper.make_node("Relu", ["hidden"], ["active"]),
            helper.make_node("Gemm", ["active", "v", "c"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["PROBABILITIES"]),
        ],
        "digits",
        [helper.make_tensor_value_info("IMAGE", TensorProto.FLOAT, [rows, 64])],
        [helper.make_tensor_value_info("PROBABILITIES", TensorProto.FLOAT, [rows, 10])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())
