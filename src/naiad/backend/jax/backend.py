"""The JAX backend: one compiled function for all instances of a version on a device."""

import threading
from collections.abc import Sequence, Set
from typing import Any, ClassVar

import numpy as np

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework import Scalars
from naiad.backend.jax.artifact import Artifact, dlpack_device
from naiad.backend.jax.library import jax
from naiad.backend.signature import SignatureCheck, completed
from naiad.backend.tensor_instance import TensorInstance
from naiad.config.execution_tensors import execution_config
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.device_tensor import Device
from naiad.core.errors import internal, invalid_argument
from naiad.core.tensor import Array


class JaxBackend(Backend):
    """Functions that `jax.export` has serialised."""

    name: ClassVar[str] = "jax"

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in batching, inputs and outputs from the artefact. Raises InferError."""
        return completed(context, lambda: Artifact(context).signature)

    def gpu_unsupported_reason(self) -> str:
        """Return what the installed JAX, or the machine, lacks."""
        try:
            jax.devices("gpu")
        except RuntimeError:
            return f"the installed jax {jax.__version__} finds no GPU: pip install 'jax[cuda13]', and the driver"
        return ""

    def load(self, context: ModelContext) -> Model:
        """Read the file and hold the configuration against it. Raises InferError."""
        return JaxModel(context)


class JaxModel(Model):
    """One loaded version."""

    def __init__(self, context: ModelContext) -> None:
        self._context = context
        self._artifact = artifact = Artifact(context)
        config = execution_config(context.config)
        SignatureCheck(config, artifact.signature).check()
        if config.max_batch_size > 1 and not artifact.has_batch_dimension:
            raise artifact.error(
                f"has no batch dimension, but the configuration has max_batch_size: {config.max_batch_size}; set it "
                "to 0, or export the function with one free first dimension: jax.export.symbolic_shape('b, ...')"
            )
        self._scalars = Scalars(config, artifact.signature)
        self._loading = threading.Lock()
        self._functions: dict[tuple[str, int], Any] = {}

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance, and compile the function where all shapes are known. Raises InferError."""
        place = (spec.kind, spec.device_id)
        with self._loading:
            function = self._functions.get(place)
            if function is None:
                function = self._functions[place] = self._artifact.compile(*place)
                self._prove(function)
        device = None if self._scalars.has_inputs else dlpack_device(*place)
        return JaxInstance(self._context, self._artifact, function, self._scalars, device)

    def close(self) -> None:
        """Release the compiled functions."""
        self._functions.clear()

    def _prove(self, function: Any) -> None:
        """Run the function on zeros, one row of a batch: a damaged program is found at load."""
        artifact = self._artifact
        arrays = []
        for tensor in artifact.signature.inputs.values():
            shape = tensor.shape
            if artifact.has_batch_dimension:
                shape = (1, *shape[1:])
            if -1 in shape or tensor.datatype is None:
                return
            arrays.append(np.zeros(shape, tensor.datatype.numpy))
        try:
            function(arrays)
        except Exception as error:  # JAX and XLA raise classes of their own
            raise artifact.error(
                f"cannot be run by JAX {jax.__version__} on zeros: {str(error)[:500]}; export the function again"
            ) from error


class JaxInstance(TensorInstance):
    """Runs batches with a function that it shares with the other instances of its device."""

    def __init__(
        self, context: ModelContext, artifact: Artifact, function: Any, scalars: Scalars, device: Device | None
    ) -> None:
        super().__init__(context, device)
        self.executable = function
        self._inputs = artifact.inputs
        self._places = {name: index for index, name in enumerate(artifact.outputs)}
        self._scalars = scalars

    @staticmethod
    def to_host(tensor: Any) -> Array:
        """Return an array of JAX as one of numpy; see `TensorInstance.to_host`."""
        try:
            return np.asarray(tensor)
        except RuntimeError as error:
            raise BufferError(f"an array on {tensor.device} cannot be copied to the host: {error}") from error

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Call the function; see `TensorInstance.run`."""
        return self.run_on_device(inputs, output_names, frozenset())

    def run_on_device(self, inputs: dict[str, Any], output_names: Sequence[str], staying: Set[str]) -> Sequence[Any]:
        """Call the function with tensors on its device; see `TensorInstance.run_on_device`."""
        self._scalars.to_model(inputs)
        try:
            places = {self._places[name] for name in staying}
            results = self.executable([inputs[name] for name in self._inputs], places)
        except ValueError as error:
            # Shapes that contradict the symbolic ones.
            raise invalid_argument(f"model '{self._model_name}': JAX: {str(error)[:500]}") from error
        except Exception as error:  # JAX and XLA raise classes of their own
            raise internal(f"model '{self._model_name}' failed in JAX: {str(error)[:500]}") from error
        return [self._scalars.to_client(name, results[self._places[name]]) for name in output_names]
