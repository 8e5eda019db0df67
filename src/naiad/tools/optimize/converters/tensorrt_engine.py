"""To TensorRT engines, from ONNX: FP32, TF32, FP16, BF16 and int8 with Q/DQ nodes.

TensorRT 11 has strongly typed networks only: the graph says the precision. So FP16 and int8 are conversions of the
ONNX graph, for older releases as well. BF16 is a flag of the builder, which TensorRT 10 is the last to have.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from naiad.tools.optimize.converters.conversion_job import ConversionJob
from naiad.tools.optimize.converters.onnx import graph_conversions

_TIMING_CACHE = "tensorrt-timing.cache"
_SYMMETRIC = {"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False}
"""TensorRT has no zero points, and no int32 biases."""

Shapes = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Smallest, typical and largest, with the batch dimension."""


def convert(job: ConversionJob) -> None:
    """Write model.plan, and the timings of kernels to a cache in the workspace, which the next engine starts with.

    Raises ValueError if the graph or a shape does not suit TensorRT, RuntimeError if no engine can be built.
    """
    import tensorrt

    messages = _messages(tensorrt)
    builder = tensorrt.Builder(messages)
    network = builder.create_network(_creation_flags(tensorrt, job.precision))
    _parse(tensorrt, network, messages, _typed_graph(job))
    config = builder.create_builder_config()
    _set_precision(tensorrt, config, job.precision)
    _add_profile(builder, config, network, job)
    cache = timing_cache_file(job)
    config.set_timing_cache(config.create_timing_cache(cache.read_bytes() if cache.exists() else b""), False)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise RuntimeError(f"TensorRT builds no engine: {messages.text}")
    Path(job.output, "model.plan").write_bytes(engine)
    _replace(cache, bytes(config.get_timing_cache().serialize()))


def timing_cache_file(job: ConversionJob) -> Path:
    """Return the file with timings of kernels, in the workspace: two folders above the samples."""
    return Path(job.samples).parent.parent / _TIMING_CACHE


def profile_shapes(name: str, dims: Sequence[int], shapes: Shapes) -> Shapes | None:
    """Return the shapes of an input for the profile, None if all its dimensions are fixed.

    A fixed dimension stays as it is: a batch, for which a server fills up or splits requests. Raises ValueError if
    another dimension of the samples differs from it.
    """
    low, typical, high = shapes
    if len(dims) != len(low):
        raise ValueError(f"input '{name}' has {len(dims)} dimensions in the graph, {len(low)} in the samples")
    for axis, size in enumerate(dims):
        if axis and size >= 0 and not low[axis] == high[axis] == size:
            found = f"{low[axis]} to {high[axis]}" if low[axis] != high[axis] else str(low[axis])
            raise ValueError(
                f"input '{name}' has the fixed size {size} at dimension {axis}, the samples have {found}; export the "
                "graph with a free dimension"
            )
    if -1 not in dims:
        return None
    low, typical, high = (
        [wanted if size < 0 else size for size, wanted in zip(dims, shape, strict=True)]
        for shape in (low, typical, high)
    )
    return low, typical, high


def _typed_graph(job: ConversionJob) -> str:
    """Return a file whose tensors have the types of the precision."""
    if job.precision not in ("fp16", "int8"):
        return job.source
    file = str(Path(job.output).parent / "typed.onnx")
    if job.precision == "fp16":
        graph_conversions.to_half(job, file)
    else:
        settings = {"calibration": "entropy", **job.settings}
        graph_conversions.quantize_static(replace(job, settings=settings), file, "QInt8", _SYMMETRIC)
    return file


def _creation_flags(tensorrt: Any, precision: str) -> int:
    """Return the flags of the network: strongly typed unless the builder chooses BF16."""
    flag = getattr(tensorrt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None or precision == "bf16" else 1 << int(flag)


def _set_precision(tensorrt: Any, config: Any, precision: str) -> None:
    flags = tensorrt.BuilderFlag
    if precision == "tf32":
        config.set_flag(flags.TF32)
    else:
        config.clear_flag(flags.TF32)  # It is on by default.
    if precision == "bf16":
        if not hasattr(flags, "BF16"):
            raise ValueError(
                f"TensorRT {tensorrt.__version__} takes BF16 from the graph only, and no converter makes such a "
                "graph: install tensorrt<11, or use tensorrt-fp16"
            )
        config.set_flag(flags.BF16)


def _parse(tensorrt: Any, network: Any, messages: Any, file: str) -> None:
    parser = tensorrt.OnnxParser(network, messages)
    if not parser.parse_from_file(file):
        errors = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        raise ValueError(f"TensorRT cannot read the graph: {'; '.join(errors) or messages.text}")


def _add_profile(builder: Any, config: Any, network: Any, job: ConversionJob) -> None:
    wanted: Mapping[str, Shapes] = job.settings.get("profile") or job.ranges
    profile = builder.create_optimization_profile()
    has_shapes = False
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        if tensor.name not in wanted:
            known = ", ".join(wanted) or "none"
            raise ValueError(f"input '{tensor.name}' of the graph has no samples, the samples have {known}")
        shapes = profile_shapes(tensor.name, tuple(tensor.shape), wanted[tensor.name])
        if shapes is not None:
            profile.set_shape(tensor.name, *shapes)
            has_shapes = True
    if has_shapes:
        config.add_optimization_profile(profile)


def _messages(tensorrt: Any) -> Any:
    """Return a logger that keeps errors, since calls return None or False without a reason."""

    class Messages(tensorrt.ILogger):  # type: ignore[misc]  # a class of TensorRT, which has no types
        def __init__(self) -> None:
            tensorrt.ILogger.__init__(self)
            self.errors: list[str] = []

        @property
        def text(self) -> str:
            return "; ".join(self.errors[-3:]) or "it gave no reason"

        def log(self, severity: Any, message: str) -> None:
            print(f"TensorRT: {message}")
            if severity in (tensorrt.ILogger.Severity.ERROR, tensorrt.ILogger.Severity.INTERNAL_ERROR):
                self.errors.append(message.strip())

    return Messages()


def _replace(file: Path, content: bytes) -> None:
    unfinished = file.with_name(f"{file.name}.{os.getpid()}")
    unfinished.write_bytes(content)
    unfinished.replace(file)
