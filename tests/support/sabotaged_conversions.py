"""Models with faithful and sabotaged conversions, in ONNX."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Edit = Callable[[onnx.ModelProto], None]


@dataclass(frozen=True)
class Model:
    """A graph, and samples without the batch dimension."""

    proto: onnx.ModelProto
    samples: list[dict[str, np.ndarray[Any, Any]]] = field(default_factory=list)

    def edited(self, edit: Edit) -> onnx.ModelProto:
        """Return a changed copy."""
        copy = onnx.ModelProto()
        copy.CopyFrom(self.proto)
        edit(copy)
        onnx.checker.check_model(copy)
        return copy


def vision() -> Model:
    """Return a network of two convolutions with batch normalisation: IMAGE to PROBABILITIES, and FEATURES, COLORS."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray[Any, Any]:
        return random.normal(size=shape) / np.sqrt(np.prod(shape[1:]))

    arrays = {
        "w0": normal(8, 3, 3, 3) * 2,
        "w1": normal(8, 8, 3, 3) * 2,
        "dense": normal(8, 10) * 4,
        "mean_colors": normal(8, 10) * 4,
        "shift": np.full((1, 10), 0.5),
    }
    for layer in "01":
        arrays |= {f"{name}{layer}": random.uniform(0.5, 1.5, 8) for name in ("scale", "bias", "mean", "var")}
    nodes = []
    name = "IMAGE"
    for layer in "01":
        statistics = [f"{each}{layer}" for each in ("scale", "bias", "mean", "var")]
        nodes += [
            helper.make_node("Conv", [name, f"w{layer}"], [f"c{layer}"], pads=[1] * 4, kernel_shape=[3, 3]),
            helper.make_node("BatchNormalization", [f"c{layer}", *statistics], [f"n{layer}"], epsilon=1e-5),
            helper.make_node("Relu", [f"n{layer}"], [f"r{layer}"]),
        ]
        name = f"r{layer}"
    nodes += [
        helper.make_node("GlobalAveragePool", [name], ["pool"]),
        helper.make_node("Flatten", ["pool"], ["flat"]),
        helper.make_node("MatMul", ["flat", "dense"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["PROBABILITIES"]),
        helper.make_node("MatMul", ["flat", "mean_colors"], ["other"]),
        helper.make_node("Add", ["other", "shift"], ["FEATURES"]),
    ]
    proto = _model(nodes, arrays, [("IMAGE", TensorProto.FLOAT, ["N", 3, 8, 8])], ["PROBABILITIES", "FEATURES"])
    return Model(proto, [{"IMAGE": random.normal(size=(3, 8, 8)).astype(np.float32)} for _ in range(24)])


def text() -> Model:
    """Return a sum over embeddings of token ids: IDS to SUM."""
    random = np.random.default_rng(1)
    nodes = [
        helper.make_node("Gather", ["table", "IDS"], ["rows"]),
        helper.make_node("ReduceMean", ["rows"], ["SUM"], axes=[1], keepdims=0),
    ]
    arrays = {"table": random.normal(size=(100, 6))}
    proto = _model(nodes, arrays, [("IDS", TensorProto.INT64, ["N", 5])], ["SUM"])
    return Model(proto, [{"IDS": random.integers(0, 100, 5)} for _ in range(24)])


def halves() -> Model:
    """Return a sum of the first half of X and the second one twice, Y; with large numbers inside."""
    random = np.random.default_rng(2)
    nodes = [
        helper.make_node("Slice", ["X", "zero", "middle", "one"], ["first"]),
        helper.make_node("Slice", ["X", "middle", "end", "one"], ["second"]),
        helper.make_node("ReduceSum", ["first", "one"], ["a"], keepdims=1),
        helper.make_node("ReduceSum", ["second", "one"], ["b"], keepdims=1),
        helper.make_node("Mul", ["b", "large"], ["c"]),
        helper.make_node("Mul", ["c", "small"], ["d"]),
        helper.make_node("Concat", ["a", "d"], ["Y"], axis=1),
    ]
    arrays = {
        name: np.array([value], np.int64) for name, value in (("zero", 0), ("one", 1), ("middle", 4), ("end", 8))
    }
    arrays |= {"large": np.array([100000.0]), "small": np.array([1 / 20000])}
    proto = _model(nodes, arrays, [("X", TensorProto.FLOAT, ["N", 8])], ["Y"])
    return Model(proto, [{"X": random.uniform(0.5, 1, 8).astype(np.float32)} for _ in range(24)])


def shuffled_weights(model: onnx.ModelProto) -> None:
    """Permute the rows of the last weights."""
    _replace(model, "dense", lambda array: array[::-1])


def swapped_outputs(model: onnx.ModelProto) -> None:
    """Exchange the two outputs, which have the same shape."""
    names = {"PROBABILITIES": "FEATURES", "FEATURES": "PROBABILITIES"}
    for node in model.graph.node:
        node.output[:] = [names.get(name, name) for name in node.output]


def wrong_layout(model: onnx.ModelProto) -> None:
    """Read the image as if its channels came last."""
    _before_first(
        model,
        "IMAGE",
        [
            helper.make_node("Reshape", ["IMAGE", "as_nhwc"], ["nhwc"]),
            helper.make_node("Transpose", ["nhwc"], ["IMAGE_2"], perm=[0, 3, 1, 2]),
        ],
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1, 8, 8, 3]), "as_nhwc"))


