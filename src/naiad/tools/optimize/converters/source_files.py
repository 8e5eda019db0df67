"""The source as it is, under the file name that naiad's backend looks for."""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from naiad.tools.optimize.converters.conversion_job import ConversionJob

_NAMES = {
    "onnx": "model.onnx",
    "torch": "model.pt",
    "torchscript": "model.pt",
    "torch_export": "model.pt2",
    "aot_inductor": "model.pt2",
    "saved_model": "model.savedmodel",
    "litert": "model.tflite",
    "openvino": "model.xml",
    "lightgbm": "model.txt",
    "treelite": "checkpoint.tl",
    "tensorrt": "model.plan",
}
_OWN_SUFFIX = {"keras": "model", "sklearn": "model", "xgboost": "xgboost"}
"""Formats with several kinds of files, distinguished by their suffix."""
_PICKLES = (".joblib", ".pkl")


def convert(job: ConversionJob) -> Mapping[str, str]:
    """Copy the source, with the file of weights beside it, and return the parameters of the backend."""
    source = Path(job.source)
    name = _NAMES.get(job.format) or f"{_OWN_SUFFIX[job.format]}{source.suffix}"
    target = Path(job.output, name)
    if source.is_dir():
        shutil.copytree(source, target)
        return {}
    shutil.copyfile(source, target)
    if job.format == "openvino":
        shutil.copyfile(source.with_suffix(".bin"), target.with_suffix(".bin"))
    if job.format == "onnx":
        _copy_external_data(source, target)
    if source.suffix in _PICKLES:
        # The server executes the code of this pickle only; the user has named the file.
        return {"sha256": hashlib.sha256(target.read_bytes()).hexdigest()}
    return {}


def _copy_external_data(source: Path, target: Path) -> None:
    """Copy the files that the graph refers to: their names stay."""
    for name in (f"{source.name}.data", f"{source.name}_data"):
        if source.with_name(name).is_file():
            shutil.copyfile(source.with_name(name), target.with_name(name))
