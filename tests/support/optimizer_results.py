"""Results of optimizations, built by hand: a source, winners, and candidates that failed in every way."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.measure.result import Interval
from naiad.tools.optimize.candidate import Candidate, Conversion, Precision, Status
from naiad.tools.optimize.optimize_result import CurvePoint, Objective, OptimizationResult, Outcome
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.optimize.results.candidate_measurement import Profile, Runtime, ServedMeasurement
from naiad.tools.optimize.results.verdict import Difference, Verdict

_ENVIRONMENT = {
    "processor": "AMD EPYC 9R14",
    "cores": "2",
    "memory_mib": "7936",
    "system": "Linux 6.8.0 x86_64",
    "python": "3.12.3",
    "naiad": "1.0.0",
    "onnxruntime": "1.24.1",
    "openvino": "2026.4.1",
}
_COMMAND = ("naiad", "optimize", "digits.onnx", "--data", "digits.npz", "--workspace", "work")


def interval(value: float, share: float = 0.03) -> Interval:
    """Return a figure with an interval of that share to each side."""
    return Interval(value, value * (1 - share), value * (1 + share))


def outcome(
    name: str,
    precision: Precision = Precision.FP32,
    *,
    backend: str = "onnxruntime",
    folder: Path = Path("files"),
    latency_us: float = 0.0,
    throughput: float = 0.0,
    worst: float = 0.0,
    is_served: bool = False,
) -> Outcome:
    """Return a candidate that passed."""
    model_format = Format.OPENVINO if backend == "openvino" else Format.ONNX
    candidate = Candidate(name, model_format, precision, backend)
    command = ("python", "-m", "naiad.tools.optimize.converters.conversion_child", f"{name}/job.json", "result.json")
    profiles = []
    for runtime, factor in (("default", 1.0), ("threads-1", 1.4)):
        figures = interval(latency_us * factor), interval(throughput / factor)
        profiles.append(Profile(Runtime(runtime), *figures, 16, 0.2, 41.0 * (4 if worst == 0 else 1)))
    served = ServedMeasurement(
        Runtime("default", {"intra_op_thread_count": "2"}), interval(latency_us + 180), latency_us * 9,
        interval(throughput * 0.9, 0.05), 16, 16, 96.0, f"naiad perf -m {name} --concurrency-range 16",
    )  # fmt: skip
    return Outcome(
        candidate,
        Status.PASSED,
        conversion=Conversion(candidate, Status.CONVERTED, folder, 3.1, 410.0, command),
        verdict=Verdict(True, (), {"scores": worst}, {"scores": worst * 2}, {"scores": 1.0}, samples=500),
        profiles=profiles if latency_us else (),
        served=served if is_served else None,
    )


def rejected(name: str, precision: Precision) -> Outcome:
    """Return a candidate with other answers than the source's."""
    message = (
        "output 'scores' of sample 17, element [0, 3]: the candidate has 0.118, the source 0.874; "
        "allowed is a difference of 0.25"
    )
    difference = Difference("scores", "values", 17, (0, 3), 0.874, 0.118, 0.25, message)
    good = outcome(name, precision)
    verdict = Verdict(False, (difference,), {"scores": 0.756}, {"scores": 1.9}, {"scores": 0.81}, samples=500)
    points = [
        CurvePoint((), 1.0, 1.9, False, 410.0),
        CurvePoint(("conv1", "conv2", "fc"), 0.4, 0.04, True, 900.0),
        CurvePoint(("conv1", "fc"), 0.6, 0.06, True, 760.0),
        CurvePoint(("conv1",), 0.8, 0.21, True, 540.0),
    ]
    return replace(good, status=Status.REJECTED, reason=message, verdict=verdict, curve=points)


def failed(name: str, reason: str, status: Status = Status.FAILED) -> Outcome:
    """Return a candidate without files."""
    candidate = Candidate(name, Format.LITERT, Precision.FP32, "litert")
    return Outcome(candidate, status, reason)


def result(*outcomes: Outcome, winner: str = "", **changes: Any) -> OptimizationResult:
    """Return a result; without outcomes, of all kinds of candidates."""
    tensors = TensorSpec("image", DataType.FP32, (-1, 64)), TensorSpec("scores", DataType.FP32, (-1, 10))
    made = outcomes or (
        outcome("source", latency_us=1240, throughput=1900, is_served=True),
        outcome("onnx-optimized-all", latency_us=1010, throughput=2300, worst=3e-7),
        outcome("onnx-fp16", Precision.FP16, latency_us=1720, throughput=1200, worst=4e-4),
        outcome(
            "openvino-fp32", backend="openvino", latency_us=690, throughput=4100, worst=5e-7, is_served=True
        ),
        outcome(
            "openvino-int8", Precision.INT8, backend="openvino", latency_us=420, throughput=6900, worst=0.02,
            is_served=True,
        ),
        rejected("onnx-int8-minmax", Precision.INT8),
        failed("litert-float", "operator GridSample has no counterpart: TransformError"),
        failed("tensorrt-fp16", "there is no GPU", Status.NOT_RUN),
    )  # fmt: skip
    values: Mapping[str, Any] = {
        "source": Source("digits", Format.ONNX, Path("digits.onnx"), tensors[:1], tensors[1:]),
        "objective": Objective(),
        "outcomes": made,
        "winner": winner or ("" if outcomes else "openvino-int8"),
        "why": "openvino-int8 serves 6210 inferences/s, 3.6 times the source, at a latency 2.4 times lower.",
        "samples": 500,
        "samples_digest": "ab" * 32,
        "source_digest": "cd" * 32,
        "started": "2026-05-04T09:12:44+00:00",
        "duration_s": 331.0,
        "command": _COMMAND,
        "environment": _ENVIRONMENT,
    }
    return OptimizationResult(**{**values, **changes})
