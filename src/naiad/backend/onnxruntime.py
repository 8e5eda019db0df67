"""The ONNX Runtime backend: `model.onnx` files, one session for all CPU instances of a version."""

import threading
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import onnxruntime

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.onnx_autocomplete import DEFAULT_MAX_BATCH_SIZE, complete, is_complete
from naiad.backend.onnx_binding import run_bound, run_into
from naiad.backend.onnx_options import SessionPlan, gpu_obstacle, inspection_options, model_path
from naiad.backend.onnx_sessions import OnnxSession, OnnxSessions, open_session, ort_message, refuse_to_run
from naiad.backend.onnx_signature import SignatureCheck, read_signature
from naiad.backend.onnx_staging import OnnxStagedRun, are_small, plan_outputs
from naiad.backend.onnx_threads import thread_count
from naiad.backend.tensor_instance import StagedRun, TensorInstance
from naiad.config.execution import execution_config
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType, from_numpy
from naiad.core.errors import InferError, internal, invalid_argument
from naiad.core.tensor import Array, TensorSpec

MAX_STAGED_RUNS = 64
"""Buffer sets that an instance keeps, one per shape of batch."""

LARGE_BYTES = 1 << 20
"""With an input of this size, memory for the outputs is worth giving back."""

_global_threads_lock = threading.Lock()


class OnnxRuntimeBackend(Backend):
    """Models that ONNX Runtime executes."""

    name: ClassVar[str] = "onnxruntime"
    _global_threads: ClassVar[tuple[int, int] | None] = None

    def __init__(self) -> None:
        # Its default logger writes warnings about hardware that nobody asked for.
        onnxruntime.set_default_logger_severity(4)

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in batching, inputs and outputs from the model file. Raises InferError."""
        if is_complete(context.config):
            return context.config
        default = _setting_number(context.backend_config, "default-max-batch-size", DEFAULT_MAX_BATCH_SIZE)
        path = model_path(context)
        session = open_session(
            context, path, SessionPlan(inspection_options(context), [("CPUExecutionProvider", {})])
        )
        return complete(context.config, read_signature(session), default)

    def default_instance_count(self, context: ModelContext) -> int:
        """Return 2, as Triton, where there are cores for it, otherwise 1.

        A second instance keeps the cores busy while the first one's batch is gathered and scattered; on fewer than
        four cores it would only take threads away from the first.
        """
        cores = context.host_policies.get("cpu") or range(context.usable_cores)
        return 2 if min(len(cores), context.usable_cores) >= 4 else 1

    def gpu_obstacle(self) -> str:
        """Return what the installed onnxruntime lacks."""
        return gpu_obstacle()

    def load(self, context: ModelContext) -> Model:
        """Open the sessions and hold the configuration against the model. Raises InferError."""
        path = model_path(context)
        try:
            has_global_threads = self._use_global_threads(context)
            sessions = OnnxSessions(context, path, has_global_threads=has_global_threads)
        except InferError as error:
            if error.message.startswith("parameter "):
                raise InferError(error.code, f"model '{context.name}': {error.message}") from None
            raise
        strict = context.backend_config.get("strict-model-config", "false").lower() == "true"
        SignatureCheck(execution_config(context.config), sessions.signature, strict=strict).check()
        return OnnxModel(context, sessions)

    def _use_global_threads(self, context: ModelContext) -> bool:
        """Whether all sessions of the process share one pool; its size is set once, before the first session."""
        settings = context.backend_config
        if settings.get("enable-global-threadpool", "0").lower() not in ("1", "true"):
            return False
        intra = thread_count(settings, "intra_op_thread_count") or context.usable_cores
        inter = thread_count(settings, "inter_op_thread_count") or 1
        with _global_threads_lock:
            if OnnxRuntimeBackend._global_threads is None:
                onnxruntime.set_global_thread_pool_sizes(intra, inter)
                OnnxRuntimeBackend._global_threads = (intra, inter)
        return True


class OnnxModel(Model):
    """One loaded version."""

    def __init__(self, context: ModelContext, sessions: OnnxSessions) -> None:
        self.sessions = sessions
        self._context = context

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance on the session of its device and host policy. Raises InferError."""
        session = self.sessions.find(spec)
        tensors = (*session.signature.inputs.values(), *session.signature.outputs.values())
        if any(tensor.datatype is DataType.BF16 for tensor in tensors):
            return Bf16OnnxInstance(self._context, session)
        kind = GpuOnnxInstance if spec.kind == "KIND_GPU" else OnnxInstance
        return kind(self._context, session)

    def update_config(self, config: ModelConfig) -> None:
        """Take note of other instance groups."""
        self.sessions.update_config(config)

    def close(self) -> None:
        """Let go of the sessions."""
        self.sessions.close()


