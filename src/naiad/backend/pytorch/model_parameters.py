"""The parameters of a PyTorch model."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from naiad.backend.api import ModelContext
from naiad.backend.framework import Parameters, threads_per_instance
from naiad.config.model_config_pb2 import ModelConfig

_log = logging.getLogger(__name__)

_COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
_COMPILE_KEYS = ("fullgraph", "dynamic", "backend", "mode", "options", "disable")
_WITHOUT_EFFECT = ("ENABLE_NVFUSER", "ENABLE_TENSOR_FUSER")
"""Fusers that PyTorch no longer has, or chooses itself."""


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """How a model is loaded and run."""

    thread_count: int
    """Threads within an operator, of one instance."""
    interop_thread_count: int
    """Threads of `torch.jit.fork`, of the process; 0 leaves PyTorch's default."""
    has_inference_mode: bool
    is_optimized: bool
    """Whether the TorchScript interpreter optimises."""
    shares_weights: bool
    """Whether instances on one device share one module."""
    cleans_cache: bool
    """Whether unused GPU memory is returned to the driver after each execution."""
    may_unpickle: bool
    """Whether files of torch.save may contain code."""
    process_flags: Mapping[str, bool]
    """Settings of the whole process that the model has: DISABLE_CUDNN, ENABLE_JIT_EXECUTOR, ENABLE_JIT_PROFILING."""
    compile: Mapping[str, Any] | None
    """Arguments of torch.compile; None without it."""


def read_options(context: ModelContext) -> TorchOptions:
    """Return the options of a model. Raises InferError(INVALID_ARG)."""
    parameters = Parameters(context.config)
    for name in _WITHOUT_EFFECT:
        if name in parameters:
            _log.info("model '%s': parameter '%s' has no effect, PyTorch has no such fuser", context.name, name)
    # Triton: the Python runtime has names of its own.
    intra = "INTRA_OP_THREAD_COUNT" if "INTRA_OP_THREAD_COUNT" in parameters else "NUM_THREADS"
    inter = "INTER_OP_THREAD_COUNT" if "INTER_OP_THREAD_COUNT" in parameters else "NUM_INTEROP_THREADS"
    flags = ("DISABLE_CUDNN", "ENABLE_JIT_EXECUTOR", "ENABLE_JIT_PROFILING")
    return TorchOptions(
        thread_count=min(threads_per_instance(context, parameters, intra), context.usable_cores),
        interop_thread_count=min(parameters.count(inter), context.usable_cores),
        has_inference_mode=parameters.flag("INFERENCE_MODE", default=True),
        is_optimized=not parameters.flag("DISABLE_OPTIMIZED_EXECUTION"),
        shares_weights=parameters.flag("ENABLE_WEIGHT_SHARING"),
        cleans_cache=parameters.flag("ENABLE_CACHE_CLEANING"),
        # Not a parameter of the model: a pickle comes with its configuration.
        may_unpickle=Parameters(ModelConfig(name=context.name), context.backend_config).flag("allow-pickle"),
        process_flags={name: parameters.flag(name) for name in flags if name in parameters},
        compile=_read_compile(parameters) if _COMPILE in parameters else None,
    )


def _read_compile(parameters: Parameters) -> Mapping[str, Any]:
    try:
        arguments = json.loads(parameters.text(_COMPILE))
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict) or not set(arguments) <= set(_COMPILE_KEYS):
        raise parameters.error(_COMPILE, f"a JSON object with some of {', '.join(_COMPILE_KEYS)}")
    return arguments
