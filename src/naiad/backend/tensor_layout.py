"""What a request header and a configuration say about tensors: which go in and in what shape, which come out.

Batch inputs are tensors that the server adds to a ragged batch, made from the shapes of its requests.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from naiad.config.model_config_pb2 import BatchInput, ModelConfig, ModelInput, ModelOutput
from naiad.core.datatype import BY_CONFIG_NUMBER, DataType
from naiad.core.request import RequestHeader
from naiad.core.tensor import Array, Buffer, Shape, TensorSpec, to_array

if TYPE_CHECKING:
    from naiad.core.response import ResponseHeader

Dtype: TypeAlias = np.dtype[Any]

MAX_RESPONSE_HEADERS = 64
"""Response headers that one layout keeps; a model whose output shapes vary without end must not fill the memory."""


def carry_dims(actual: Shape, pattern: Shape, target: Shape) -> Shape:
    """Return `target` with its -1s replaced, in order, by the dimensions of `actual` where `pattern` has -1."""
    free = iter([size for size, dim in zip(actual, pattern, strict=True) if dim < 0])
    return tuple(next(free) if dim < 0 else dim for dim in target)


def shape_text(shape: Shape) -> str:
    """Return a shape for messages, as configurations write it."""
    return "[" + ",".join(map(str, shape)) + "]"


class TensorConfig:
    """One configured input or output.

    `dims` are what clients see, `model_dims` what the model sees; they differ when the tensor has a `reshape`.
    """

    __slots__ = ("datatype", "dims", "is_ragged", "model_dims", "name", "optional", "scatter_source")

    def __init__(self, tensor: ModelInput | ModelOutput) -> None:
        self.name = tensor.name
        self.datatype: DataType = BY_CONFIG_NUMBER[tensor.data_type]
        self.dims: Shape = tuple(tensor.dims)
        self.model_dims: Shape = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else self.dims
        self.optional = isinstance(tensor, ModelInput) and tensor.optional
        self.is_ragged = False
        """The model sees the elements of the whole batch in one dimension."""
        self.scatter_source = ""
        """The input whose shape says how an output is cut into responses; empty for one that is cut by rows."""

    def to_model(self, tail: Shape) -> Shape:
        """Return the model's shape for a client's, both without batch dimension."""
        return tail if self.model_dims == self.dims else carry_dims(tail, self.dims, self.model_dims)

    def to_client(self, tail: Shape) -> Shape | None:
        """Return the client's shape for the model's; None when `tail` cannot be what the reshape is written for."""
        if self.model_dims == self.dims:
            return tail
        if not self.model_dims:
            # A scalar; or a model file without the rank, and then the shape of the result is right.
            return tail or self.dims
        if len(tail) != len(self.model_dims):
            return None
        return carry_dims(tail, self.model_dims, self.dims)


class TensorTable:
    """The inputs and outputs of a model in the order of its configuration."""

    __slots__ = ("batch_inputs", "inputs", "is_batching", "is_ragged", "outputs")

    def __init__(self, config: ModelConfig) -> None:
        self.is_batching = config.max_batch_size > 0
        self.inputs = [TensorConfig(tensor) for tensor in config.input]
        self.outputs = [TensorConfig(tensor) for tensor in config.output]
        self.batch_inputs: Sequence[BatchInput] = list(config.batch_input)
        for tensor, source in zip(self.inputs, config.input, strict=True):
            # A single request is as regular as a tensor can be.
            tensor.is_ragged = source.allow_ragged_batch and self.is_batching
        scatter_sources = {
            name: output.source_input[0] for output in config.batch_output for name in output.target_name
        }
        for tensor in self.outputs:
            tensor.scatter_source = scatter_sources.get(tensor.name, "")
        self.is_ragged = bool(self.batch_inputs or scatter_sources or any(tensor.is_ragged for tensor in self.inputs))
        """A batch is more than its requests' rows: something is flattened, added, or cut by an input's shape."""


class InputSlot:
    """One input as a request header has it: where its data is, and the shape that the model sees."""

    __slots__ = ("config", "dtype", "name", "position", "tail")

    def __init__(self, config: TensorConfig, position: int, tail: Shape) -> None:
        self.config = config
        self.name = config.name
        self.position = position
        """Index into `InferRequest.data`."""
        self.tail = tail
        """The model's shape without batch dimension."""
        self.dtype: Dtype | None = None if config.datatype is DataType.BYTES else config.datatype.numpy
        """None for BYTES, whose data is decoded instead of viewed."""


