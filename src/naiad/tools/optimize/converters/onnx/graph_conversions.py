"""From ONNX to ONNX: simplified, optimized offline, in half precision, in int8."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from naiad.tools.optimize.converters.conversion_job import ConversionJob
from naiad.tools.optimize.converters.onnx import node_errors
from naiad.tools.optimize.samples.chunks import Arrays

_LARGEST_BYTES = 2**31 - 2**20
"""protobuf has no messages above 2 GiB; larger graphs need files of weights."""


_MIXED_ERROR = 5e-3
"""Relative error of a node in FP16 above which `mixed` keeps it in FP32; that of one rounding is 5e-4 at most."""
_CAST = re.compile(r"_cast_to_fp(16|32)_node$|^graph_(input|output)_cast\d+$")
"""Names of casts that the converter to FP16 adds."""
_FLOAT, _FLOAT16 = 1, 10
_OPSET_WITH_AXIS = 13
_PARAMETERS = {"session.x64quantprecision": "1"}
"""Sums of int8 products overflow on x64 processors without VNNI instructions; ONNX Runtime then takes other ones."""


def convert(job: ConversionJob) -> Mapping[str, str]:
    """Write model.onnx, and return the parameters of the backend."""
    source, target = job.source, str(Path(job.output, "model.onnx"))
    if job.settings.get("step") == "simplify":
        _simplify(source, target)
    elif job.settings.get("step") == "optimize":
        _optimize(source, target, job.settings["level"])
    elif job.settings.get("step") == "node-errors":
        node_errors.write(job, _prepared(job) if job.settings["is_prepared"] else _named(job.source))
    elif job.precision == "fp16":
        to_half(job, target)
    elif job.precision == "mixed":
        _to_mixed(job, target)
    elif job.precision == "int8_dynamic":
        _quantize_dynamic(job, target)
    elif job.precision == "int8":
        quantize_static(job, target)
    else:
        raise ValueError(f"no conversion from ONNX to ONNX with precision {job.precision}, settings {job.settings}")
    return _PARAMETERS if job.precision in ("int8", "int8_dynamic") else {}


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


def to_half(job: ConversionJob, target: str) -> None:
    """Write the graph in FP16, with inputs and outputs as they are; the nodes in `keep_nodes` stay in FP32."""
    _save_half(_named(job.source), _kept(job), target)


def _save_half(graph: Any, kept: Sequence[str], target: str) -> None:
    from onnxruntime.transformers import float16

    _split_constants(graph, lambda node: node.name in kept or node.op_type in float16.DEFAULT_OP_BLOCK_LIST)
    half = float16.convert_float_to_float16(graph, keep_io_types=True, node_block_list=list(kept))
    _join_kept(half)
    _save(half, target)


def _join_kept(graph: Any) -> None:
    """Pass FP32 from a kept node to the next one: the converter rounds it to FP16 between them."""
    casts = [node for node in graph.graph.node if node.op_type == "Cast" and _CAST.search(node.name)]
    half = {node.output[0]: node.input[0] for node in casts if node.attribute[0].i == _FLOAT16}
    for node in casts:
        if node.attribute[0].i == _FLOAT and node.input[0] in half:
            node.op_type = "Identity"
            node.input[0] = half[node.input[0]]
            del node.attribute[:]


def _split_constants(graph: Any, is_kept: Callable[[Any], bool]) -> None:
    """Copy the constants that kept nodes share with other nodes: the converter leaves shared ones in FP32."""
    constants = {each.name: each for each in graph.graph.initializer}
    shared = {name for node in graph.graph.node if not is_kept(node) for name in node.input if name in constants}
    for node in filter(is_kept, graph.graph.node):
        for index, name in enumerate(node.input):
            if name in shared:
                copy = graph.graph.initializer.add()
                copy.CopyFrom(constants[name])
                copy.name = node.input[index] = f"{node.name}/{index}/{name}"


def _to_mixed(job: ConversionJob, target: str) -> None:
    """Keep the nodes in FP32 whose results overflow FP16 or differ much in it, found on samples."""
    graph = _named(job.source)
    errors = node_errors.errors(job, graph)
    _save_half(graph, [name for name, error in errors.items() if error > _MIXED_ERROR], target)


def _quantize_dynamic(job: ConversionJob, target: str) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(_prepared(job), target, weight_type=QuantType.QInt8, nodes_to_exclude=_kept(job))


def quantize_static(
    job: ConversionJob, target: str, activations: str = "QUInt8", options: Mapping[str, bool] | None = None
) -> None:
    """Write the graph with Q/DQ nodes; `options` are more of ONNX Runtime's quantizer."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType
    from onnxruntime.quantization import quantize_static as quantize

    graph = _prepared(job)
    methods = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
    quantize(
        graph,
        target,
        _reader(job),
        op_types_to_quantize=node_errors.static_types(graph),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType[activations],
        weight_type=QuantType.QInt8,
        per_channel=bool(job.settings.get("per_channel", True)),
        calibrate_method=getattr(CalibrationMethod, methods[job.settings["calibration"]]),
        nodes_to_exclude=_kept(job),
        extra_options={"QDQDisableWeightAdjustForInt32Bias": _has_wide_bias(graph), **(options or {})},
    )


