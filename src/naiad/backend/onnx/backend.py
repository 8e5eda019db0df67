"""The ONNX Runtime backend: `model.onnx` files, one session for all CPU instances of a version."""

import threading
from typing import ClassVar

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.onnx.accelerators import gpu_unsupported_reason
from naiad.backend.onnx.gpu_instance import GpuOnnxInstance
from naiad.backend.onnx.instance import Bf16OnnxInstance, OnnxInstance
from naiad.backend.onnx.library import onnxruntime
from naiad.backend.onnx.options import (
    asks_for_global_threads,
    model_path,
    thread_count,
)
from naiad.backend.onnx.scalars import ScalarBf16OnnxInstance, ScalarGpuOnnxInstance, ScalarOnnxInstance
from naiad.backend.onnx.sessions import OnnxSessions, inspect_model
from naiad.backend.signature import SignatureCheck, completed
from naiad.config.execution import execution_config
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import InferError

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