class HeaderLayout:
    """A request header read with a configuration: made once per header, used for every request that has it."""

    __slots__ = (
        "has_destinations",
        "input_shapes",
        "inputs",
        "is_on_device",
        "outputs",
        "response_headers",
        "rows",
        "staying",
        "tails",
    )

    def __init__(self, table: TensorTable, header: RequestHeader) -> None:
        positions = {spec.name: position for position, spec in enumerate(header.inputs)}
        self.input_shapes = {spec.name: spec.shape for spec in header.inputs}
        """As the client wrote them, batch dimension included."""
        self.inputs: list[InputSlot] = []
        for config in table.inputs:
            position = positions.get(config.name)
            if position is not None:
                shape = header.inputs[position].shape
                tail = shape[1:] if table.is_batching else shape
                self.inputs.append(InputSlot(config, position, config.to_model(tail)))
        self.tails = [(slot.name, None if slot.config.is_ragged else slot.tail) for slot in self.inputs]
        """What is equal in all requests of a batch."""
        wanted = {output.name for output in header.outputs}
        self.outputs: Sequence[TensorConfig] = [o for o in table.outputs if not wanted or o.name in wanted]
        self.has_destinations = any(output.shared_memory is not None for output in header.outputs)
        """The client has memory for outputs that it asks for."""
        self.is_on_device = header.is_on_device
        asked = {output.name for output in header.outputs if output.stays_on_device}
        self.staying = frozenset(
            output.name
            for output in self.outputs
            if output.name in asked and output.datatype is not DataType.BYTES and not output.scatter_source
        )
        """Names of the outputs that may stay on their device."""
        self.rows = header.inputs[0].shape[0] if table.is_batching and header.inputs else 1
        self.response_headers: dict[tuple[Shape, ...], ResponseHeader] = {}
        """By the shapes of the outputs, in the order of `outputs`."""


def as_input(name: str, dtype: Dtype | None, shape: Shape, data: Buffer) -> Array:
    """Return input data as an array that compiled code can use: a view where it is aligned, else a copy.

    `dtype` is None for BYTES. Raises InferError(INVALID_ARG) when BYTES do not hold the elements of `shape`.
    """
    if dtype is None:
        return to_array(TensorSpec(name, DataType.BYTES, shape), data)
    array: Array = np.ndarray(shape, dtype, data)
    # Received bodies put tensors at any offset; compiled kernels may rely on alignment.
    return array if array.flags.aligned else array.copy()


# --- batch inputs ---------------------------------------------------------------------------------------------------


def make_batch_inputs(batch_inputs: Sequence[BatchInput], layouts: Sequence[HeaderLayout]) -> dict[str, Array]:
    """Return the batch inputs of a model by name, for a batch of requests with these layouts."""
    inputs: dict[str, Array] = {}
    for batch_input in batch_inputs:
        shapes = [layout.input_shapes[batch_input.source_input[0]] for layout in layouts]
        made = _MAKERS[batch_input.kind](shapes).astype(BY_CONFIG_NUMBER[batch_input.data_type].numpy, copy=False)
        for name in batch_input.target_name:
            inputs[name] = made
    return inputs


def _element_count(shapes: Sequence[Shape]) -> Array:
    return np.array([math.prod(shape) for shape in shapes], np.int32)


def _accumulated_element_count(shapes: Sequence[Shape]) -> Array:
    return np.cumsum(_element_count(shapes), dtype=np.int32)


def _accumulated_element_count_with_zero(shapes: Sequence[Shape]) -> Array:
    return np.cumsum([0, *map(math.prod, shapes)], dtype=np.int32)


def _max_element_count_as_shape(shapes: Sequence[Shape]) -> Array:
    # Triton: the content is undefined; only the shape has a meaning.
    return np.zeros(max(map(math.prod, shapes)), np.int32)


def _item_shape(shapes: Sequence[Shape]) -> Array:
    items = [shape[1:] for shape in shapes for _ in range(shape[0])]
    return np.array(items, np.int32).reshape(len(items), len(shapes[0]) - 1)


def _item_shape_flatten(shapes: Sequence[Shape]) -> Array:
    return _item_shape(shapes).reshape(-1)


_MAKERS: Mapping[int, Callable[[Sequence[Shape]], Array]] = {
    BatchInput.BATCH_ELEMENT_COUNT: _element_count,
    BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT: _accumulated_element_count,
    BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: _accumulated_element_count_with_zero,
    BatchInput.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE: _max_element_count_as_shape,
    BatchInput.BATCH_ITEM_SHAPE: _item_shape,
    BatchInput.BATCH_ITEM_SHAPE_FLATTEN: _item_shape_flatten,
}
"""Kind to the tensor that it makes from the shapes of the source input, one per request, batch dimension included.

Counts are a request's, however many rows it has; item shapes are a row's.
"""
