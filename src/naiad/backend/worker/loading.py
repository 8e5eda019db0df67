"""Loading: from the path of a `model.py` to its class."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from typing import Any


class LoadError(Exception):
    """The file does not hold a model; the text says what is missing."""


def load_model_class(model_file: str, model_dir: str) -> Any:
    """Import a model file and return its class `TritonPythonModel`.

    Triton: the file is the module `<version>.<stem>`, and the directories of the version and of the model are on
    `sys.path`. Raises LoadError when there is no class, and whatever the import raises.
    """
    version_dir, filename = os.path.split(model_file)
    stem, suffix = os.path.splitext(filename)
    if suffix != ".py":
        raise LoadError(f"Model name must end with '.py'. Model name is \"{filename}\".")
    sys.path += [version_dir, model_dir]
    version = os.path.basename(version_dir)
    package = types.ModuleType(version)
    package.__path__ = [version_dir]
    sys.modules[version] = package
    return _class_of(f"{version}.{stem}", model_file)


def load_backend_class(model_file: str) -> Any:
    """Import the model file of a Python-based backend and return its class `TritonPythonModel`.

    Triton: the file is the module `model`, and its directory alone is on `sys.path`. Raises as `load_model_class`.
    """
    directory, filename = os.path.split(model_file)
    sys.path.append(directory)
    return _class_of(os.path.splitext(filename)[0], model_file)


def _class_of(name: str, model_file: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, model_file)
    if spec is None or spec.loader is None:
        raise LoadError(f"Python model file not found in '{model_file}'")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    model_class = getattr(module, "TritonPythonModel", None)
    if model_class is None:
        raise LoadError(f"{model_file} has no class TritonPythonModel")
    return model_class
