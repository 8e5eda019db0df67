"""The graph of an exported program as a sequence of nodes, and the modules of its stages.

Nodes that depend on parameters, constants and sizes alone are free: each stage gets copies of those that it uses, and
reads sizes from a tensor that it has. All other nodes that an output needs are in exactly one stage, in their order.
"""

import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from naiad.backend.pytorch.library import torch
from naiad.backend.pytorch.programs.exported import input_slots, output_slots
from naiad.core.errors import unsupported
from naiad.tools.split.split_source import StageModel

_SIZE = torch.ops.aten.sym_size.int
_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg)


class ExportedGraph:
    """The nodes of a program that can be distributed over stages. Values between stages have the names of nodes."""

    def __init__(self, exported: Any) -> None:
        """Raises InferError(UNSUPPORTED) for programs that an ensemble cannot represent."""
        signature = exported.graph_signature
        if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
            raise unsupported("the program writes to its buffers or inputs, which stages do not share")
        self.module = exported.graph_module
        graph = self.module.graph
        tensors = {**exported.state_dict, **exported.constants}
        self.parameters = {spec.arg.name: tensors[spec.target] for spec in signature.input_specs if spec.target}
        """Parameters, buffers and constants by the names of their placeholders."""
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        slots = input_slots(exported)
        if not all(slot.names for slot in slots):
            raise unsupported("an argument of the program is a constant; export the model without it")
        names = {slot.names[0] for slot in slots}
        self.inputs = {node.name: node for node in placeholders if node.name in names}
        """The placeholders of the inputs."""
        results = next(node for node in graph.nodes if node.op == "output").args[0]
        self.outputs = {slot.names[0]: node for slot, node in zip(output_slots(exported), results, strict=True)}
        """Values by the names of the outputs."""
        for name, node in self.outputs.items():
            if name in self.inputs or node in placeholders or not _is_tensor(node):
                raise unsupported(f"output '{name}' is an input or no tensor; remove it from the outputs")
        free = {node for node in placeholders if node.name not in self.inputs}
        needed = _needed(self.outputs.values())
        self.nodes = []
        """The nodes in the order of the program, without those that no output needs."""
        for node in graph.nodes:
            if self.outputs.get(node.name, node) is not node:
                node.name += "_value"  # an output has this name
            if node in needed and node.op != "placeholder":
                if _is_free(node, free):
                    free.add(node)
                else:
                    self.nodes.append(node)
        self._free = free
        if not self.nodes:
            raise unsupported("the outputs of the model do not depend on its inputs")

    def parameter_bytes(self) -> list[int]:
        """Return the bytes of parameters for each node; shared ones count at their first node."""
        seen: set[Any] = set()
        result = []
        for node in self.nodes:
            added = self._free_of([node]) - seen
            seen |= added
            result.append(self._bytes(added))
        return result

    def crossing(self) -> list[tuple[str, ...]]:
        """Return the values that cross a cut before each node; inputs of the model are not included."""
        positions = {node: index for index, node in enumerate(self.nodes)}
        last_use = {node: max((positions.get(user, -1) for user in node.users), default=-1) for node in self.nodes}
        live: dict[Any, None] = {}
        result = []
        for position, node in enumerate(self.nodes):
            result.append(tuple(each.name for each in live))
            for each in [each for each in node.all_input_nodes if last_use.get(each) == position]:
                live.pop(each, None)
            if last_use[node] > position:
                live[node] = None
        return result

    def stages(self, cuts: Sequence[int]) -> list[StageModel]:
        """Return the modules of the stages between the cuts."""
        bounds = [0, *cuts, len(self.nodes)]
        return [self._stage(first, end) for first, end in itertools.pairwise(bounds)]

    def _stage(self, first: int, end: int) -> StageModel:
        nodes = dict.fromkeys(self.nodes[first:end])
        is_last = end == len(self.nodes)
        own_outputs = {
            name: node for name, node in self.outputs.items() if node in nodes or (is_last and node in self._free)
        }
        free = self._free_of([*nodes, *own_outputs.values()])
        needed = [node for node in self.module.graph.nodes if node in free or node in nodes]
        used = dict.fromkeys(each for node in needed if not _is_size(node) for each in node.all_input_nodes)
        inputs = [node for node in used if node not in nodes and node not in self._free]
        later = {each for node in self.nodes[end:] for each in node.all_input_nodes}
        inputs += self._size_sources(
            [node for node in needed if _is_size(node) and node.args[0] not in nodes], inputs
        )
        graph, root = torch.fx.Graph(), torch.nn.Module()
        copies = {node: graph.placeholder(node.name) for node in inputs}
        for node in needed:
            if node.op == "placeholder":
                root.register_buffer(node.name, self.parameters[node.name])
                copies[node] = graph.get_attr(node.name)
                continue
            if node.op == "get_attr":
                setattr(root, node.target, getattr(self.module, node.target))
            elif _is_size(node) and node.args[0] not in copies:
                source = next(each for each in inputs if _dimension(each, node) is not None)
                copies[node] = graph.call_function(_SIZE, (copies[source], _dimension(source, node)))
                continue
            copies[node] = graph.node_copy(node, lambda each: copies[each])
        outputs = {node.name: node for node in nodes if node in later} | own_outputs
        graph.output({name: copies[node] for name, node in outputs.items()})
        return StageModel(
            torch.fx.GraphModule(root, graph),
            len(nodes),
            tuple(node.name for node in inputs),
            tuple(outputs),
            self._bytes(free),
        )

    def _size_sources(self, sizes: Iterable[Any], present: Sequence[Any]) -> list[Any]:
        """Return the inputs of the model that have the sizes that no tensor in `present` has."""
        found: dict[Any, None] = {}
        for node in sizes:
            if all(_dimension(each, node) is None for each in (*present, *found)):
                found[next(each for each in self.inputs.values() if _dimension(each, node) is not None)] = None
        return list(found)

    def _free_of(self, nodes: Iterable[Any]) -> set[Any]:
        """Return the free nodes that some nodes are computed from."""
        stack, seen = list(nodes), set()
        while stack:
            node = stack.pop()
            if _is_size(node):
                continue
            for each in node.all_input_nodes:
                if each in self._free and each not in seen:
                    seen.add(each)
                    stack.append(each)
        return seen | {node for node in nodes if node in self._free}

    def _bytes(self, nodes: Iterable[Any]) -> int:
        tensors = [self.parameters[node.name] for node in nodes if node.op == "placeholder"]
        return sum(each.nbytes for each in tensors if isinstance(each, torch.Tensor))


def _needed(nodes: Iterable[Any]) -> set[Any]:
    stack = list(nodes)
    seen = set(stack)
    while stack:
        for each in stack.pop().all_input_nodes:
            if each not in seen:
                seen.add(each)
                stack.append(each)
    return seen


def _is_tensor(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


def _is_size(node: Any) -> bool:
    """Whether a node reads a size that the inputs of the program have."""
    value = node.meta.get("val")
    if node.target is not _SIZE or not isinstance(value, torch.SymInt):
        return False
    symbol = value.node.expr
    return bool(symbol.is_symbol) and not str(symbol).startswith("u")  # u0: known during an execution only


def _is_free(node: Any, free: set[Any]) -> bool:
    if _is_size(node) or node.op == "get_attr":
        return True
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return False
    is_known = node.target in _ARITHMETIC or hasattr(node.target, "_schema")
    return is_known and all(each in free for each in node.all_input_nodes)


def _dimension(node: Any, size: Any) -> int | None:
    """Return the dimension of a tensor that has a size, if it has one."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    symbol = size.meta["val"].node.expr
    return next(
        (
            index
            for index, each in enumerate(value.shape)
            if isinstance(each, torch.SymInt) and each.node.expr == symbol
        ),
        None,
    )