def transposed_input(model: onnx.ModelProto) -> None:
    """Exchange height and width."""
    _before_first(model, "IMAGE", [helper.make_node("Transpose", ["IMAGE"], ["IMAGE_2"], perm=[0, 1, 3, 2])])


def split_off_by_one(model: onnx.ModelProto) -> None:
    """Cut one element too late."""
    _replace(model, "middle", lambda array: array + 1)


def mixed_rows(model: onnx.ModelProto) -> None:
    """Return the greatest features of the batch."""
    for node in model.graph.node:
        node.output[:] = ["own" if each == "FEATURES" else each for each in node.output]
    nodes = [
        helper.make_node("ReduceMax", ["own"], ["greatest"], axes=[0], keepdims=1),
        helper.make_node("Max", ["own", "greatest"], ["FEATURES"]),
    ]
    _set_nodes(model, [*model.graph.node, *nodes])


def dropped_softmax(model: onnx.ModelProto) -> None:
    """Return scores as probabilities."""
    for node in model.graph.node:
        if node.op_type == "Softmax":
            node.op_type = "Identity"


def wrong_epsilon(model: onnx.ModelProto) -> None:
    """Use the epsilon of another framework: 1e-3 in place of 1e-5."""
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            node.attribute[0].f = 1e-3


def fp16_overflow(model: onnx.ModelProto) -> None:
    """Store a constant in FP16, where it is infinite."""
    overflowed = numpy_helper.from_array(np.array([np.inf], np.float16), "large_16")
    model.graph.initializer.append(overflowed)
    for node in model.graph.node:
        node.input[:] = ["large_32" if each == "large" else each for each in node.input]
    cast = helper.make_node("Cast", ["large_16"], ["large_32"], to=TensorProto.FLOAT)
    _set_nodes(model, [cast, *model.graph.node])


def stale_constant(model: onnx.ModelProto) -> None:
    """Keep a value of the traced sample as a constant."""
    traced = np.float32(halves().samples[0]["X"][:4].sum()).reshape(1, 1)
    model.graph.initializer.append(numpy_helper.from_array(traced, "traced"))
    for node in model.graph.node:
        if node.output[0] == "a":
            # The other half keeps the free number of rows.
            node.op_type = "Add"
            node.input[:] = ["traced", "nothing"]
            del node.attribute[:]
    nodes = list(model.graph.node)
    extra = [
        helper.make_node("ReduceSum", ["first", "one"], ["any"], keepdims=1),
        helper.make_node("Sub", ["any", "any"], ["nothing"]),
    ]
    _set_nodes(model, [*nodes[:2], *extra, *nodes[2:]])


def truncated_vocabulary(model: onnx.ModelProto) -> None:
    """Leave out the last tokens, and read the last row that is left in their place."""
    _replace(model, "table", lambda array: array[:90])
    model.graph.initializer.append(numpy_helper.from_array(np.array(89), "last"))
    _before_first(model, "IDS", [helper.make_node("Min", ["IDS", "last"], ["IDS_2"])])


def _model(
    nodes: list[onnx.NodeProto],
    arrays: Mapping[str, np.ndarray[Any, Any]],
    inputs: list[tuple[str, int, list[int | str]]],
    outputs: list[str],
) -> onnx.ModelProto:
    kinds = {"f": np.float32, "i": np.int64}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", _WIDTHS[name]]) for name in outputs],
        [numpy_helper.from_array(array.astype(kinds[array.dtype.kind]), name) for name, array in arrays.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.checker.check_model(proto)
    return proto


_WIDTHS = {"PROBABILITIES": 10, "FEATURES": 10, "SUM": 6, "Y": 2}


def _replace(model: onnx.ModelProto, name: str, change: Callable[[Any], Any]) -> None:
    for each in model.graph.initializer:
        if each.name == name:
            each.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(change(numpy_helper.to_array(each))), name))


def _before_first(model: onnx.ModelProto, name: str, nodes: list[onnx.NodeProto]) -> None:
    """Put nodes from the input `name` to `name`_2 before the graph."""
    for node in model.graph.node:
        node.input[:] = [f"{name}_2" if each == name else each for each in node.input]
    _set_nodes(model, [*nodes, *model.graph.node])


def _set_nodes(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> None:
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
