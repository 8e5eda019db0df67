"""The tensors of a model, as samples are made for them: datatypes, and shapes without the batch dimension."""

import math
from dataclasses import dataclass

from naiad.config.model_config_pb2 import ModelInput
from naiad.core.datatype import DataType
from naiad.core.tensor import Shape, TensorSpec

_LAYOUTS = {ModelInput.FORMAT_NHWC: "NHWC", ModelInput.FORMAT_NCHW: "NCHW"}


class InputError(ValueError):
    """The inputs of a plan do not fit its model; the text names the place, what is expected, and the fix."""


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """An input or output of a model."""

    name: str
    datatype: DataType
    dims: Shape
    """Of one sample, without the batch dimension; -1 for a size that neither the model nor the plan gives."""
    is_batched: bool = False
    """Requests have a batch dimension before `dims`."""
    is_optional: bool = False
    layout: str = ""
    """`NHWC` or `NCHW` for images, if the configuration says so."""
    warm_up_dims: Shape = ()
    """Of the first sample of `model_warmup` in the configuration that has the input; () without one."""
    null_is_nan: bool = False
    """A null is NaN: the model was trained with missing values."""

    def shape_of(self, count: int, shape: Shape | None, where: str) -> Shape:
        """Return the shape of a sample of `count` elements, which its source may state. Raises InputError."""
        if shape is not None:
            self.check(shape, where)
        else:
            shape = self._inferred(count, where)
        if math.prod(shape) != count:
            raise InputError(f"{where}: expected {math.prod(shape)} values for shape {list(shape)}, got {count}")
        return shape

    def check(self, shape: Shape, where: str) -> None:
        """Check that a sample may have a shape. Raises InputError."""
        if not fits(shape, self.dims):
            raise InputError(
                f"{where}: expected shape {list(self.dims)}, without a batch dimension, got {list(shape)}"
            )

    def _inferred(self, count: int, where: str) -> Shape:
        known = math.prod(dim for dim in self.dims if dim != -1)
        variable = self.dims.count(-1)
        if not variable:
            return self.dims
        if variable > 1 or not known:
            raise InputError(
                f"{where}: the model's shape {list(self.dims)} has variable dimensions; give them with "
                f"{self.example_flag}, or as a 'shape' beside the 'content' in JSON data"
            )
        if count % known:
            raise InputError(
                f"{where}: {count} values do not fill shape {list(self.dims)}; expected a multiple of {known}"
            )
        return tuple(count // known if dim == -1 else dim for dim in self.dims)

    @property
    def example_flag(self) -> str:
        """A `--shape` flag that gives all dimensions."""
        return f"--shape {self.name}:{','.join(str(1 if dim == -1 else dim) for dim in self.dims)}"


def model_tensor(spec: TensorSpec, hint: ModelInput | None, *, is_batching: bool) -> ModelTensor:
    """Return the tensor of a model's metadata; `hint` is the input in its configuration, None for an output."""
    has_batch = is_batching and not (hint is not None and hint.is_shape_tensor)
    dims = spec.shape[1:] if has_batch else spec.shape
    if hint is None:
        return ModelTensor(spec.name, spec.datatype, dims, has_batch)
    return ModelTensor(spec.name, spec.datatype, dims, has_batch, hint.optional, _LAYOUTS.get(hint.format, ""))


def fits(shape: Shape, dims: Shape) -> bool:
    """Return whether a shape has the sizes of `dims`, of which -1 allows any."""
    return len(shape) == len(dims) and all(
        size >= 0 and dim in (-1, size) for size, dim in zip(shape, dims, strict=True)
    )
