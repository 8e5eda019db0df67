"""`model.py` with an `nn.Module` class, and its weights: Triton's Python runtime of the PyTorch backend."""

import importlib.util
import inspect
import pickle
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from naiad.backend.api import ModelContext
from naiad.backend.pytorch.library import torch
from naiad.backend.pytorch.model_parameters import TorchOptions
from naiad.backend.pytorch.naming import REQUIRED, Slot
from naiad.backend.pytorch.programs.program import Program, addresses, cannot_load, weights_of
from naiad.core.errors import InferError, internal, invalid_argument
from naiad.worker.model_source import SourceLoader, import_from_source

_import_lock = threading.Lock()

SUFFIXES = (".pt", ".pth", ".safetensors")
"""Of files with weights beside `model.py`, with the same stem."""


def load_module(context: ModelContext, path: Path, device: str, options: TorchOptions) -> Program:
    """Create the module of a source file, load its weights, and move it to the device. Raises InferError."""
    module = _create(context, path)
    file = next((found for suffix in SUFFIXES if (found := path.with_suffix(suffix)).is_file()), None)
    if file is not None:
        _load_weights(context, module, file, options)
    module = module.to(device or None).eval()
    weights = weights_of(module)
    arguments = _arguments(module)
    if options.compile is not None:
        module = torch.compile(module, **options.compile)
    return Program(lambda values: module(*values), arguments, None, states=addresses(weights), weights=weights)


def load_pickled(context: ModelContext, path: Path, device: str, options: TorchOptions) -> Program:
    """Load a module that torch.save has pickled. Raises InferError."""
    module = read_checkpoint(context, path, options)
    if not isinstance(module, torch.nn.Module):
        raise invalid_argument(
            f"model '{context.name}': {path} is a state dict, weights without the program; put the class of the "
            "nn.Module in model.py beside it, or save the model with torch.jit.save or torch.export.save"
        )
    module = module.to(device or None).eval()
    weights = weights_of(module)
    return Program(
        lambda values: module(*values), _arguments(module), None, states=addresses(weights), weights=weights
    )


def read_checkpoint(context: ModelContext, path: Path, options: TorchOptions) -> Any:
    """Return what torch.save has written. Raises InferError for a pickle with code, unless that is allowed."""
    try:
        return torch.load(path, map_location="cpu", weights_only=not options.may_unpickle)
    except pickle.UnpicklingError as error:
        raise invalid_argument(
            f"model '{context.name}': {path} is a pickle that names classes, and unpickling executes the code that a "
            "pickle contains; save the state dict (torch.save(model.state_dict(), ...)) and put the class in "
            "model.py, or, if you trust every file of the repository, start the server with "
            "--backend-config=pytorch,allow-pickle=true"
        ) from error
    except Exception as error:  # PyTorch raises classes of several libraries
        raise cannot_load(context, path, error, "save it again with torch.save") from error


def _create(context: ModelContext, path: Path) -> Any:
    name = f"naiad_pytorch_{context.namespace}_{context.name}_{context.version}"
    with _import_lock:
        for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
            del sys.modules[known]
        return _import(context, path, name)


def _import(context: ModelContext, path: Path, name: str) -> Any:
    # A package, so that `from . import layers` finds the other files of the version.
    import_from_source(str(path.parent))
    spec = importlib.util.spec_from_file_location(
        name, path, loader=SourceLoader(name, str(path)), submodule_search_locations=[str(path.parent)]
    )
    if path.suffix != ".py" or spec is None or spec.loader is None:
        raise invalid_argument(f"model '{context.name}': {path} cannot be imported; it must end with .py")
    source = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(source)
        return _module_class(context, path, source)()
    except InferError:
        raise
    except Exception as error:
        raise internal(
            f"model '{context.name}': {path} raised {type(error).__name__}: {error}; the class must be importable "
            "and take no arguments"
        ) from error


def _module_class(context: ModelContext, path: Path, source: Any) -> Any:
    """Return the only nn.Module that the file defines, or the one that no other contains."""
    found = [
        value
        for value in vars(source).values()
        if isinstance(value, type) and issubclass(value, torch.nn.Module) and value.__module__ == source.__name__
    ]
    if len(found) > 1:
        found = [value for value in found if value.__name__ == "Model"]
    if len(found) == 1:
        return found[0]
    raise invalid_argument(
        f"model '{context.name}': {path} must have one subclass of torch.nn.Module, or several of which one is "
        "called 'Model'"
    )


def _load_weights(context: ModelContext, module: Any, path: Path, options: TorchOptions) -> None:
    weights = _read_weights(context, path, options)
    if not isinstance(weights, Mapping):
        raise invalid_argument(
            f"model '{context.name}': {path} has a {type(weights).__name__}, expected a state dict; save "
            "model.state_dict()"
        )
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        text = " ".join(str(error).split())[:1000]
        raise invalid_argument(
            f"model '{context.name}': the weights of {path} do not fit the class in model.py: {text}"
        ) from error


def _read_weights(context: ModelContext, path: Path, options: TorchOptions) -> Any:
    if path.suffix != ".safetensors":
        return read_checkpoint(context, path, options)
    try:
        from safetensors.torch import load_file

        return load_file(path)
    except ModuleNotFoundError as error:
        raise internal(f"model '{context.name}': {path} needs the package 'safetensors'; install it") from error
    except Exception as error:  # safetensors raises a class of its own
        raise cannot_load(context, path, error, "save it again with safetensors.torch.save_file") from error


def _arguments(module: Any) -> list[Slot]:
    """Return the positional arguments of `forward`."""
    slots = []
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            default = REQUIRED if parameter.default is parameter.empty else parameter.default
            slots.append(Slot((parameter.name,), default))
    return slots
