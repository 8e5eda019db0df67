"""The graph of an ONNX model as a sequence of nodes, and the models of its stages.

Nodes that depend on constants alone are part of the constants: each stage gets copies of those that it uses, as it
does of the initializers. All other nodes that an output needs are in exactly one stage, in the order of the file.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from naiad.core.errors import InferError, invalid_argument
from naiad.tools.split.split_source import StageModel

_LARGE_BYTES = 64 << 10
"""Larger initializers have no values that shapes depend on."""
_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
"""Operators whose outputs are no constants even if their inputs are."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the graph."""

    proto: NodeProto
    inputs: frozenset[str]
    """Names of its inputs, and of the outer values that its subgraphs use; constants are not included."""
    constants: frozenset[str]
    """The same of constants."""
    outputs: tuple[str, ...]


class SplitGraph:
    """The nodes of a model that can be distributed over stages."""

    def __init__(self, model: ModelProto) -> None:
        """Raises InferError(INVALID_ARG) for graphs that an ensemble cannot represent."""
        graph = model.graph
        self.model = model
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
        self._constant_nodes: dict[str, NodeProto] = {}
        constant_names = {*self._initializers, *self._sparse}
        self.inputs = tuple(value.name for value in graph.input if value.name not in constant_names)
        """Names of the inputs that requests have."""
        self.outputs = tuple(value.name for value in graph.output)
        for name in self.outputs:
            if name in self.inputs:
                raise invalid_argument(f"output '{name}' is an input of the model; remove it from the outputs")
        nodes = []
        for proto in graph.node:
            uses = frozenset(_used_names(proto))
            if uses <= constant_names and proto.op_type not in _RANDOM:
                self._constant_nodes.update(dict.fromkeys(filter(None, proto.output), proto))
                constant_names.update(filter(None, proto.output))
            else:
                outputs = tuple(filter(None, proto.output))
                nodes.append(Node(proto, uses - constant_names, uses & constant_names, outputs))
        self.nodes = _needed(nodes, self.outputs)
        """The nodes in the order of the file, without those that no output needs."""
        if not self.nodes:
            raise invalid_argument("the outputs of the model do not depend on its inputs")
        self.types = _infer_types(model)
        """The known types of values, by name."""

    def parameter_bytes(self) -> list[int]:
        """Return the bytes of initializers for each node; shared ones count at their first node."""
        seen: set[str] = set()
        result = []
        for node in self.nodes:
            needed = set(self._constants_of(node.constants)) - seen
            seen |= needed
            result.append(sum(self._bytes(name) for name in needed))
        return result

    def crossing(self) -> list[tuple[str, ...]]:
        """Return the values that cross a cut before each node; inputs of the model are not included."""
        last_use: dict[str, int] = {}
        for position, node in enumerate(self.nodes):
            last_use.update(dict.fromkeys(node.inputs, position))
        live: dict[str, None] = {}
        result = []
        for position, node in enumerate(self.nodes):
            result.append(tuple(live))
            live.update(dict.fromkeys(name for name in node.outputs if last_use.get(name, -1) > position))
            for name in node.inputs:
                if last_use[name] == position:
                    live.pop(name, None)
        return result

    def stages(self, cuts: Sequence[int], types: Mapping[str, onnx.TypeProto], name: str) -> list[StageModel]:
        """Return the models of the stages between the cuts. `types` has the type of each value that crosses one."""
        bounds = [0, *cuts, len(self.nodes)]
        made = []
        for index, (first, end) in enumerate(itertools.pairwise(bounds)):
            made.append(self._stage(first, end, types, f"{name}_stage{index}"))
        return made

    def _stage(self, first: int, end: int, types: Mapping[str, onnx.TypeProto], name: str) -> StageModel:
        nodes = self.nodes[first:end]
        produced = dict.fromkeys(output for node in nodes for output in node.outputs)
        used = dict.fromkeys(value for node in nodes for value in sorted(node.inputs))
        later = {value for node in self.nodes[end:] for value in node.inputs}
        is_last = end == len(self.nodes)
        constant_outputs = [] if not is_last else [name for name in self.outputs if self._is_constant(name)]
        inputs = tuple(value for value in used if value not in produced)
        outputs = (*(value for value in produced if value in later or value in self.outputs), *constant_outputs)
        model = ModelProto()
        for part in ("ir_version", "producer_name", "producer_version", "domain", "model_version"):
            setattr(model, part, getattr(self.model, part))
        model.opset_import.extend(self.model.opset_import)
        model.functions.extend(self.model.functions)
        model.metadata_props.extend(self.model.metadata_props)
        graph = model.graph
        graph.name = name
        graph.input.extend(self._value(value, types) for value in inputs)
        graph.output.extend(self._value(value, types) for value in outputs)
        needed = set(self._constants_of({each for node in nodes for each in node.constants} | {*constant_outputs}))
        graph.node.extend(_unique(self._constant_nodes[each] for each in self._constant_nodes if each in needed))
        graph.node.extend(node.proto for node in nodes)
        graph.initializer.extend(tensor for each, tensor in self._initializers.items() if each in needed)
        graph.sparse_initializer.extend(tensor for each, tensor in self._sparse.items() if each in needed)
        graph.value_info.extend(
            helper.make_value_info(each, self.types[each])
            for each in produced
            if each in self.types and each not in outputs
        )
        graph.quantization_annotation.extend(
            each for each in self.model.graph.quantization_annotation if each.tensor_name in {*produced, *needed}
        )
        return StageModel(model, len(nodes), inputs, outputs, sum(map(self._bytes, needed)))

    def _is_constant(self, name: str) -> bool:
        return name in self._initializers or name in self._sparse or name in self._constant_nodes

    def _value(self, name: str, types: Mapping[str, onnx.TypeProto]) -> onnx.ValueInfoProto:
        for value in (*self.model.graph.input, *self.model.graph.output):
            if value.name == name:
                return value
        return helper.make_value_info(name, types[name])

    def _constants_of(self, names: Iterable[str]) -> Iterator[str]:
        """Return the constants and all that they are computed from."""
        stack, seen = list(names), set()
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            yield name
            if name in self._constant_nodes:
                stack.extend(_used_names(self._constant_nodes[name]))

    def _bytes(self, name: str) -> int:
        tensors: list[TensorProto] = []
        if name in self._initializers:
            tensors = [self._initializers[name]]
        elif name in self._sparse:
            tensors = [self._sparse[name].values, self._sparse[name].indices]
        elif name in self._constant_nodes:
            tensors = [each.t for each in self._constant_nodes[name].attribute if each.type == AttributeProto.TENSOR]
        return sum(tensor.ByteSize() for tensor in tensors)


