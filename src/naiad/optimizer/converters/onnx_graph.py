"""From ONNX to ONNX: simplified, optimized offline, in half precision, in int8."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from naiad.optimizer.converters.job import Job

if TYPE_CHECKING:
    from naiad.optimizer.sample_chunks import Arrays

_LARGEST_BYTES = 2**31 - 2**20
"""protobuf has no messages above 2 GiB; larger graphs need files of weights."""


def convert(job: Job) -> None:
    """Write model.onnx."""
    source, target = job.source, str(Path(job.output, "model.onnx"))
    if job.settings.get("step") == "simplify":
        _simplify(source, target)
    elif job.settings.get("step") == "optimize":
        _optimize(source, target, job.settings["level"])
    elif job.precision == "fp16":
        _to_half(job, target)
    elif job.precision == "mixed":
        _to_mixed(job, target)
    elif job.precision == "int8_dynamic":
        _quantize_dynamic(job, target)
    elif job.precision == "int8":
        _quantize_static(job, target)
    else:
        raise ValueError(f"no conversion from ONNX to ONNX with precision {job.precision}, settings {job.settings}")


def _simplify(source: str, target: str) -> None:
    import onnxslim

    _save(onnxslim.slim(source), target)


def _optimize(source: str, target: str, level: str) -> None:
    """Save what ONNX Runtime makes of the graph at load. Level "all" fits the processor that it ran on only."""
    import onnxruntime

    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(levels, f"ORT_ENABLE_{level.upper()}")
    options.optimized_model_filepath = target
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _to_half(job: Job, target: str) -> None:
    import onnx
    from onnxconverter_common import float16

    nodes = list(job.settings.get("keep_nodes", ())) or None
    half = float16.convert_float_to_float16(onnx.load(job.source), keep_io_types=True, node_block_list=nodes)
    _save(half, target)


def _to_mixed(job: Job, target: str) -> None:
    """Keep the nodes in FP32 whose results overflow FP16 or differ much in it, found on a sample."""
    import numpy as np
    import onnx
    from onnxconverter_common import auto_mixed_precision

    half = auto_mixed_precision.auto_convert_mixed_precision(
        onnx.load(job.source),
        dict(job.example()),
        validate_fn=lambda full, found: all(
            np.allclose(one, other, rtol=0.01, atol=0.001) for one, other in zip(full, found, strict=True)
        ),
        keep_io_types=True,
    )
    _save(half, target)


def _quantize_dynamic(job: Job, target: str) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(job.source)
    # Shapes that PyTorch's exporter has noted contradict the shapes of the quantized weights.
    del model.graph.value_info[:]
    kept = list(job.settings.get("keep_nodes", ()))
    quantize_dynamic(model, target, weight_type=QuantType.QInt8, nodes_to_exclude=kept)


def _quantize_static(job: Job, target: str) -> None:
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    methods = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
    prepared = str(Path(job.output).parent / "prepared.onnx")
    quant_pre_process(job.source, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared,
        target,
        _reader(job),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=bool(job.settings.get("per_channel", True)),
        calibrate_method=getattr(CalibrationMethod, methods[job.settings["calibration"]]),
        nodes_to_exclude=list(job.settings.get("keep_nodes", ())),
    )
    Path(prepared).unlink()


def _reader(job: Job) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """Samples one by one: calibration keeps the activations of all calls."""

        def __init__(self) -> None:
            self._calls: Iterator[Arrays] = job.batches()

        def get_next(self) -> dict[str, Any] | None:
            call = next(self._calls, None)
            return None if call is None else dict(call)

    return Reader()


def _save(graph: Any, target: str) -> None:
    import onnx

    is_large = graph.ByteSize() > _LARGEST_BYTES
    onnx.save(graph, target, save_as_external_data=is_large, location="model.onnx.data" if is_large else None)
