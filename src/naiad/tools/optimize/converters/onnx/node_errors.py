"""What each node of an ONNX graph loses in lower precision: an estimate, node by node on a few samples.

The graph runs in FP32 with all tensors as outputs. Then each node runs alone, with its inputs and its result rounded.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from naiad.core.tensor import Array
from naiad.tools.optimize.converters.conversion_job import ConversionJob

_RANGE_SAMPLES = 32
_SAMPLES = 4
_FP16_LARGEST = 65504.0
"""The converter clips constants there."""
_BIAS = 2
"""The input of convolutions and Gemm with a bias, which is an int32 and loses nothing."""

Values = dict[str, Array]
Ranges = Mapping[str, tuple[float, float]]


def write(job: ConversionJob, graph: Any) -> None:
    """Write nodes.json, a list with the name and the error of each node."""
    found = [{"name": name, "error": error} for name, error in errors(job, graph).items()]
    Path(job.output, "nodes.json").write_text(json.dumps(found), encoding="utf-8")


def errors(job: ConversionJob, graph: Any) -> dict[str, float]:
    """Return the errors by name of the nodes that the precision would change, in topological order.

    Constants and nodes with graphs of their own are left out.
    """
    estimate = _Estimate(job, graph)
    found: dict[str, float] = {}
    for values in estimate.runs(_SAMPLES):
        for node in estimate.nodes:
            found[node.name] = max(found.get(node.name, 0.0), estimate.error(node, values))
    return found


def static_types(graph: Any) -> list[str]:
    """Return the types of nodes that become int8 with static ranges.

    Without convolutions, that is in transformers, only products gain: softmax, normalizations and masks of attention
    have ranges that int8 does not resolve.
    """
    from onnxruntime.quantization import registry

    if any(node.op_type.startswith("Conv") for node in graph.graph.node):
        return sorted({*registry.QLinearOpsRegistry, *registry.QDQRegistry})
    return ["Gemm", "MatMul"]


class _Estimate:
    def __init__(self, job: ConversionJob, graph: Any) -> None:
        from onnx import numpy_helper

        self._job = job
        self._graph = graph
        self._constants: Values = {each.name: numpy_helper.to_array(each) for each in graph.graph.initializer}
        self._tensors = _tensors(graph)
        self._session = _session(_with_outputs(graph, self._tensors))
        self._is_half = job.precision in ("fp16", "mixed")
        types = _op_types(job.precision, graph)
        self.nodes = [node for node in graph.graph.node if types(node) and not _has_graph(node)]
        self._runs_of_nodes: dict[str, Callable[[Values], list[Array]] | None] = {}
        self._ranges = self._measured_ranges() if job.precision == "int8" else {}

    def runs(self, count: int) -> Iterator[Values]:
        """Return the values of all tensors, a sample at a time."""
        for call in itertools.islice(self._job.batches(), count):
            found = self._session.run(self._tensors, dict(call))
            yield {**self._constants, **call, **dict(zip(self._tensors, found, strict=True))}

    def error(self, node: Any, values: Values) -> float:
        """Return the relative error of a node's results; 0 for a node that does not run alone."""
        run = self._run_of(node, values)
        if run is None:
            return 0.0
        inputs = {name: values[name] for name in node.input if name in values}
        expected = [values[name] for name in node.output if name in values]
        rounded = {name: np.asarray(self._rounded(node, name, value)) for name, value in inputs.items()}
        found = run(rounded)
        pairs = zip([name for name in node.output if name], found, expected, strict=True)
        results = ((self._rounded_result(name, one), other) for name, one, other in pairs)
        return max((_relative(one, other) for one, other in results), default=0.0)

    def _run_of(self, node: Any, values: Values) -> Callable[[Values], list[Array]] | None:
        if node.name not in self._runs_of_nodes:
            self._runs_of_nodes[node.name] = _alone(node, values, self._graph)
        return self._runs_of_nodes[node.name]

    def _rounded(self, node: Any, name: str, value: Array) -> Array:
        if value.dtype != np.float32:
            return value
        if self._is_half:
            return _half(np.clip(value, -_FP16_LARGEST, _FP16_LARGEST) if self._is(name) else value)
        if self._is(name):
            is_bias = list(node.input).index(name) == _BIAS
            return value if is_bias else _int8(value, _axis(node, value) if self._job.precision == "int8" else None)
        return _uint8(value, self._ranges.get(name) or (float(value.min()), float(value.max())))

    def _rounded_result(self, name: str, value: Array) -> Array:
        if value.dtype != np.float32:
            return value
        if self._is_half:
            return _half(value)
        # Dynamic quantization leaves results in FP32.
        return _uint8(value, self._ranges[name]) if name in self._ranges else value

    def _is(self, name: str) -> bool:
        return name in self._constants

    def _measured_ranges(self) -> Ranges:
        ranges: dict[str, tuple[float, float]] = {}
        for values in self.runs(_RANGE_SAMPLES):
            for name, value in values.items():
                if name not in self._constants and value.dtype == np.float32 and value.size:
                    low, high = ranges.get(name, (0.0, 0.0))
                    ranges[name] = min(low, float(value.min())), max(high, float(value.max()))
        return ranges


