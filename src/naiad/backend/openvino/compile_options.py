"""From a model configuration to the device and the properties that OpenVINO compiles a model with."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from naiad.backend.api import ModelContext
from naiad.backend.framework import Parameters, cpu_instance_count

_PASSED_ON = "property."
"""Parameters that begin so are properties of OpenVINO."""
_HINTS = ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT")


@dataclass(frozen=True, slots=True)
class CompilePlan:
    """How a model is read and compiled. The names of the parameters are Triton's."""

    device: str
    properties: Mapping[str, str]
    extension: str
    """Library with custom operators, empty for none."""
    has_fixed_rows: bool
    """Every execution has `max_batch_size` rows (SKIP_OV_DYNAMIC_BATCHSIZE)."""
    pads_rows: bool
    """Batches with fewer rows are filled up (ENABLE_BATCH_PADDING)."""
    uses_configured_dims: bool
    """The model is reshaped to the configured dimensions (RESHAPE_IO_LAYOUTS)."""


def plan_compilation(context: ModelContext) -> CompilePlan:
    """Return the plan of a model's parameters. Raises InferError(INVALID_ARG)."""
    parameters = Parameters(context.config, context.backend_config)
    device = parameters.text("TARGET_DEVICE", "CPU")
    return CompilePlan(
        device,
        _properties(context, parameters, device) | parameters.with_prefix(_PASSED_ON),
        parameters.text("CPU_EXTENSION_PATH"),
        has_fixed_rows=_is_yes(parameters, "SKIP_OV_DYNAMIC_BATCHSIZE") and context.config.max_batch_size > 0,
        pads_rows=_is_yes(parameters, "ENABLE_BATCH_PADDING"),
        uses_configured_dims=_is_yes(parameters, "RESHAPE_IO_LAYOUTS"),
    )


def _properties(context: ModelContext, parameters: Parameters, device: str) -> dict[str, str]:
    properties: dict[str, str] = {}
    if device == "CPU":
        properties = _precision(parameters) | _threads(context, parameters)
    elif "COMPILATION_NUM_THREADS" in parameters:
        # The CPU has no such property: it compiles with the threads of the inference.
        properties["COMPILATION_NUM_THREADS"] = str(parameters.count("COMPILATION_NUM_THREADS"))
    hint = parameters.choice("PERFORMANCE_HINT", _HINTS)
    if hint:
        properties["PERFORMANCE_HINT"] = hint
    if parameters.text("CACHE_DIR"):
        # A relative path is one in the model's directory.
        properties["CACHE_DIR"] = str(Path(context.model_dir) / parameters.text("CACHE_DIR"))
    return properties


def _precision(parameters: Parameters) -> dict[str, str]:
    if _is_yes(parameters, "HINT_BF16"):
        return {"INFERENCE_PRECISION_HINT": "bf16"}
    # OpenVINO's own default is bfloat16 on CPUs that have it: the results would depend on the machine. ACCURACY also
    # turns off the quantization of activations at run time.
    return {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}


def _threads(context: ModelContext, parameters: Parameters) -> dict[str, str]:
    """Return the threads of the compiled model, which all instances share; each one runs on a stream of them."""
    threads = parameters.count("INFERENCE_NUM_THREADS") or context.usable_cores
    properties = {"INFERENCE_NUM_THREADS": str(threads)}
    if "NUM_STREAMS" in parameters:
        properties["NUM_STREAMS"] = _streams(parameters)
    elif "PERFORMANCE_HINT" not in parameters:
        properties["NUM_STREAMS"] = str(min(cpu_instance_count(context.config), threads))
    if "ENABLE_CPU_PINNING" in parameters:
        properties["ENABLE_CPU_PINNING"] = parameters.choice("ENABLE_CPU_PINNING", ("YES", "NO"))
    return properties


def _streams(parameters: Parameters) -> str:
    text = parameters.text("NUM_STREAMS").strip().upper()
    if text not in ("AUTO", "NUMA") and not (text.isascii() and text.isdecimal() and 0 < int(text[:9]) <= 4096):
        raise parameters.error("NUM_STREAMS", "AUTO, NUMA or a number of streams from 1 to 4096")
    return text


def _is_yes(parameters: Parameters, name: str) -> bool:
    return parameters.choice(name, ("YES", "NO"), "NO") == "YES"
