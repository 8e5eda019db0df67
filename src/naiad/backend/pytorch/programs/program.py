"""A model that is loaded on one device, of any format."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from naiad.backend.api import ModelContext
from naiad.backend.pytorch.naming import Slot
from naiad.backend.pytorch.tensors import reason, storage_address
from naiad.core.errors import InferError, internal


@dataclass(frozen=True, slots=True)
class Program:
    """What an instance calls."""

    call: Callable[[Sequence[Any]], Any]
    """Takes the arguments by position; returns a tensor, a list of strings, or a sequence or dictionary of them."""
    arguments: Sequence[Slot] | None
    """None for a program that takes one dictionary of all inputs."""
    results: Sequence[Slot] | None
    """None where their number is known after a run only."""
    may_write_to: Callable[[int], bool] = field(default=lambda _: True)
    """Whether a run may write to the argument at a position."""
    states: frozenset[int] = frozenset()
    """Addresses of weights and buffers: a result there would change with the next run."""
    weights: Sequence[Any] = ()
    """Parameters and buffers."""
    max_rows: int = 0
    """The most rows of a batch; 0 for any."""


def weights_of(module: Any) -> list[Any]:
    """Return the parameters and buffers of a module."""
    return [*module.parameters(), *module.buffers()]


def addresses(tensors: Sequence[Any]) -> frozenset[int]:
    """Return where tensors are."""
    return frozenset(storage_address(tensor) for tensor in tensors)


def cannot_load(context: ModelContext, path: Path, error: BaseException, fix: str) -> InferError:
    """Return the error for a file that PyTorch refuses."""
    return internal(
        f"model '{context.name}' version {context.version}: {path} cannot be loaded: {reason(error)}; {fix}"
    )
