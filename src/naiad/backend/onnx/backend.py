"""The ONNX Runtime backend: `model.onnx` files, one session for all CPU instances of a version."""

import threading
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.onnx.accelerators import gpu_unsupported_reason
from naiad.backend.onnx.gpu_instance import GpuOnnxInstance
from naiad.backend.onnx.instance import Bf16OnnxInstance, OnnxInstance
from naiad.backend.onnx.library import onnxruntime
from naiad.backend.onnx.session_options import asks_for_global_threads, model_path, thread_count
from naiad.backend.onnx.sessions import OnnxSession, OnnxSessions, inspect_model
from naiad.backend.signature import SignatureCheck, completed
from naiad.config.execution_tensors import execution_config
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import InferError, invalid_argument
from naiad.core.tensor import Array

_global_threads_lock = threading.Lock()


class OnnxRuntimeBackend(Backend):
    """Models that ONNX Runtime executes."""

    name: ClassVar[str] = "onnxruntime"
    _global_threads: ClassVar[tuple[int, int] | None] = None

    def __init__(self) -> None:
        # Its default logger writes unwanted warnings about hardware.
        onnxruntime.set_default_logger_severity(4)

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in batching, inputs and outputs from the model file. Raises InferError."""
        count = self.default_instance_count(context)
        return completed(context, lambda: inspect_model(context, model_path(context), count))

    def default_instance_count(self, context: ModelContext) -> int:
        """Return 2, as Triton, where there are cores for it, otherwise 1.

        A second instance keeps the cores busy while the first one's batch is gathered and scattered; on fewer than
        four cores it would only take threads away from the first.
        """
        cores = context.host_policies.get("cpu") or range(context.usable_cores)
        return 2 if min(len(cores), context.usable_cores) >= 4 else 1

    def gpu_unsupported_reason(self) -> str:
        """Return what the installed onnxruntime lacks."""
        return gpu_unsupported_reason()

    def load(self, context: ModelContext) -> Model:
        """Open the sessions and hold the configuration against the model. Raises InferError."""
        path = model_path(context)
        try:
            has_global_threads = self._use_global_threads(context)
            model = OnnxModel(context, path, has_global_threads=has_global_threads)
        except InferError as error:
            if error.message.startswith("parameter "):
                raise error.with_message(f"model '{context.name}': {error.message}") from None
            raise
        strict = context.backend_config.get("strict-model-config", "false").lower() == "true"
        SignatureCheck(execution_config(context.config), model.signature, strict=strict).check()
        return model

    def _use_global_threads(self, context: ModelContext) -> bool:
        """Whether all sessions of the process share one pool; its size is set once, before the first session."""
        settings = context.backend_config
        if not asks_for_global_threads(settings):
            return False
        intra = thread_count(settings, "intra_op_thread_count") or context.usable_cores
        inter = thread_count(settings, "inter_op_thread_count") or 1
        with _global_threads_lock:
            if OnnxRuntimeBackend._global_threads is None:
                onnxruntime.set_global_thread_pool_sizes(intra, inter)
                OnnxRuntimeBackend._global_threads = (intra, inter)
        return True


class OnnxModel(OnnxSessions):
    """One loaded version."""

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance on the session of its device and host policy. Raises InferError."""
        session = self.find(spec)
        tensors = (*session.signature.inputs.values(), *session.signature.outputs.values())
        has_scalars = any(not tensor.dims for tensor in tensors)
        if any(tensor.datatype is DataType.BF16 for tensor in tensors):
            kind: type[OnnxInstance] = ScalarBf16OnnxInstance if has_scalars else Bf16OnnxInstance
        elif spec.kind == "KIND_GPU" and not has_scalars:
            return GpuOnnxInstance(self._context, session, spec.device_id)
        elif spec.kind == "KIND_GPU":
            kind = ScalarGpuOnnxInstance
        else:
            kind = ScalarOnnxInstance if has_scalars else OnnxInstance
        return kind(self._context, session)


class ScalarOnnxInstance(OnnxInstance):
    """Runs a model with scalars on the CPU; bound buffers would have the shapes of the configuration.

    Scalars are tensors without dimensions, which a configuration writes as `dims: [1]` or `[1,1]`. Without batching a
    scalar is one element in both directions. With batching each row of a request has its own value, but the model
    takes one value per run, so rows with different values run one after the other:

        X [3,4]  K [3,1] = 5 5 7   ->   run(X[0:1], 5)  run(X[1:2], 5)  run(X[2:3], 7)   ->   Y [3,4]
    """

    binds: ClassVar[bool] = False

    def __init__(self, context: ModelContext, session: OnnxSession) -> None:
        super().__init__(context, session)
        signature = session.signature
        known = {**signature.optional_inputs, **signature.inputs}
        self._scalar_inputs = [t.name for t in self._table.inputs if t.name in known and not known[t.name].dims]
        self._output_ranks = {output.name: len(output.dims) for output in self._table.outputs}
        self._has_scalar_output = False
        """Whether a run has returned a scalar; the signature does not distinguish one from an unknown rank."""

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Run the session once, or once per row; see `TensorInstance.run`."""
        row_count = next(iter(inputs.values())).shape[0] if inputs and self._is_batching else 1
        if row_count == 1 or (not self._has_scalar_output and self._has_equal_rows(inputs)):
            arrays = self._run_scalars(inputs, output_names)
            if row_count == 1 or not any(_is_scalar(array) for array in arrays):
                return self._shaped(arrays, output_names)
            self._has_scalar_output = True
        if self._table.is_ragged:
            # The server then executes the requests of the batch one by one.
            raise invalid_argument(
                f"model '{self._model_name}': rows of a ragged batch need equal values of the scalar inputs "
                f"{', '.join(self._scalar_inputs)}; send one row per request"
            )
        rows = []
        for row in range(row_count):
            own = {name: array[row : row + 1] for name, array in inputs.items()}
            rows.append(self._shaped(self._run_scalars(own, output_names), output_names))
        return [np.concatenate(parts) for parts in zip(*rows, strict=True)]

    def _has_equal_rows(self, inputs: Mapping[str, Array]) -> bool:
        """Return whether each scalar input has one value for all rows."""
        scalars = [inputs[name].reshape(-1) for name in self._scalar_inputs if name in inputs]
        return all(bool((values == values[:1]).all()) for values in scalars)

    def _run_scalars(self, inputs: Mapping[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        made = dict(inputs)
        for name in self._scalar_inputs:
            if name in made:
                made[name] = made[name].reshape(-1)[:1].reshape(())
        return super().run(made, output_names)

    def _shaped(self, arrays: Sequence[Array], output_names: Sequence[str]) -> list[Array]:
        """Give scalars the dimensions that the configuration has for them."""
        batch_rank = int(self._is_batching)
        return [
            np.asarray(array).reshape((1,) * (batch_rank + self._output_ranks[name])) if _is_scalar(array) else array
            for name, array in zip(output_names, arrays, strict=True)
        ]


class ScalarGpuOnnxInstance(ScalarOnnxInstance, GpuOnnxInstance):
    """Runs a model with scalars on a GPU."""


class ScalarBf16OnnxInstance(ScalarOnnxInstance, Bf16OnnxInstance):
    """Runs a model with scalars and BF16 tensors."""


def _is_scalar(array: Array) -> bool:
    # ONNX Runtime returns a scalar string as a plain str.
    return np.ndim(array) == 0