class OnnxInstance(TensorInstance):
    """Runs batches on a session that it shares with the other instances."""

    runs_on_any_thread: ClassVar[bool] = True

    def __init__(self, context: ModelContext, session: OnnxSession) -> None:
        super().__init__(context)
        self._session = session
        self._run = session.run
        self._run_options = session.run_options
        self._string_inputs = [
            tensor.name for tensor in session.signature.inputs.values() if tensor.datatype is DataType.BYTES
        ]
        # The rows of a ragged batch are not those of its first input.
        self._may_preallocate = session.run_options is None and not self._table.is_ragged
        self._staged: dict[object, OnnxStagedRun] = {}

    def close(self) -> None:
        """Let go of the session, which may stay with other instances."""
        super().close()
        self._run = refuse_to_run
        self._staged.clear()

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Run the session; see `TensorInstance.run`."""
        if self._string_inputs:
            self._decode_strings(inputs)
        is_large = self._may_preallocate and any(array.nbytes >= LARGE_BYTES for array in inputs.values())
        if is_large and (arrays := self._run_large(inputs, output_names)) is not None:
            return arrays
        try:
            outputs: Sequence[Array] = self._run(output_names, inputs, self._run_options)
        except Exception as error:  # ONNX Runtime raises a different class for each status
            raise internal(ort_message(error)) from error
        if is_large:
            # It works, only not with outputs of the shapes that were expected.
            self._may_preallocate = False
        return outputs

    def _run_large(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array] | None:
        """Run with outputs in memory that does not stay in ONNX Runtime's arena; None when that cannot be done."""
        outputs = self._plan_outputs(inputs, output_names)
        if outputs is None:
            self._may_preallocate = False
            return None
        try:
            return run_into(self._session.ort, inputs, outputs)
        except Exception:  # the same inputs are run in the plain way at once, which tells the reason
            return None

    def run_into(
        self, inputs: dict[str, Array], output_names: Sequence[str], destinations: Mapping[str, memoryview]
    ) -> Sequence[Array] | None:
        """Run with outputs bound to the client's memory; see `TensorInstance.run_into`."""
        if self._string_inputs or self._run_options is not None:
            return None
        outputs = self._plan_outputs(inputs, output_names)
        if outputs is None:
            return None
        try:
            return run_into(self._session.ort, inputs, outputs, destinations)
        except Exception:  # the same inputs are run in the plain way at once, which tells the reason
            return None

    def _plan_outputs(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[TensorSpec] | None:
        """Return the outputs for inputs of these shapes; None when they cannot be told or have nothing to bind."""
        specs = [
            TensorSpec(name, datatype, array.shape)
            for name, array in inputs.items()
            if (datatype := from_numpy(array.dtype)) is not None
        ]
        outputs = plan_outputs(self._session.signature, specs, output_names, is_batching=self._is_batching)
        return outputs if outputs is not None and all(spec.byte_size for spec in outputs) else None

    def stage(self, inputs: Sequence[TensorSpec], output_names: Sequence[str]) -> StagedRun | None:
        """Bind small inputs and outputs of known shapes to buffers; see `TensorInstance.stage`."""
        if self._run_options is not None:
            return None
        key = (tuple(inputs), tuple(output_names))
        staged = self._staged.get(key)
        if staged is None:
            outputs = plan_outputs(self._session.signature, inputs, output_names, is_batching=self._is_batching)
            if outputs is None or not are_small([*inputs, *outputs]):
                return None
            if len(self._staged) >= MAX_STAGED_RUNS:
                self._staged.clear()
            staged = self._staged[key] = OnnxStagedRun(self._session.ort, inputs, outputs)
        return staged

    def _decode_strings(self, inputs: dict[str, Array]) -> None:
        """Replace arrays of bytes with arrays of str, which is all that ONNX Runtime takes."""
        for name in self._string_inputs:
            array = inputs.get(name)
            if array is None:
                continue
            try:
                texts = [element.decode() for element in array.ravel().tolist()]
            except UnicodeDecodeError as error:
                raise invalid_argument(
                    f"input '{name}' of model '{self._model_name}' has an element that is not UTF-8 ({error}); "
                    "strings of ONNX models are text"
                ) from error
            decoded = np.empty(len(texts), dtype=np.object_)
            decoded[:] = texts
            inputs[name] = decoded.reshape(array.shape)


class GpuOnnxInstance(OnnxInstance):
    """Runs on a GPU: inputs are copied there and outputs back by ONNX Runtime."""

    runs_on_any_thread: ClassVar[bool] = False

    def __init__(self, context: ModelContext, session: OnnxSession) -> None:
        super().__init__(context, session)
        self._may_preallocate = False

    def stage(self, inputs: Sequence[TensorSpec], output_names: Sequence[str]) -> StagedRun | None:
        """Return None: what is bound lies in the host's memory."""
        return None

    def run_into(
        self, inputs: dict[str, Array], output_names: Sequence[str], destinations: Mapping[str, memoryview]
    ) -> Sequence[Array] | None:
        """Return None: outputs come from the GPU."""
        return None


class Bf16OnnxInstance(OnnxInstance):
    """Runs a model with BF16 tensors, for which ONNX Runtime has no arrays: all of them are bound by address."""

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Run the session; see `TensorInstance.run`."""
        if self._string_inputs:
            self._decode_strings(inputs)
        try:
            return run_bound(self._session.ort, inputs, [self._session.signature.outputs[n] for n in output_names])
        except Exception as error:  # ONNX Runtime raises a different class for each status
            raise internal(ort_message(error)) from error


def _setting_number(settings: Mapping[str, str], name: str, default: int) -> int:
    text = settings.get(name, str(default))
    if not text.isdecimal():
        raise invalid_argument(f"--backend-config {name} is '{text}', expected a number that is not negative")
    return int(text)
