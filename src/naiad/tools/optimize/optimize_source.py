"""What is optimized: a model and samples of its inputs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from naiad.core.tensor import Array, TensorSpec


class Format(Enum):
    """The format of a model, as a source or as a candidate."""

    PYTHON = "python"
    """A callable from arrays by name to arrays by name."""
    TORCH = "torch"
    """An `nn.Module` in memory."""
    TORCHSCRIPT = "torchscript"
    TORCH_EXPORT = "torch_export"
    AOT_INDUCTOR = "aot_inductor"
    ONNX = "onnx"
    SAVED_MODEL = "saved_model"
    KERAS = "keras"
    LITERT = "litert"
    OPENVINO = "openvino"
    SKLEARN = "sklearn"
    XGBOOST = "xgboost"
    LIGHTGBM = "lightgbm"
    TREELITE = "treelite"
    TENSORRT = "tensorrt"


BACKENDS: Mapping[Format, str] = {
    Format.TORCH: "pytorch",
    Format.TORCHSCRIPT: "pytorch",
    Format.TORCH_EXPORT: "pytorch",
    Format.AOT_INDUCTOR: "pytorch",
    Format.ONNX: "onnxruntime",
    Format.SAVED_MODEL: "tensorflow",
    Format.KERAS: "tensorflow",
    Format.LITERT: "litert",
    Format.OPENVINO: "openvino",
    Format.SKLEARN: "sklearn",
    Format.XGBOOST: "trees",
    Format.LIGHTGBM: "trees",
    Format.TREELITE: "trees",
    Format.TENSORRT: "tensorrt",
}
"""The backend that executes models of each format."""


@dataclass(frozen=True, slots=True)
class Source:
    """The model that all candidates must equal."""

    name: str
    format: Format
    path: Path
    """The file or folder; a model in memory is saved to a workspace first, so that converters run in subprocesses."""
    inputs: tuple[TensorSpec, ...] = ()
    """Names, datatypes and shapes with -1 for dimensions that vary in the samples."""
    outputs: tuple[TensorSpec, ...] = ()
    has_batch: bool = True
    """The first dimension of all tensors counts samples."""
    operator_library: str = ""
    """Library of custom operators that the model and its conversions need, for `config.pbtxt`."""
    load: Callable[[], Any] | None = None
    """Returns the model, where it cannot be read from `path`: Python callables."""


class Samples(Protocol):
    """Samples of inputs that can be read several times; need not fit in memory."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        """Return the samples, arrays by input name, without the batch dimension if the model has one."""


@dataclass(frozen=True, slots=True)
class ShapeRange:
    """The shapes of an input in the samples, per axis, with the batch dimension."""

    minimum: tuple[int, ...]
    typical: tuple[int, ...]
    maximum: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Labels:
    """The right answers of samples, for a metric of the user."""

    output: str
    values: Any = field(default=None)
