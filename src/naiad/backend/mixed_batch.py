"""Batches whose requests differ: in rows, in the order of their tensors, or, with ragged inputs, in shape.

A ragged input reaches the model as the elements of the whole batch in one dimension. What is in there is told by
batch inputs, tensors that the server adds, and an output that follows a ragged input is cut apart by its shapes:

    requests [1,3] [2,2]  ->  DATA [7]: a b c | d e f g   COUNT [2]: 3 4   ->  model  ->  [7]: A B C | D E F G
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from naiad.backend.tensor_layout import HeaderLayout, TensorConfig, TensorTable, as_input
from naiad.config.model_config_pb2 import BatchInput
from naiad.core.datatype import BY_CONFIG_NUMBER
from naiad.core.errors import internal
from naiad.core.request import InferRequest
from naiad.core.tensor import Array, Shape

_join = b"".join


def gather_inputs(
    table: TensorTable, requests: Sequence[InferRequest], layouts: Sequence[HeaderLayout]
) -> dict[str, Array] | None:
    """Return the inputs of a batch, batch inputs included; None when requests differ where nothing is ragged."""
    tails = layouts[0].tails
    if any(layout.tails != tails for layout in layouts):
        return None
    rows = (sum([layout.rows for layout in layouts]),) if table.is_batching else ()
    inputs: dict[str, Array] = {}
    for index, slot in enumerate(layouts[0].inputs):
        parts = [r.data[layout.inputs[index].position] for r, layout in zip(requests, layouts, strict=True)]
        if slot.config.is_ragged:
            shape: Shape = (sum(math.prod(layout.input_shapes[slot.name]) for layout in layouts),)
        else:
            shape = rows + slot.tail
        inputs[slot.name] = as_input(slot.name, slot.dtype, shape, parts[0] if len(parts) == 1 else _join(parts))
    for batch_input in table.batch_inputs:
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
    # Triton leaves the content to chance; only the shape says something.
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
"""Kind to the tensor that it makes from the shapes of the source input, one a request, batch dimension included.

Counts are a request's, however many rows it has; item shapes are a row's.
"""


def cut_output(
    model_name: str, output: TensorConfig, array: Array, layouts: Sequence[HeaderLayout], *, is_batching: bool
) -> list[Array]:
    """Return the part of an output that belongs to each request: by rows, or by the shapes of its source input.

    Raises InferError(INTERNAL) when the elements do not come out even.
    """
    if output.scatter_source:
        return _scatter(model_name, output, array, layouts, is_batching=is_batching)
    if not is_batching:
        return [array]
    parts: list[Array] = []
    start = 0
    for layout in layouts:
        parts.append(array[start : start + layout.rows])
        start += layout.rows
    return parts


def _scatter(
    model_name: str, output: TensorConfig, array: Array, layouts: Sequence[HeaderLayout], *, is_batching: bool
) -> list[Array]:
    pattern = (-1, *output.model_dims) if is_batching else output.model_dims
    shapes = [_fill(pattern, layout.input_shapes[output.scatter_source]) for layout in layouts]
    counts = [math.prod(shape) for shape in shapes]
    if array.size != sum(counts):
        raise internal(
            f"model '{model_name}' returned output '{output.name}' with {array.size} elements, but cut by the shapes "
            f"of input '{output.scatter_source}', as its 'batch_output' says, it should have {sum(counts)}"
        )
    flat = array.reshape(-1)
    parts: list[Array] = []
    start = 0
    for shape, count in zip(shapes, counts, strict=True):
        parts.append(flat[start : start + count].reshape(shape))
        start += count
    return parts


def _fill(pattern: Shape, source: Shape) -> Shape:
    """Return `pattern` with the dimension of `source` at the same place instead of each -1, as Triton does."""
    return tuple(source[axis] if dim < 0 else dim for axis, dim in enumerate(pattern))
