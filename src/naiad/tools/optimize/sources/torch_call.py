"""A program of PyTorch as a function of arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

from naiad.backend.pytorch.library import torch
from naiad.backend.pytorch.naming import REQUIRED
from naiad.backend.pytorch.programs.program import Program
from naiad.backend.pytorch.tensors import from_texts, to_array, to_tensor, to_texts
from naiad.core.tensor import Array
from naiad.tools.optimize.sources.observation import Call


def argument_names(program: Program) -> list[str]:
    """Return the names of the arguments; none for a program that takes a dictionary."""
    return [slot.names[0] for slot in program.arguments or () if slot.names]


def program_call(program: Program, order: Sequence[str]) -> Call:
    """Return a function of arrays by name; `order` has the names of the inputs in the order of the arguments.

    Outputs have the keys of a dictionary that the program returns, otherwise the names OUTPUT__0, OUTPUT__1, ...
    """

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        with torch.inference_mode():
            # Copies: some programs write to their arguments.
            if program.arguments is None:
                return _named(program.call([{name: to_tensor(array.copy()) for name, array in inputs.items()}]))
            arguments = [slot.default for slot in program.arguments]
            free = [place for place, slot in enumerate(program.arguments) if slot.names]
            for place, name in zip(free, order, strict=False):
                is_text = program.arguments[place].is_text
                arguments[place] = to_texts(name, inputs[name]) if is_text else to_tensor(inputs[name].copy())
            if REQUIRED in arguments:
                raise ValueError(f"the model takes {', '.join(argument_names(program))}; got {', '.join(inputs)}")
            return _named(program.call(arguments))

    return call


def _named(returned: Any) -> dict[str, Array]:
    if isinstance(returned, Mapping):
        return {str(name): _array(value) for name, value in returned.items()}
    if isinstance(returned, (list, tuple)) and not (returned and isinstance(returned[0], str)):
        return {f"OUTPUT__{place}": _array(value) for place, value in enumerate(returned)}
    return {"OUTPUT__0": _array(returned)}


def _array(value: Any) -> Array:
    if isinstance(value, torch.Tensor):
        return to_array(value).copy()
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return from_texts(value)
    raise ValueError(f"it returns a {type(value).__name__} among its outputs; outputs are tensors")
