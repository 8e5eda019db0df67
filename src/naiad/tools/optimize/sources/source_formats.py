"""The format of a model file or folder as a source."""

from collections.abc import Mapping
from pathlib import Path

from naiad.backend.pytorch import formats as torch_formats
from naiad.core.errors import InferError
from naiad.repository.stores.model_file import FileKind, file_problem, kind_of
from naiad.tools.optimize.optimize_source import Format

_KINDS: Mapping[str, Format] = {
    "an ONNX model": Format.ONNX,
    "a Python pickle (joblib, scikit-learn)": Format.SKLEARN,
    "a skops file": Format.SKLEARN,
    "a Keras model": Format.KERAS,
    "a TensorFlow Lite model": Format.LITERT,
    "a TensorFlow SavedModel": Format.SAVED_MODEL,
    "an OpenVINO model": Format.OPENVINO,
    "an XGBoost model": Format.XGBOOST,
    "a LightGBM model": Format.LIGHTGBM,
    "a treelite checkpoint": Format.TREELITE,
    "a TensorRT engine": Format.TENSORRT,
}
"""By `FileKind.what`."""
_TORCH: Mapping[torch_formats.PyTorchFormat, Format] = {
    torch_formats.PyTorchFormat.TORCHSCRIPT: Format.TORCHSCRIPT,
    torch_formats.PyTorchFormat.EXPORTED: Format.TORCH_EXPORT,
    torch_formats.PyTorchFormat.AOT_INDUCTOR: Format.AOT_INDUCTOR,
    torch_formats.PyTorchFormat.CHECKPOINT: Format.TORCH,
}
_ACCEPTED = (
    "ONNX, TorchScript, torch.export, AOTInductor, a module of torch.save, a SavedModel folder, Keras, TensorFlow "
    "Lite, OpenVINO, scikit-learn (skops, joblib, pickle), XGBoost, LightGBM, treelite"
)


def detect(path: Path) -> Format:
    """Return the format of a file or folder, by name and content; nothing in it is executed.

    Raises ValueError for a path that does not exist, a damaged file, and a format that is no source.
    """
    if not path.exists():
        raise ValueError(f"{path}: no such file or folder; a source is a model file, or the folder of a SavedModel")
    if problem := file_problem(path):
        raise ValueError(f"{path}: {problem}")
    kind = kind_of(path)
    if kind is not None and kind.backend == "pytorch":
        return _torch_format(path)
    if kind is None or kind.what not in _KINDS:
        raise ValueError(f"{path}: {_found(path, kind)}; expected {_ACCEPTED}")
    if kind.what == "an OpenVINO model" and not path.with_suffix(".bin").is_file():
        raise ValueError(f"{path}: {path.with_suffix('.bin').name}, its weights, is not beside it; copy it there")
    return _KINDS[kind.what]


def refuse_pickle(path: Path, source_format: Format) -> None:
    """Raise ValueError for a file whose load executes code that the file contains."""
    if source_format is Format.TORCH:
        better = "export it with torch.export.save or torch.jit.save"
    elif source_format is Format.SKLEARN and path.suffix != ".skops":
        better = "save the estimator with skops.io.dump as a .skops file"
    else:
        return
    raise ValueError(
        f"{path}: this is a pickle, and loading a pickle executes the code in it; if you trust its author, "
        f"allow it with --allow-pickle (allow_pickle=True); or {better}"
    )


def _torch_format(path: Path) -> Format:
    try:
        return _TORCH[torch_formats.detect_format(path)]
    except InferError as error:
        raise ValueError(error.message) from error


def _found(path: Path, kind: FileKind | None) -> str:
    if kind is not None:
        return f"this is {kind.what}, which is no source; {kind.advice}"
    return "the folder has no saved_model.pb" if path.is_dir() else "the format of the file is unknown"
