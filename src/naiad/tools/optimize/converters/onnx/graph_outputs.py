"""Outputs of an ONNX graph of an estimator or a forest, as the source has them.

Converters give classifiers a label and a score of each class. A served model often has one of them, of another
datatype, or the score of the second of two classes only.
"""

from collections.abc import Sequence
from typing import Any

from naiad.tools.optimize.converters.conversion_job import JobTensor

_OPSET = 15
_LABELS = ("INT32", "INT64", "BYTES")
_TYPES = {"INT32": "INT32", "INT64": "INT64", "BYTES": "STRING", "FP32": "FLOAT", "FP64": "DOUBLE", "FP16": "FLOAT16"}


def fit_outputs(graph: Any, wanted: Sequence[JobTensor]) -> None:
    """Change the outputs of a graph; leave them if the source's outputs are not known, or have no counterpart."""
    rest = list(graph.graph.output)
    pairs = []
    for tensor in wanted:
        found = next((each for each in rest if _is_label(each) == (tensor.datatype in _LABELS)), None)
        if found is None:
            return
        rest.remove(found)
        pairs.append((found, tensor))
    if not pairs:
        return
    if not any(each.domain == "" for each in graph.opset_import):
        graph.opset_import.add(domain="", version=_OPSET)
    names = [_renamed(graph, found.name) for found, _ in pairs]
    fitted = [_fit(graph, name, *pair) for name, pair in zip(names, pairs, strict=True)]
    del graph.graph.output[:]
    graph.graph.output.extend(fitted)


def _is_label(info: Any) -> bool:
    from onnx import TensorProto

    kinds = (TensorProto.INT32, TensorProto.INT64, TensorProto.STRING)
    return info.type.tensor_type.elem_type in kinds


def _fit(graph: Any, name: str, found: Any, tensor: JobTensor) -> Any:
    """Add nodes from an output to the source's, and return the declaration of the latter."""
    from onnx import TensorProto, helper

    if _columns(found) == 2 and tensor.shape[-1:] == (1,):
        name = _add(graph, "Gather", name, [1], axis=1)
    kind = getattr(TensorProto, _TYPES[tensor.datatype])
    if kind != found.type.tensor_type.elem_type:
        name = _add(graph, "Cast", name, to=kind)
    if -1 not in tensor.shape[1:]:
        name = _add(graph, "Reshape", name, [-1, *tensor.shape[1:]])
    _add(graph, "Identity", name, result=tensor.name)
    dims = ["N", *(size if size >= 0 else None for size in tensor.shape[1:])]
    return helper.make_tensor_value_info(tensor.name, kind, dims)


def _columns(info: Any) -> int:
    dims = info.type.tensor_type.shape.dim
    return dims[1].dim_value if len(dims) == 2 else 0


def _add(
    graph: Any, kind: str, name: str, constant: Sequence[int] | None = None, result: str = "", **attributes: Any
) -> str:
    from onnx import TensorProto, helper

    result = result or f"{name}_{kind.lower()}"
    inputs = [name]
    if constant is not None:
        inputs.append(f"{result}_constant")
        graph.graph.initializer.append(helper.make_tensor(inputs[1], TensorProto.INT64, [len(constant)], constant))
    graph.graph.node.append(helper.make_node(kind, inputs, [result], f"{result}_node", **attributes))
    return result


def _renamed(graph: Any, name: str) -> str:
    """Give a tensor another name, so that an output can have its name; return the new one."""
    new = f"{name}_of_graph"
    for node in graph.graph.node:
        for names in (node.input, node.output):
            for index, each in enumerate(names):
                if each == name:
                    names[index] = new
    return new
