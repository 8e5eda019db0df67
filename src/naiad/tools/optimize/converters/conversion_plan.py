"""Which conversions make sense for a source, and which of them cannot run here."""

import functools
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from naiad.tools.optimize.candidate import Candidate, Precision
from naiad.tools.optimize.optimize_source import BACKENDS, Format, ShapeRange, Source
from naiad.tools.process.running import run_checked

_P = Precision
_OPSET = 17
_TREES = (Format.XGBOOST, Format.LIGHTGBM, Format.SKLEARN)

_TO_ONNX: Mapping[Format, tuple[str, ...]] = {
    Format.TORCH: ("torch", "onnx", "onnxscript"),
    Format.TORCHSCRIPT: ("torch", "onnx"),
    Format.TORCH_EXPORT: ("torch", "onnx", "onnxscript"),
    Format.SAVED_MODEL: ("tensorflow", "tf2onnx"),
    Format.KERAS: ("tensorflow", "tf2onnx"),
    Format.LITERT: ("tensorflow", "tf2onnx"),
    Format.SKLEARN: ("scikit-learn", "skl2onnx"),
    Format.XGBOOST: ("xgboost", "onnxmltools"),
    Format.LIGHTGBM: ("lightgbm", "onnxmltools"),
}
_EXTRAS: Mapping[str, str] = {
    "torch": "naiad[torch]",
    "tensorflow": "naiad[tensorflow]",
    "openvino": "naiad[openvino]",
    "xgboost": "naiad[trees]",
    "lightgbm": "naiad[trees]",
    "treelite": "naiad[trees]",
    "scikit-learn": "naiad[sklearn]",
    "tensorrt": "naiad[tensorrt]",
    "nncf": "nncf",
}
_BUILD = re.compile(r"-(cpu|cu\d+)$")
_LIST_S = 60.0
_LIST_PACKAGES = """
import importlib.metadata, json
print(json.dumps({each.name: each.version for each in importlib.metadata.distributions() if each.name}))
"""


def candidates(
    source: Source,
    ranges: Mapping[str, ShapeRange],
    available_packages: Collection[str],
    devices: Collection[str] = ("cpu",),
) -> list[Candidate]:
    """Return all conversions for the source, each after the one whose files it is made from.

    `available_packages` are names as in `installed_packages`, `devices` of "cpu" and "gpu". `not_run` of a candidate
    has the reason if a package, a GPU, or the candidate that it is made from is missing. A Python callable has none.
    """
    planned: dict[str, Candidate] = {}
    for candidate in _all(source, ranges):
        reason = _obstacle(candidate, planned, available_packages, devices)
        is_float32 = source.format in _TREES and candidate.format is Format.ONNX
        planned[candidate.name] = replace(candidate, not_run=reason, is_float32=is_float32)
    return list(planned.values())


def effort(candidate: Candidate) -> float:
    """Return about how long a conversion takes, in conversions that copy or optimize a graph."""
    if candidate.format is Format.TENSORRT or candidate.settings.get("max_autotune"):
        return 30.0
    if candidate.precision is Precision.INT8:
        return {"minmax": 4.0, "percentile": 12.0, "entropy": 12.0}.get(
            candidate.settings.get("calibration", ""), 8.0
        )
    if candidate.precision is Precision.MIXED or candidate.format is Format.AOT_INDUCTOR:
        return 6.0
    return 1.0 if candidate.precision is Precision.FP32 else 2.0


def installed_packages(python: Path | None = None) -> dict[str, str]:
    """Return the versions of installed packages by normalized name, of another interpreter if one is given.

    Builds for CPUs or a CUDA also count under the name without "-cpu", "-cu12", and so on. Raises OSError or
    ProcessError if the interpreter does not run.
    """
    if python is None:
        found = _own_packages(tuple((place, _changed_ns(place)) for place in sys.path))
    else:
        found = json.loads(run_checked([str(python), "-c", _LIST_PACKAGES], _LIST_S).splitlines()[-1])
    names = {name.lower().replace("_", "-"): version for name, version in found.items()}
    return {**{_BUILD.sub("", name): version for name, version in names.items()}, **names}


@functools.lru_cache(maxsize=1)
def _own_packages(_: Sequence[tuple[str, int]]) -> Mapping[str, str]:
    """Return the packages of this process, for folders that have changed at these times.

    Each conversion asks, and to read the metadata of some hundred packages takes a second. What a user installs in a
    session changes a folder.
    """
    documents = (each.metadata for each in importlib.metadata.distributions())
    return {name: each["Version"] for each in documents if (name := each["Name"])}


def _changed_ns(place: str) -> int:
    try:
        return os.stat(place or ".").st_mtime_ns
    except OSError:
        return 0


