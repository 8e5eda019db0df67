"""Python-based backends: one `model.py` in a directory of its own executes all models of the backend.

Each instance has a worker, as in the `python` backend, and `--backend-config=python,...` applies to it too.
"""

from dataclasses import replace
from pathlib import Path

from naiad.backend.api import Model, ModelContext
from naiad.backend.python.backend import ModelSource, PythonBackend
from naiad.backend.python.worker.environment import PARAMETER
from naiad.backend.registry import PYTHON_RUNTIME
from naiad.config.model_config_pb2 import ModelConfig

ENVIRONMENT = f"pb_exec_env_{PYTHON_RUNTIME}.tar.gz"
"""Triton: the environment of all models of the backend, next to its `model.py`."""


class PythonBasedBackend(PythonBackend):
    """A directory with a `model.py`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def source(self, context: ModelContext) -> ModelSource:
        """Return the file of the backend."""
        return ModelSource(self._directory / PYTHON_RUNTIME, is_shared=True)

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Return the configuration of the backend's `auto_complete_config`. Raises InferError."""
        return super().auto_complete(self._with_environment(context))

    def load(self, context: ModelContext) -> Model:
        """Load one version of a model. Raises InferError."""
        return super().load(self._with_environment(context))

    def _with_environment(self, context: ModelContext) -> ModelContext:
        """Return a context with the backend's environment in the configuration, if the model has none of its own."""
        archive = self._directory / ENVIRONMENT
        if PARAMETER in context.config.parameters or not archive.is_file():
            return context
        config = ModelConfig()
        config.CopyFrom(context.config)
        config.parameters[PARAMETER].string_value = str(archive)
        return replace(context, config=config)
