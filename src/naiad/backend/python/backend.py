"""The `python` backend: `model.py` files, executed by worker processes, one per instance.

A Python-based backend is one `model.py` in a directory of its own, which executes all models of the backend;
`--backend-config=python,...` applies to it too.
"""

import ast
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from naiad.backend.api import Backend, Model, ModelContext
from naiad.backend.workers.process.execution_environment import PARAMETER
from naiad.backend.workers.worker_model import WorkerModel, ask_once
from naiad.backend.workers.worker_settings import WorkerSource, read_settings
from naiad.config.backends import PYTHON_RUNTIME
from naiad.config.forms.json_form import config_from_dict
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.problem import raise_problems
from naiad.core.errors import InferError, invalid_argument, not_found

_COMPLETES = "auto_complete_config"
_ENVIRONMENT = f"pb_exec_env_{PYTHON_RUNTIME}.tar.gz"
"""Triton: the environment of all models of a Python-based backend, next to its `model.py`."""
_PARSING = threading.Lock()
"""Before Python 3.13 all threads share the depth counter of `ast.parse`, which fails with SystemError (gh-106905)."""


@dataclass(frozen=True, slots=True)
class PythonSource(WorkerSource):
    """The location of a Python model's code."""

    model_file: Path
    is_shared: bool = False
    """Whether it belongs to a backend and executes other models too."""

    def notes(self, context: ModelContext) -> dict[str, Any]:
        """Return the notes that a worker needs to load it."""
        return {
            "model_file": str(self.model_file),
            "model_dir": str(context.model_dir),
            "version_dir": str(context.version_dir),
            "is_shared": self.is_shared,
        }


class PythonBackend(Backend):
    """Runs models that are classes `TritonPythonModel` in a file `model.py`."""

    name: ClassVar[str] = "python"

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Return the configuration of the model's `auto_complete_config`, from a temporary process.

        Raises InferError if the function raises or returns another type.
        """
        source = self.source(context)
        if not may_complete(source.model_file):
            return context.config
        settings = read_settings(context)
        try:
            extra = ask_once(context, source, settings)
        except InferError as error:
            error.message = f"auto_complete_config of model '{context.name}': {error.message}"
            raise
        if extra.get("config") is None:
            return context.config
        completed, problems = config_from_dict(extra["config"])
        if problems:
            raise_problems(problems)
        return completed

    def gpu_unsupported_reason(self) -> str:
        """Return "": the model gets the number of its GPU, and decides on its use."""
        return ""

    def load(self, context: ModelContext) -> Model:
        """Load one version. Raises InferError for a missing file and for unsupported settings."""
        return WorkerModel(context, self.source(context), read_settings(context))

    def source(self, context: ModelContext) -> PythonSource:
        """Return the location of a model's code. Raises InferError(NOT_FOUND) without a file."""
        return PythonSource(find_model_file(context))


class PythonBasedBackend(PythonBackend):
    """A directory with a `model.py`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def source(self, context: ModelContext) -> PythonSource:
        """Return the file of the backend."""
        return PythonSource(self._directory / PYTHON_RUNTIME, is_shared=True)

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Return the configuration of the backend's `auto_complete_config`. Raises InferError."""
        return super().auto_complete(self._with_environment(context))

    def load(self, context: ModelContext) -> Model:
        """Load one version of a model. Raises InferError."""
        return super().load(self._with_environment(context))

    def _with_environment(self, context: ModelContext) -> ModelContext:
        """Return a context with the backend's environment in the configuration, if the model has none of its own."""
        archive = self._directory / _ENVIRONMENT
        if PARAMETER in context.config.parameters or not archive.is_file():
            return context
        config = ModelConfig()
        config.CopyFrom(context.config)
        config.parameters[PARAMETER].string_value = str(archive)
        return replace(context, config=config)


def find_model_file(context: ModelContext) -> Path:
    """Return the path of the model's file. Raises InferError(NOT_FOUND) without one."""
    filename = context.config.default_model_filename or "model.py"
    if not filename.endswith(".py"):
        raise invalid_argument(f"Model name must end with '.py'. Model name is \"{filename}\".")
    path = context.version_dir / filename
    if not path.is_file():
        raise not_found(f"Python model file not found in '{path}'")
    return path


def may_complete(model_file: Path) -> bool:
    """Return whether the model may have an `auto_complete_config`, without running it.

    A class without bases and decorators has only the methods in its body; all other classes must be imported.
    """
    try:
        source = model_file.read_bytes()
        with _PARSING:
            tree = ast.parse(source, str(model_file))
    except (SyntaxError, ValueError, OSError):
        return True
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "TritonPythonModel":
            inherits = bool(node.bases or node.keywords or node.decorator_list)
            return inherits or _COMPLETES in ast.unparse(node)
    return True