def _has_wide_bias(graph: Any) -> bool:
    """Return whether a bias has several dimensions, for which the quantizer cannot adjust the scales of weights."""
    wide = {each.name for each in graph.graph.initializer if len(each.dims) > 1}
    return any(node.op_type in _WITH_BIAS and set(node.input[2:]) & wide for node in graph.graph.node)


_WITH_BIAS = ("Gemm", "Conv", "ConvTranspose")


def _prepared(job: ConversionJob) -> Any:
    """Return the graph that the precision's converter changes; `keep_nodes` are names of its nodes."""
    if job.precision == "int8":
        return _preprocessed(job)
    graph = _named(job.source)
    if job.precision == "int8_dynamic":
        # Shapes that PyTorch's exporter has noted contradict the shapes of the quantized weights.
        del graph.graph.value_info[:]
        _inline_constants(graph)
    return graph


def _preprocessed(job: ConversionJob) -> Any:
    """Return the graph with fused nodes and known shapes, which static quantization needs."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    file = Path(job.output).parent / "prepared.onnx"
    quant_pre_process(_with_channels(job.source), str(file), skip_symbolic_shape=True)
    graph = _named(str(file))
    file.unlink()
    return graph


def _with_channels(file: str) -> Any:
    """Return the file, or its graph in an opset in which a scale can have an axis, which older ones lack."""
    import onnx
    from onnx import version_converter

    graph = onnx.load(file, load_external_data=False)
    versions = [each.version for each in graph.opset_import if each.domain in ("", "ai.onnx")]
    if not versions or versions[0] >= _OPSET_WITH_AXIS:
        return file
    return version_converter.convert_version(onnx.load(file), _OPSET_WITH_AXIS)


def _named(file: str) -> Any:
    """Return a graph in which all nodes have names, as OpenVINO gives them: that of the first result."""
    import onnx

    graph = onnx.load(file)
    for node in graph.graph.node:
        node.name = node.name or node.output[0]
    return graph


def _inline_constants(graph: Any) -> None:
    """Make initializers of nodes with constants: dynamic quantization finds weights there only."""
    constants = [
        node for node in graph.graph.node if node.op_type == "Constant" and node.attribute[0].name == "value"
    ]
    for node in constants:
        tensor = graph.graph.initializer.add()
        tensor.CopyFrom(node.attribute[0].t)
        tensor.name = node.output[0]
        graph.graph.node.remove(node)


def _kept(job: ConversionJob) -> list[str]:
    return list(job.settings.get("keep_nodes", ()))


def _reader(job: ConversionJob) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # a class without types
        """Samples one by one: calibration keeps the activations of all calls."""

        def __init__(self) -> None:
            is_histogram = job.settings.get("calibration") in ("entropy", "percentile")
            self._calls: Iterator[Arrays] = _of_one_shape(job) if is_histogram else job.batches()

        def get_next(self) -> dict[str, Any] | None:
            call = next(self._calls, None)
            return None if call is None else dict(call)

    return Reader()


def _of_one_shape(job: ConversionJob) -> Iterator[Arrays]:
    """Return the samples with the most frequent shapes: ONNX Runtime's histograms stack activations of all calls."""

    def shapes(call: Arrays) -> tuple[tuple[int, ...], ...]:
        return tuple(array.shape for array in call.values())

    ((most, _),) = Counter(map(shapes, job.batches())).most_common(1)
    return (call for call in job.batches() if shapes(call) == most)


def _save(graph: Any, target: str) -> None:
    import onnx

    is_large = graph.ByteSize() > _LARGEST_BYTES
    onnx.save(graph, target, save_as_external_data=is_large, location="model.onnx.data" if is_large else None)
