"""Operators in an exported graph that ONNX lacks: exporters of TensorFlow pass on the ones that they do not know."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_DOMAINS = ("", "ai.onnx")


def replace_missing(graph: Any) -> None:
    """Write operators that ONNX lacks as others that it has. Raises ValueError that names those that are left."""
    import onnx

    nodes: list[Any] = []
    missing: list[str] = []
    for node in graph.graph.node:
        if node.domain not in _DOMAINS or onnx.defs.has(node.op_type):
            nodes.append(node)
        elif node.op_type in _REPLACEMENTS:
            nodes += _REPLACEMENTS[node.op_type](node)
        elif node.op_type not in missing:
            missing.append(node.op_type)
    if missing:
        raise ValueError(f"operator {', '.join(missing)} has no counterpart in ONNX")
    copies = [onnx.NodeProto.FromString(each.SerializeToString()) for each in nodes]
    del graph.graph.node[:]
    graph.graph.node.extend(copies)


def check_loads(file: str) -> None:
    """Raise ValueError if a server could not load the graph: what is made from it could not be loaded either."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    try:
        onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises a class for each of its codes
        raise ValueError(f"the exported graph does not load: {error}") from error


def round_inputs(graph: Any, names: Sequence[str]) -> None:
    """Let a graph of FP32 take these inputs in FP64."""
    from onnx import NodeProto, TensorProto, helper

    casts = []
    for each in graph.graph.input:
        if each.name in names:
            each.type.tensor_type.elem_type = TensorProto.DOUBLE
            casts.append(helper.make_node("Cast", [each.name], [f"{each.name}/FP32"], to=TensorProto.FLOAT))
    for node in graph.graph.node:
        node.input[:] = [f"{name}/FP32" if name in names else name for name in node.input]
    copies = [NodeProto.FromString(node.SerializeToString()) for node in graph.graph.node]
    del graph.graph.node[:]
    graph.graph.node.extend([*casts, *copies])


def _unary(*steps: tuple[str, str]) -> Callable[[Any], Sequence[Any]]:
    """Return what makes nodes of steps: an operator, and "1" on its left or right for one with two inputs."""

    def make(node: Any) -> Sequence[Any]:
        from onnx import helper

        base = node.name or node.output[0]
        one = f"{base}/one"
        value = helper.make_node("Constant", [], [f"{base}/number"], name=f"{base}/number", value_float=1.0)
        made = [value, helper.make_node("CastLike", [f"{base}/number", node.input[0]], [one], name=one)]
        current = node.input[0]
        for place, (operator, side) in enumerate(steps):
            inputs = {"": [current], "left": [one, current], "right": [current, one]}[side]
            current = node.output[0] if place == len(steps) - 1 else f"{base}/step_{place}"
            made.append(helper.make_node(operator, inputs, [current], name=f"{base}/{operator}_{place}"))
        return made

    return make


_REPLACEMENTS: Mapping[str, Callable[[Any], Sequence[Any]]] = {
    "Erfc": _unary(("Erf", ""), ("Sub", "left")),
    "Expm1": _unary(("Exp", ""), ("Sub", "right")),
    "Log1p": _unary(("Add", "left"), ("Log", "")),
    "Rsqrt": _unary(("Sqrt", ""), ("Div", "left")),
    "Square": lambda node: [_twice(node)],
}


def _twice(node: Any) -> Any:
    from onnx import helper

    return helper.make_node("Mul", [node.input[0], node.input[0]], list(node.output), name=node.name)
