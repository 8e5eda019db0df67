"""Archives of torch.export: `model.pt2` of `torch.export.save`."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from naiad.backend.api import ModelContext
from naiad.backend.pytorch.library import move_to_device_pass, pytree, torch
from naiad.backend.pytorch.naming import REQUIRED, Slot
from naiad.backend.pytorch.programs.program import Program, addresses, cannot_load, weights_of
from naiad.backend.pytorch.tensors import DATATYPES
from naiad.backend.signature import TensorSignature
from naiad.core.errors import unsupported

_loading = threading.Lock()
"""PyTorch's reader of archives has a global state, and models load at the same time."""
_inspected = threading.local()
"""Its attribute `last` is the archive that the thread has inspected last: its path, its time, and its program."""


def inspect_exported(context: ModelContext, path: Path) -> Any:
    """Return the ExportedProgram of an archive, and keep it for `load_exported` on this thread. Raises InferError."""
    _inspected.last = None
    exported = _read(context, path)
    _inspected.last = (path, path.stat().st_mtime_ns, exported)
    return exported


def _read(context: ModelContext, path: Path) -> Any:
    last = getattr(_inspected, "last", None)
    _inspected.last = None
    if last is not None and last[:2] == (path, path.stat().st_mtime_ns):
        return last[2]
    try:
        # An open file: of paths, PyTorch takes those that end with .pt2 only.
        with path.open("rb") as file, _loading:
            return torch.export.load(file)
    except Exception as error:  # PyTorch raises classes of several libraries
        raise cannot_load(context, path, error, f"export it again with torch {torch.__version__}") from error


def load_exported(
    context: ModelContext, path: Path, device: str, compile_arguments: Mapping[str, Any] | None
) -> Program:
    """Load an archive on a device, or where it was exported, compiled if there are arguments. Raises InferError."""
    exported = _read(context, path)
    tensors = [*exported.state_dict.values(), *exported.constants.values()]
    if device and (
        device != "cpu" or any(not tensor.is_cpu for tensor in tensors if isinstance(tensor, torch.Tensor))
    ):
        exported = move_to_device_pass(exported, device)
    module = exported.module()
    constants = [value for value in exported.constants.values() if isinstance(value, torch.Tensor)]
    weights = [*weights_of(module), *constants]
    if compile_arguments is not None:
        module = torch.compile(module, **compile_arguments)
    writes = _has_writes(exported.graph_module)
    return Program(
        call=_caller(module, exported.call_spec),
        arguments=input_slots(exported),
        results=output_slots(exported),
        may_write_to=lambda _: writes,
        states=addresses(weights),
        weights=weights,
        max_rows=max_rows(exported),
    )


def _caller(module: Any, call_spec: Any) -> Callable[[Sequence[Any]], Any]:
    in_spec, out_spec = call_spec.in_spec, call_spec.out_spec
    is_flat = all(len(path) == 2 for path in _paths(in_spec)) and not in_spec.child(1).num_leaves
    is_plain = all(len(path) <= 1 for path in _paths(out_spec))
    if is_flat and is_plain:
        return lambda arguments: module(*arguments)

    def call(arguments: Sequence[Any]) -> Sequence[Any]:
        positional, named = pytree.tree_unflatten(list(arguments), in_spec)
        return tuple(pytree.tree_leaves(module(*positional, **named)))

    return call


def _has_writes(graph_module: Any) -> bool:
    """Whether the graph has operators that write in place; functional graphs have none."""
    nodes = [node for part in graph_module.modules() if hasattr(part, "graph") for node in part.graph.nodes]
    return any(getattr(getattr(node.target, "_schema", None), "is_mutable", False) for node in nodes)


# --- arguments and results ------------------------------------------------------------------------------------------


def _paths(spec: Any) -> list[tuple[Any, ...]]:
    """Return the keys that lead to each leaf of a tree."""
    tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    return [path for path, _ in pytree.tree_flatten_with_path(tree)[0]]


def _text(root: str, path: Sequence[Any]) -> str:
    """Return Triton's name of a leaf: `ARGS[0]`, `RESULT[logits]`."""
    return root + "".join(f"[{getattr(key, 'idx', getattr(key, 'key', key))}]" for key in path)


def argument_names(in_spec: Any) -> list[str]:
    """Return Triton's names of the leaves of positional and of keyword arguments."""
    return [_text("KWARGS" if path[0].idx else "ARGS", path[1:]) for path in _paths(in_spec)]


def result_names(out_spec: Any) -> list[list[str]]:
    """Return the names of each result: the key of a dictionary or the number, then Triton's."""
    names = []
    for position, path in enumerate(_paths(out_spec)):
        key = getattr(path[0], "key", None) if len(path) == 1 else None
        names.append([key if isinstance(key, str) else f"OUTPUT__{position}", _text("RESULT", path)])
    return names


def input_slots(exported: Any) -> list[Slot]:
    """Return the arguments of an exported program. Raises InferError(UNSUPPORTED) for one that is no tensor."""
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"}
    specs = [spec.arg for spec in exported.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    slots = []
    for arg, alias in zip(specs, argument_names(exported.call_spec.in_spec), strict=True):
        if hasattr(arg, "value"):
            # A number or None that is part of the graph.
            slots.append(Slot((), arg.value))
            continue
        value = values[arg.name]
        if not isinstance(value, torch.Tensor):
            raise unsupported(
                f"argument '{arg.name}' of the exported program is a {type(value).__name__}, which requests cannot "
                "carry; export the model with tensors, or with a constant"
            )
        slots.append(Slot((arg.name, alias), REQUIRED, tensor=_signature(arg.name, value)))
    return slots


def output_slots(exported: Any) -> list[Slot]:
    """Return the results of an exported program."""
    nodes = {node.name: node.meta.get("val") for node in exported.graph.nodes}
    specs = [spec.arg for spec in exported.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"]
    slots = []
    for arg, names in zip(specs, result_names(exported.call_spec.out_spec), strict=True):
        value = nodes.get(getattr(arg, "name", ""))
        slots.append(Slot(names, tensor=_signature(names[0], value) if isinstance(value, torch.Tensor) else None))
    return slots


def _signature(name: str, value: Any) -> TensorSignature:
    dims = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
    return TensorSignature(name, DATATYPES.get(value.dtype), dims, str(value.dtype))


def max_rows(exported: Any) -> int:
    """Return the upper bound of the first dimension of the inputs; 0 without one."""
    bounds = []
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor) and value.shape:
            symbol = getattr(getattr(value.shape[0], "node", None), "expr", None)
            found = exported.range_constraints.get(symbol)
            if found is not None and found.upper.is_Integer:
                bounds.append(int(found.upper))
    return min(bounds, default=0)
