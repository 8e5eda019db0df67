"""Batch inputs: tensors that the server adds to a ragged batch, made from the shapes of its requests."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from naiad.backend.tensor_layout import HeaderLayout
from naiad.config.model_config_pb2 import BatchInput
from naiad.core.datatype import BY_CONFIG_NUMBER
from naiad.core.tensor import Array, Shape


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