def _all(source: Source, ranges: Mapping[str, ShapeRange]) -> Iterator[Candidate]:
    if source.format is Format.PYTHON:
        return
    if source.format is not Format.TORCH:
        yield _candidate("source", source.format, _P.FP32)
    yield from _torch(source.format)
    yield from _tensorflow(source.format)
    if source.format in _TREES:
        framework = "scikit-learn" if source.format is Format.SKLEARN else source.format.value
        yield _candidate("treelite", Format.TREELITE, _P.FP32, needs=("treelite", framework))
    base = "source"
    if source.format in _TO_ONNX:
        base = "onnx-fp32"
        yield _candidate(base, Format.ONNX, _P.FP32, needs=_TO_ONNX[source.format], settings={"opset": _OPSET})
    if source.format not in _TREES and (source.format is Format.ONNX or base != "source"):
        yield from _from_onnx(base, ranges)


def _torch(source: Format) -> Iterator[Candidate]:
    if source is Format.TORCH:
        yield _candidate("torchscript", Format.TORCHSCRIPT, _P.FP32, needs=("torch",))
        yield _candidate("torch-export", Format.TORCH_EXPORT, _P.FP32, needs=("torch",))
    if source in (Format.TORCH, Format.TORCH_EXPORT):
        yield _candidate("aot-inductor", Format.AOT_INDUCTOR, _P.FP32, needs=("torch",))
        tuned = {"max_autotune": True}
        yield _candidate("aot-inductor-tuned", Format.AOT_INDUCTOR, _P.FP32, needs=("torch",), settings=tuned)


def _tensorflow(source: Format) -> Iterator[Candidate]:
    if source in (Format.SAVED_MODEL, Format.KERAS):
        for precision in (_P.FP32, _P.FP16, _P.INT8_DYNAMIC, _P.INT8):
            name = f"litert-{precision.value.replace('_', '-')}"
            yield _candidate(name, Format.LITERT, precision, needs=("tensorflow",))


def _from_onnx(base: str, ranges: Mapping[str, ShapeRange]) -> Iterator[Candidate]:
    """Return what an ONNX graph can become."""

    def onnx(name: str, precision: Precision, *needs: str, **settings: object) -> Candidate:
        return _candidate(f"onnx-{name}", Format.ONNX, precision, base, ("onnx", *needs), settings)

    yield onnx("simplified", _P.FP32, "onnxslim", step="simplify")
    for level in ("basic", "extended", "all"):
        yield onnx(f"optimized-{level}", _P.FP32, "onnxruntime", step="optimize", level=level)
    yield onnx("fp16", _P.FP16, "onnxruntime")
    yield onnx("mixed", _P.MIXED, "onnxruntime")
    yield onnx("int8-dynamic", _P.INT8_DYNAMIC, "onnxruntime")
    for method in ("minmax", "entropy", "percentile"):
        yield onnx(f"int8-{method}", _P.INT8, "onnxruntime", calibration=method)
    for precision, needs in ((_P.FP32, ()), (_P.FP16, ()), (_P.INT8, ("nncf",))):
        yield _candidate(f"openvino-{precision.value}", Format.OPENVINO, precision, base, ("openvino", *needs))
    shapes = {name: [each.minimum, each.typical, each.maximum] for name, each in ranges.items()}
    for precision in (_P.FP32, _P.TF32, _P.FP16, _P.BF16, _P.INT8):
        graph = ("onnx", "onnxruntime") if precision in (_P.FP16, _P.INT8) else ()
        name, packages = f"tensorrt-{precision.value}", ("tensorrt", *graph)
        yield _candidate(name, Format.TENSORRT, precision, base, packages, {"profile": shapes})


def _candidate(
    name: str,
    target: Format,
    precision: Precision,
    after: str = "",
    needs: Sequence[str] = (),
    settings: Mapping[str, object] | None = None,
) -> Candidate:
    return Candidate(name, target, precision, BACKENDS[target], settings or {}, after, tuple(needs))


def _obstacle(
    candidate: Candidate, planned: Mapping[str, Candidate], packages: Collection[str], devices: Collection[str]
) -> str:
    if candidate.after and planned[candidate.after].not_run:
        return f"made from '{candidate.after}', which is not run: {planned[candidate.after].not_run}"
    if candidate.format is Format.TENSORRT and "gpu" not in devices:
        return "needs an NVIDIA GPU, and there is none here"
    missing = [name for name in candidate.needs if name not in packages]
    if not missing:
        return ""
    extras = sorted({_EXTRAS.get(name, "naiad[optimize]") for name in missing})
    return f"needs {', '.join(missing)}: pip install {' '.join(repr(extra) for extra in extras)}"
