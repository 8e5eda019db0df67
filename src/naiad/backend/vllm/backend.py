"""The vLLM backend: Triton's directories with a `model.json`, in worker processes.

vLLM has an event loop, processes and signal handlers of its own, and a large environment: `config.backends` has this
backend's instances in processes always. vLLM is imported where an engine starts, and not to complete a configuration.
"""

import logging
import os
from typing import ClassVar

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework import reason
from naiad.backend.texts.generation.answer_instance import GeneratingInstance
from naiad.backend.texts.generation.token_answer import Emit
from naiad.backend.vllm.async_engine import AsyncEngine
from naiad.backend.vllm.engine_directory import EngineDirectory
from naiad.backend.vllm.engine_library import import_library
from naiad.backend.vllm.engine_request import read_engine_request
from naiad.backend.vllm.engine_tensors import EngineResponses, check_config, completed_config
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import excerpt, invalid_argument
from naiad.core.request import InferRequest
from naiad.worker.group_watcher import watch_group

_log = logging.getLogger(__name__)
_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


class VllmBackend(Backend):
    """Directories with a `model.json`."""

    name: ClassVar[str] = "vllm"

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in the tensors and the transaction policy. Raises InferError for files that cannot be read."""
        EngineDirectory(context)
        return completed_config(context)

    def gpu_unsupported_reason(self) -> str:
        """Return nothing: vLLM uses GPUs."""
        return ""

    def load(self, context: ModelContext) -> Model:
        """Check configuration and files; the engine starts with the instance. Raises InferError."""
        check_config(context.config)
        return VllmModel(context, EngineDirectory(context))


class VllmModel(Model):
    """One version; a worker process has one instance of it."""

    def __init__(self, context: ModelContext, directory: EngineDirectory) -> None:
        self._context = context
        self._directory = directory

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Start an engine. Raises InferError with what vLLM says."""
        directory = self._directory
        if spec.kind == "KIND_GPU":
            self._choose_gpu(spec)
        library = import_library()
        arguments = directory.known_arguments(library.argument_names)
        try:
            made = library.AsyncEngineArgs(**arguments)
        except Exception as error:  # vLLM's own classes, and classes of its checks
            raise directory.error(
                f"has arguments that vLLM {library.version} does not take: {reason(error)}"
            ) from error
        # The engine is a process of its own, or several.
        watch_group()
        context = self._context
        responses = EngineResponses(context.name, context.version)
        engine = AsyncEngine(library, made, responses, directory.adapters, context.name)
        _log.info("model '%s' version %d: vLLM %s", context.name, context.version, library.version)
        return VllmInstance(engine, responses, directory)

    def _choose_gpu(self, spec: InstanceSpec) -> None:
        """Show the engine one GPU of those that this process sees.

        Raises InferError(INVALID_ARG) if it needs several, or if there is no such GPU.
        """
        count = self._directory.count("tensor_parallel_size") * self._directory.count("pipeline_parallel_size")
        if count > 1:
            raise invalid_argument(
                f"model '{self._context.name}': its engine uses {count} GPUs, and an instance of KIND_GPU has one; "
                "write instance_group { count: 1 kind: KIND_MODEL }"
            )
        granted = os.environ.get(_VISIBLE_GPUS)
        os.environ[_VISIBLE_GPUS] = str(spec.device_id) if granted is None else self._granted_gpu(granted, spec)

    def _granted_gpu(self, granted: str, spec: InstanceSpec) -> str:
        """Return an entry of CUDA_VISIBLE_DEVICES, a number or a name: the instance has a number within these."""
        entries = list(dict.fromkeys(entry for each in granted.split(",") if (entry := each.strip())))
        if spec.device_id >= len(entries):
            raise invalid_argument(
                f"model '{self._context.name}': instance '{spec.name}' is on GPU {spec.device_id}, and "
                f"{_VISIBLE_GPUS} is '{excerpt(granted)}', which has {len(entries)}; change 'gpus' of the instance "
                "group, or the variable"
            )
        return entries[spec.device_id]


class VllmInstance(GeneratingInstance):
    """Hands requests to an engine, which generates for all of them at a time."""

    def __init__(self, engine: AsyncEngine, responses: EngineResponses, directory: EngineDirectory) -> None:
        super().__init__("vllm", responses.empty)
        self._engine = engine
        self._adapters = directory.adapters

    def _generate(self, request: InferRequest, emit: Emit) -> None:
        self._engine.generate(request, read_engine_request(request, self._adapters), emit)

    @property
    def says_ready(self) -> bool:
        """Whether the engine lives."""
        return not self._engine.is_dead

    def close(self) -> None:
        """End the engine."""
        self._engine.close()