def _op_types(precision: str, graph: Any) -> Callable[[Any], bool]:
    """Return which nodes the converter changes."""
    if precision in ("fp16", "mixed"):
        from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST

        return lambda node: node.op_type not in (*DEFAULT_OP_BLOCK_LIST, "Constant", "Shape")
    from onnxruntime.quantization import registry

    types = static_types(graph) if precision == "int8" else [*registry.IntegerOpsRegistry]
    return lambda node: node.op_type in types


def _alone(node: Any, values: Values, graph: Any) -> Callable[[Values], list[Array]] | None:
    """Return a function that runs one node; None if it cannot run with variable inputs, or has no floats."""
    from onnx import ValueInfoProto, helper

    names = list(dict.fromkeys(name for name in node.input if name in values))
    touched = [values[name].dtype == np.float32 for name in (*names, *node.output) if name in values]
    if not any(touched) or any(name and name not in values for name in node.input):
        return None
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(values[name].dtype), [None] * values[name].ndim
        )
        for name in names
    ]
    outputs = [ValueInfoProto(name=name) for name in node.output if name]
    alone = helper.make_graph([node], "node", inputs, outputs)
    try:
        session = _session(helper.make_model(alone, opset_imports=graph.opset_import, ir_version=graph.ir_version))
        session.run(None, {name: values[name] for name in names})
    except Exception as error:  # ONNX Runtime has an exception for each of its states
        print(f"{node.name}: does not run alone: {error}")
        return None
    return lambda inputs: list(session.run(None, inputs))


def _session(graph: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _tensors(graph: Any) -> list[str]:
    return [name for node in graph.graph.node for name in node.output if name]


def _with_outputs(graph: Any, names: list[str]) -> Any:
    from onnx import ModelProto, ValueInfoProto

    copy = ModelProto()
    copy.CopyFrom(graph)
    known = {each.name for each in copy.graph.output}
    copy.graph.output.extend(ValueInfoProto(name=name) for name in names if name not in known)
    return copy


def _has_graph(node: Any) -> bool:
    return any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)


def _axis(node: Any, weights: Array) -> int | None:
    """Return the axis of weights with a scale per channel."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if node.op_type == "Gemm":
        return 0 if any(each.name == "transB" and each.i for each in node.attribute) else 1
    return weights.ndim - 1 if node.op_type == "MatMul" and weights.ndim > 1 else None


def _half(value: Array) -> Array:
    with np.errstate(over="ignore"):
        half: Array = value.astype(np.float16).astype(np.float32)
    return half


def _int8(weights: Array, axis: int | None) -> Array:
    axes = None if axis is None else tuple(each for each in range(weights.ndim) if each != axis)
    scale = np.maximum(np.abs(weights).max(axis=axes, keepdims=True), 1e-30) / 127
    rounded: Array = (np.round(weights / scale) * scale).astype(np.float32)
    return rounded


def _uint8(value: Array, limits: tuple[float, float]) -> Array:
    low, high = min(0.0, limits[0]), max(0.0, limits[1])
    scale = max(high - low, 1e-30) / 255
    return (np.round((np.clip(value, low, high) - low) / scale) * scale + low).astype(np.float32)


def _relative(found: Array, expected: Array) -> float:
    """Return the root mean square of the difference by that of the result; infinite where only one is finite."""
    if expected.dtype != np.float32 or not expected.size:
        return 0.0
    is_finite = np.isfinite(expected)
    if not np.isfinite(found[is_finite]).all():
        return float("inf")
    one, other = (array[is_finite].astype(np.float64) for array in (found, expected))
    return float(np.sqrt(((one - other) ** 2).sum() / max((other**2).sum(), 1e-30)))
