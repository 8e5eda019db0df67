"""Execution accelerators of a configuration, as ONNX Runtime's execution providers with their options.

Triton: `gpu_execution_accelerator` is for instances on GPUs, where CUDA follows; `cpu_execution_accelerator` is for
all instances. KIND_GPU counts NVIDIA's GPUs, so the accelerators of other devices are among the latter.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from naiad.backend.onnx.library import onnxruntime
from naiad.config.model_config_pb2 import ModelConfig, ModelOptimizationPolicy
from naiad.core.errors import invalid_argument, unsupported

CPU_PROVIDER = "CPUExecutionProvider"
_OWN_BUILD = "a build of ONNX Runtime with it (no package on PyPI has it)"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One execution accelerator."""

    provider: str
    """ONNX Runtime's name of the execution provider."""
    package: str
    """What to install for it."""
    is_gpu: bool = False
    """Whether it is for instances of KIND_GPU, and takes their GPU as `device_id`."""


ACCELERATORS: Mapping[str, Accelerator] = {
    "cuda": Accelerator("CUDAExecutionProvider", "onnxruntime-gpu", is_gpu=True),
    "tensorrt": Accelerator("TensorrtExecutionProvider", "onnxruntime-gpu", is_gpu=True),
    "openvino": Accelerator("OpenVINOExecutionProvider", "onnxruntime-openvino"),
    "directml": Accelerator("DmlExecutionProvider", "onnxruntime-directml (Windows)"),
    "coreml": Accelerator("CoreMLExecutionProvider", "onnxruntime for macOS"),
    "migraphx": Accelerator("MIGraphXExecutionProvider", "onnxruntime-migraphx"),
    "rocm": Accelerator("ROCMExecutionProvider", "onnxruntime-rocm"),
    "xnnpack": Accelerator("XnnpackExecutionProvider", _OWN_BUILD),
    "dnnl": Accelerator("DnnlExecutionProvider", _OWN_BUILD),
}
"""By the `name` in a configuration. ONNX Runtime's own names are accepted too."""
_BY_NAME: Mapping[str, Accelerator] = {
    **ACCELERATORS,
    **{accelerator.provider: accelerator for accelerator in ACCELERATORS.values()},
}
_CUDA = ACCELERATORS["cuda"]

_TENSORRT_OPTIONS: Mapping[str, str] = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "max_partition_iterations": "trt_max_partition_iterations",
    "min_subgraph_size": "trt_min_subgraph_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
"""Parameters that Triton has a name of its own for; others are handed on as they are."""
_TENSORRT_PRECISIONS: Mapping[str, Mapping[str, str]] = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}

_Wanted = ModelOptimizationPolicy.ExecutionAccelerators.Accelerator
Provider = tuple[str, Mapping[str, str]]
"""ONNX Runtime's name of an execution provider and its options."""


def choose_providers(config: ModelConfig, gpu: int | None) -> list[Provider]:
    """Return the providers for the CPU or for GPU number `gpu`, in the order in which they are preferred.

    The CPU is the last. Raises InferError (INVALID_ARG, UNSUPPORTED) for accelerators and parameters that make no
    sense there, or that the installed onnxruntime lacks.
    """
    wanted = config.optimization.execution_accelerators
    chosen: list[Provider] = []
    if gpu is not None:
        chosen += [_provider(config, each, gpu) for each in wanted.gpu_execution_accelerator]
        if not any(provider == _CUDA.provider for provider, _ in chosen):
            chosen.append((_available(config, "cuda", _CUDA), {"device_id": str(gpu)}))
    chosen += [_provider(config, each, None) for each in wanted.cpu_execution_accelerator]
    return [*chosen, (CPU_PROVIDER, {})]


def _provider(config: ModelConfig, wanted: _Wanted, gpu: int | None) -> Provider:
    accelerator = _BY_NAME.get(wanted.name)
    if accelerator is None:
        raise unsupported(
            f"model '{config.name}': unknown Execution Accelerator '{wanted.name}' is requested, expected one of "
            f"{', '.join(ACCELERATORS)}"
        )
    if accelerator.is_gpu is not (gpu is not None):
        here, there = ("gpu", "cpu") if gpu is not None else ("cpu", "gpu")
        kind = "KIND_GPU" if accelerator.is_gpu else "any kind"
        raise unsupported(
            f"model '{config.name}': unknown Execution Accelerator '{wanted.name}' is requested in "
            f"{here}_execution_accelerator; it is for instances of {kind}: write it in {there}_execution_accelerator"
        )
    options = dict(wanted.parameters)
    if accelerator is ACCELERATORS["tensorrt"]:
        options = _tensorrt_options(config, options)
    if gpu is not None:
        options.setdefault("device_id", str(gpu))
    return _available(config, wanted.name, accelerator), options


def _tensorrt_options(config: ModelConfig, parameters: dict[str, str]) -> dict[str, str]:
    precision = parameters.pop("precision_mode", "FP32")
    if precision not in _TENSORRT_PRECISIONS:
        raise invalid_argument(
            f"model '{config.name}': unsupported precision mode '{precision}' is requested, expected one of "
            f"{', '.join(_TENSORRT_PRECISIONS)}"
        )
    named = {_TENSORRT_OPTIONS.get(name, name): value for name, value in parameters.items()}
    return {**_TENSORRT_PRECISIONS[precision], **named}


def _available(config: ModelConfig, name: str, accelerator: Accelerator) -> str:
    present = onnxruntime.get_available_providers()
    if accelerator.provider in present:
        return accelerator.provider
    raise unsupported(
        f"model '{config.name}': execution accelerator '{name}' needs {accelerator.provider}, which the installed "
        f"onnxruntime {onnxruntime.__version__} does not have (it has {', '.join(present)}); install "
        f"{accelerator.package} instead of onnxruntime, or remove the accelerator"
    )


def gpu_unsupported_reason() -> str:
    """Return why sessions cannot be on GPUs; empty when they can."""
    if _CUDA.provider in onnxruntime.get_available_providers():
        return ""
    installed = f"the installed onnxruntime {onnxruntime.__version__}"
    return f"{installed} has no {_CUDA.provider}: install {_CUDA.package} instead"
