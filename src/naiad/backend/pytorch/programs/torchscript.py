"""TorchScript archives: `model.pt` of `torch.jit.save`."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from naiad.backend.api import ModelContext
from naiad.backend.pytorch.library import torch
from naiad.backend.pytorch.naming import REQUIRED, Slot
from naiad.backend.pytorch.programs.program import Program, addresses, cannot_load, weights_of
from naiad.core.errors import unsupported

_log = logging.getLogger(__name__)


def load_torchscript(context: ModelContext, path: Path, device: str) -> Program:
    """Load an archive on a device, or where it was saved. Raises InferError."""
    try:
        module = torch.jit.load(str(path), map_location=device or None).eval()
    except Exception as error:  # PyTorch raises classes of several libraries
        raise cannot_load(context, path, error, "save it again with torch.jit.save") from error
    if not hasattr(module, "forward"):
        raise unsupported(f"model '{context.name}': {path} has no method 'forward'; save a module that has one")
    schema = module.forward.schema
    weights = weights_of(module)
    return Program(
        call=lambda arguments: module(*arguments),
        arguments=_arguments(context, schema.arguments[1:]),
        results=_results(schema.returns),
        may_write_to=_writers(module),
        states=addresses(weights),
        weights=weights,
    )


def _arguments(context: ModelContext, arguments: Sequence[Any]) -> Sequence[Slot] | None:
    if len(arguments) == 1 and str(arguments[0].type) == "Dict[str, Tensor]":
        return None
    return [_argument(context, argument) for argument in arguments]


def _argument(context: ModelContext, argument: Any) -> Slot:
    kind = str(argument.type)
    default = argument.default_value if argument.has_default_value() else REQUIRED
    if kind in ("Tensor", "Optional[Tensor]", "List[str]"):
        return Slot((argument.name,), default, is_text=kind == "List[str]")
    if default is not REQUIRED:
        return Slot((), default)
    # Triton: the first two sentences.
    raise unsupported(
        f"An input of type '{kind}' was detected in the model. Only a single input of type Dict(str, Tensor) or "
        f"input(s) of type Tensor are supported. Model '{context.name}': argument '{argument.name}' of forward is "
        "neither a Tensor nor a List[str]; give it a default value, or wrap the model in a module that takes tensors"
    )


def _results(returns: Sequence[Any]) -> Sequence[Slot] | None:
    kind = returns[0].type
    if kind.kind() == "TupleType":
        return [Slot((), is_text=str(each) == "List[str]") for each in kind.elements()]
    if str(kind) in ("Tensor", "List[str]"):
        return [Slot((), is_text=str(kind) == "List[str]")]
    return None


def _writers(module: Any) -> Callable[[int], bool]:
    """Return what the graph says of in-place operations on arguments."""
    try:
        graph = module.inlined_graph
        aliases = graph.alias_db()
        inputs = list(graph.inputs())[1:]
        written = frozenset(place for place, value in enumerate(inputs) if aliases.has_writers(value))
    except RuntimeError as error:
        _log.debug("no alias analysis, so all inputs are copied: %s", error)
        return lambda _: True
    return written.__contains__