def load_graph(path: Path) -> SplitGraph:
    """Return the graph of an ONNX file with its external data. Raises InferError(INVALID_ARG)."""
    try:
        onnx.checker.check_model(str(path))
        model = onnx.load(str(path))
    except Exception as error:  # of protobuf, of the checker, of the file system
        text = " ".join(str(error).split())[:300]
        raise invalid_argument(
            f"{path} is not a valid ONNX model: {text}; name an .onnx file, or a .pt2 file of torch.export"
        ) from error
    try:
        return SplitGraph(model)
    except InferError as error:
        raise error.with_message(f"{path} cannot be split: {error.message}") from error


def _used_names(node: NodeProto) -> Iterator[str]:
    """Return the names of the values that a node uses, the outer values of its subgraphs included."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            yield from _captured(graph)


def _captured(graph: GraphProto) -> set[str]:
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {tensor.values.name for tensor in graph.sparse_initializer}
    used = {value.name for value in graph.output}
    for node in graph.node:
        own.update(node.output)
        used.update(_used_names(node))
    return used - own


def _needed(nodes: Sequence[Node], outputs: Sequence[str]) -> list[Node]:
    names, kept = set(outputs), []
    for node in reversed(nodes):
        if not names.isdisjoint(node.outputs):
            kept.append(node)
            names |= node.inputs
    return kept[::-1]


def _unique(nodes: Iterable[NodeProto]) -> list[NodeProto]:
    """Return the nodes once each: one with several outputs comes several times."""
    return list({id(node): node for node in nodes}.values())


def _infer_types(model: ModelProto) -> dict[str, onnx.TypeProto]:
    """Return the types of values by shape inference, on a copy without large initializers."""
    light = ModelProto()
    light.ir_version = model.ir_version
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph, source = light.graph, model.graph
    graph.name = source.name
    graph.node.extend(source.node)
    graph.input.extend(source.input)
    graph.output.extend(source.output)
    graph.value_info.extend(source.value_info)
    present = {value.name for value in source.input}
    for tensor in source.initializer:
        if tensor.ByteSize() <= _LARGE_BYTES:
            graph.initializer.append(tensor)
        elif tensor.name not in present:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    try:
        inferred: Any = onnx.shape_inference.infer_shapes(light, data_prop=True).graph
    except Exception:  # onnx raises RuntimeError or its own types; the types are measured instead
        inferred = source
    return {value.name: value.type for value in (*inferred.value_info, *inferred.input, *inferred.output)}
