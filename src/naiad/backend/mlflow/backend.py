"""The MLflow backend: a model for each instance, called through `mlflow.pyfunc`."""

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

# MLflow reports its use over the network otherwise.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import mlflow.pyfunc

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework import reason
from naiad.backend.mlflow.directory import MlflowDirectory
from naiad.backend.mlflow.mlflow_tensors import MlflowTensors
from naiad.backend.signature import SignatureCheck, complete, default_max_batch_size, is_complete
from naiad.backend.tensor_instance import TensorInstance
from naiad.config.execution_tensors import execution_config
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, excerpt, internal, invalid_argument
from naiad.core.tensor import Array

_loading = threading.Lock()
"""Models that load at once import the modules of one framework in different orders, and wait for each other."""

_log = logging.getLogger(__name__)

MAX_BATCH_SIZE = 1024
"""`max_batch_size` of a model without one: a call costs milliseconds, a row in it little."""


class MlflowBackend(Backend):
    """Model directories of MLflow."""

    name: ClassVar[str] = "mlflow"

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in batching, inputs and outputs from the signature. Raises InferError."""
        if is_complete(context.config):
            return context.config
        batch_size = default_max_batch_size(context.backend_config, MAX_BATCH_SIZE)
        signature = MlflowTensors(MlflowDirectory(context)).signature
        tensors = {**signature.inputs, **signature.optional_inputs}
        completed = complete(context.config, replace(signature, inputs=tensors), batch_size)
        configured = {tensor.name for tensor in context.config.input}
        for tensor in completed.input:
            if tensor.name in signature.optional_inputs and tensor.name not in configured:
                tensor.optional = True
        return completed

    def load(self, context: ModelContext) -> Model:
        """Read the signature and hold the configuration against it. Raises InferError."""
        return MlflowPyfunc(context)


class MlflowPyfunc(Model):
    """One loaded version; its instances load the model each."""

    def __init__(self, context: ModelContext) -> None:
        self._context = context
        self._directory = MlflowDirectory(context)
        self._tensors = MlflowTensors(self._directory)
        SignatureCheck(execution_config(context.config), self._tensors.signature).check()

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Load the model. Raises InferError(INVALID_ARG)."""
        try:
            with _loading, self._directory.permitted() as path:
                model = mlflow.pyfunc.load_model(str(path), suppress_warnings=True)
        except InferError:
            raise
        except ImportError as error:
            raise self._directory.error(
                f"needs a package that is not there: {excerpt(str(error))}; install what its requirements.txt names, "
                "or set the parameter 'EXECUTION_ENV_PATH' to that file: the model gets an environment of its own"
            ) from error
        except Exception as error:  # any exception of any framework
            raise self._directory.error(
                f"cannot be loaded by {self._directory.loader}: {reason(error)}; copy the whole directory again, and "
                "compare the versions in its requirements.txt"
            ) from error
        _log.info("model '%s' version %d: %s", self._context.name, self._context.version, self._directory.loader)
        return MlflowInstance(self._context, model, self._tensors)


class MlflowInstance(TensorInstance):
    """Calls `predict` of a model of its own."""

    def __init__(self, context: ModelContext, model: Any, tensors: MlflowTensors) -> None:
        super().__init__(context)
        self.executable = model
        self._tensors = tensors

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Call `predict` once; see `TensorInstance.run`."""
        table = self._tensors.to_model(inputs)
        try:
            result = self.executable.predict(table)
        except Exception as error:  # any exception of any framework
            # Most are about the values of one request; then other requests of its batch must not fail with it.
            text = " ".join(str(error).split())[:500]
            raise invalid_argument(
                f"model '{self._model_name}': predict failed: {type(error).__name__}: {text}"
            ) from error
        try:
            return [self._tensors.to_client(result, name) for name in output_names]
        except (KeyError, ValueError, TypeError) as error:
            raise internal(
                f"model '{self._model_name}' returned a {type(result).__name__} that does not fit its signature: "
                f"{type(error).__name__}: {str(error)[:300]}; save the model with the signature of what it returns"
            ) from error
