"""The TensorRT backend: `model.plan` files, one engine for each GPU of a version."""

import contextlib
import logging
import threading
from typing import Any, ClassVar

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.cuda.cuda import CudaError, CudaRuntime, load_runtime
from naiad.backend.framework import Scalars, first_gpu
from naiad.backend.signature import SignatureCheck, complete, is_complete
from naiad.backend.tensorrt.engine_file import TensorRtEngine
from naiad.backend.tensorrt.instance import TensorRtInstance, Tools
from naiad.backend.tensorrt.library import Messages, check_version, read_options
from naiad.backend.tensorrt.profiles import OptimizationProfile, choose_profile, max_rows, no_profile, select_profiles
from naiad.config.execution_tensors import execution_config
from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.core.errors import invalid_argument, unsupported

_log = logging.getLogger(__name__)


class TensorRtBackend(Backend):
    """Engines that TensorRT executes, on GPUs only."""

    name: ClassVar[str] = "tensorrt"

    def __init__(self) -> None:
        """Raise InferError(INTERNAL) for a release of TensorRT that is too old."""
        check_version()
        self._messages = Messages()
        self._runtime: CudaRuntime | None = None
        self._turns: dict[int, threading.Lock] = {}

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in batching, inputs and outputs from the engine. Raises InferError."""
        config = context.config
        if is_complete(config):
            return config
        runtime = self.open_runtime(context)
        _use_device(runtime, config, first_gpu(config))
        engine = TensorRtEngine(context, read_options(context), self._messages)
        return complete(config, engine.signature, max_rows(_profiles_in_use(config, engine)))

    def gpu_unsupported_reason(self) -> str:
        """Return why CUDA cannot be used."""
        try:
            load_runtime()
        except CudaError as error:
            return str(error)
        return ""

    def load(self, context: ModelContext) -> Model:
        """Read the engine and hold the configuration against it. Raises InferError."""
        runtime = self.open_runtime(context)
        for group in context.config.instance_group:
            if group.kind != ModelInstanceGroup.KIND_GPU:
                kind = ModelInstanceGroup.Kind.Name(group.kind)
                raise unsupported(
                    f"instance group '{group.name}' of model '{context.name}' has kind {kind}, but TensorRT engines "
                    f"run on GPUs only, and CUDA finds {runtime.device_count}; write kind: KIND_GPU, or serve the "
                    "ONNX model that the engine was built from"
                )
        return TensorRtModel(context, runtime, self._messages, self._turns)

    def open_runtime(self, context: ModelContext) -> CudaRuntime:
        """Return the CUDA runtime. Raises InferError(UNSUPPORTED) on a machine without a GPU."""
        if self._runtime is None:
            try:
                self._runtime = load_runtime()
            except CudaError as error:
                raise unsupported(
                    f"model '{context.name}': TensorRT engines run on NVIDIA's GPUs only, and there is none here: "
                    f"{error}; serve the ONNX model that the engine was built from on this machine"
                ) from error
        return self._runtime


class TensorRtModel(Model):
    """One loaded version: an engine for each GPU."""

    def __init__(
        self, context: ModelContext, runtime: CudaRuntime, messages: Messages, turns: dict[int, threading.Lock]
    ) -> None:
        self._context = context
        self._runtime = runtime
        self._messages = messages
        self._options = read_options(context)
        self._turns = turns
        self._lock = threading.Lock()
        self._engines: dict[int, TensorRtEngine] = {}
        engine = self._engine(first_gpu(context.config))
        config = execution_config(context.config)
        SignatureCheck(config, engine.signature).check()
        _check_profiles(config, engine)
        self._scalars = Scalars(config, engine.signature)

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance with an execution context of its own. Raises InferError."""
        with self._lock:
            engine = self._engine(spec.device_id)
            turn = self._turns.setdefault(spec.device_id, threading.Lock())
        profiles = select_profiles(engine.profiles, spec.profiles, self._context.name, spec.name)
        held: contextlib.AbstractContextManager[Any] = turn if self._options.has_turns else contextlib.nullcontext()
        tools = Tools(self._runtime, self._messages, self._scalars, held)
        return TensorRtInstance(self._context, spec, engine, profiles, self._options, tools)

    def close(self) -> None:
        """Release the engines."""
        self._engines.clear()

    def _engine(self, device_id: int) -> TensorRtEngine:
        # Loading threads change, and each has a current device of its own.
        _use_device(self._runtime, self._context.config, device_id)
        engine = self._engines.get(device_id)
        if engine is None:
            engine = self._engines[device_id] = TensorRtEngine(self._context, self._options, self._messages)
            _log.info(
                "model '%s' version %d: engine on GPU %d, %d optimization profiles",
                self._context.name, self._context.version, device_id, len(engine.profiles),
            )  # fmt: skip
        return engine


def _use_device(runtime: CudaRuntime, config: ModelConfig, device_id: int) -> None:
    """Make a GPU the current one of this thread. Raises InferError(INVALID_ARG)."""
    try:
        runtime.set_device(device_id)
    except CudaError as error:
        raise invalid_argument(
            f"model '{config.name}': GPU {device_id} cannot be used, CUDA finds {runtime.device_count}: {error}; "
            "correct 'gpus' in 'instance_group'"
        ) from error


def _profiles_in_use(config: ModelConfig, engine: TensorRtEngine) -> list[OptimizationProfile]:
    """Return the profiles of all instance groups. Raises InferError(INVALID_ARG)."""
    groups = config.instance_group or [ModelInstanceGroup(name=config.name)]
    found = [
        profile
        for group in groups
        for profile in select_profiles(engine.profiles, group.profile, config.name, group.name)
    ]
    return list({profile.index: profile for profile in found}.values())


def _check_profiles(config: ModelConfig, engine: TensorRtEngine) -> None:
    """Hold batch size and dimensions against the profiles. Raises InferError(INVALID_ARG)."""
    profiles = _profiles_in_use(config, engine)
    size = config.max_batch_size
    if size > 0 and size > max_rows(profiles):
        # Triton: the words up to the semicolon.
        raise invalid_argument(
            f"unable to load model '{config.name}', configuration specified max-batch {size} but TensorRT engine "
            f"only supports max-batch {max_rows(profiles)}; reduce max_batch_size, or build the engine with a "
            f"profile for {size} rows"
        )
    shapes = {}
    for tensor in config.input:
        dims = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else tuple(tensor.dims)
        if tensor.name in engine.host_tensors and size > 0:
            raise engine.error(
                f"computes shapes from the values of input '{tensor.name}', which the rows of a batch cannot share; "
                "set max_batch_size: 0"
            )
        if engine.signature.inputs[tensor.name].dims != ():
            shapes[tensor.name] = (-1, *dims) if size > 0 else dims
    if choose_profile(profiles, shapes) is None:
        raise no_profile(f"unable to load model '{config.name}',", shapes, profiles, engine.profiles)
