"""The subprocess of one conversion: `python -m naiad.tools.optimize.converters.conversion_child JOB RESULT`."""

import errno
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path

from naiad.tools.optimize.converters.conversion_job import ConversionJob
from naiad.tools.optimize.converters.operators import missing_operator

_MODULES: Mapping[str, str] = {
    "onnx": "onnx.onnx_export",
    "torchscript": "torch_formats",
    "torch_export": "torch_formats",
    "aot_inductor": "torch_formats",
    "openvino": "openvino_ir",
    "litert": "litert",
    "treelite": "forests",
    "tensorrt": "tensorrt_engine",
}
"""Format of the candidate to the module that makes it."""
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
"""Errors that say nothing of what is written."""


def main(job_file: str, result_file: str) -> int:
    """Be the process of a conversion."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    convert(Path(job_file), Path(result_file))
    return 0


def convert(job_file: Path, result_file: Path) -> None:
    """Convert, and write the result: `backend_parameters`, or the `reason` of a failure and a disk that is full."""
    job = ConversionJob.read(job_file)
    result: dict[str, object]
    try:
        result = {"backend_parameters": _convert(job)}
    except Exception as error:
        traceback.print_exc()
        result = {"reason": _reason(error)}
        if isinstance(error, OSError) and error.errno in FULL_DISK:
            result["full_disk"] = str(error.filename or os.getcwd())
    result_file.write_text(json.dumps(result), encoding="utf-8")


def _convert(job: ConversionJob) -> Mapping[str, str]:
    if own := job.settings.get("module"):
        name = own
    elif job.source_format == job.format and not (job.settings or job.precision != "fp32"):
        name = f"{__package__}.source_files"
    elif job.source_format == job.format == "onnx":
        name = f"{__package__}.onnx.graph_conversions"
    else:
        name = f"{__package__}.{_MODULES[job.format]}"
    parameters: Mapping[str, str] | None = importlib.import_module(name).convert(job)
    return parameters or {}


def _reason(error: Exception) -> str:
    operator = missing_operator(f"{type(error).__name__}: {error}")
    lines = [line for line in str(error).splitlines() if line.strip()] or ["no message"]
    text = f"{type(error).__name__}: {' '.join(lines[:3])[:500]}"
    if operator:
        return f"operator {operator} has no counterpart: {text}"
    advice = _advice(error)
    return f"{advice}: {text}" if advice else text


def _advice(error: Exception) -> str:
    """Return a sentence about an error whose library does not say what to do."""
    if isinstance(error, OSError) and error.errno in FULL_DISK:
        return f"no space is left on the disk of {error.filename or os.getcwd()}; free some, or set --workspace"
    return next((advice for words, advice in _ADVICE.items() if words in str(error)), "")


_ADVICE = {
    "Histogram has not been collected": (
        "calibration found no values of some tensor: the samples do not reach it, or are all equal; give more and "
        "other samples with --data, or choose the calibration minmax"
    ),
    "opset": "the package that converts does not know the model's opset; export the model with an earlier one",
    "complex64": "the format has no complex numbers; export real and imaginary part as two tensors",
    "CUDA out of memory": "the GPU has too little memory; free some, or convert on the CPU (CUDA_VISIBLE_DEVICES=)",
}
"""Words of a library -> what to do."""


def end_with_parent() -> None:
    """End this process and its compilers when the parent is gone: it holds the other end of stdin."""
    while os.read(0, 4096):  # sys.stdin has a lock, with which the interpreter would not end
        pass
    os.killpg(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
