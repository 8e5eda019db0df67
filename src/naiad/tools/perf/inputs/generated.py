"""Samples that are made up: random ones within bounds that models tolerate, and zeros."""

import math
import string

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.tensor import Array, Shape
from naiad.tools.perf.inputs.request_signature import InputStep, Signature, Stream
from naiad.tools.perf.perf_plan import InputSettings
from naiad.tools.values.conversion import is_float, strings
from naiad.tools.values.tensor import InputError, ModelTensor

_RANDOM_REQUESTS = 16
"""Different requests that are made once and sent in turn."""
_MAX_RANDOM_BYTES = 64 << 20
_MAX_REQUEST_BYTES = 1 << 31
"""No protocol here carries more, and it has to be in memory."""
INTEGER_BOUND = 128
"""Random integers are below it: indices into the vocabulary of an embedding beyond its size fail in the model."""
_CHARACTERS = np.frombuffer((string.ascii_letters + string.digits).encode(), np.uint8)


def random_stream(signature: Signature, settings: InputSettings, batch_size: int) -> Stream:
    """Return random samples for a few different requests: floats in [0, 1), integers in [0, bound), strings.

    The bound is 128, 2 for masks and token types, or that of `settings.integer_bounds`. Raises InputError for a
    variable dimension that nothing gives, and for requests of over 2 GiB.
    """
    generator = np.random.default_rng(settings.seed)
    shapes = _shapes(signature)
    text_bytes = settings.string_length if settings.string_data is None else len(settings.string_data)
    size = _checked_bytes(signature, shapes, text_bytes, batch_size)
    requests = min(_RANDOM_REQUESTS, max(1, _MAX_RANDOM_BYTES // max(1, size * batch_size)))
    return [
        InputStep(
            {
                name: random_array(signature.inputs[name], shape, settings, generator)
                for name, shape in shapes.items()
            },
            f"random sample {number}",
        )
        for number in range(requests * batch_size)
    ]


def zero_stream(signature: Signature, batch_size: int = 1) -> Stream:
    """Return a sample of zeros, false and empty strings. Raises InputError as `random_stream` does."""
    shapes = _shapes(signature)
    _checked_bytes(signature, shapes, 0, batch_size)
    tensors = {name: _zeros(signature.inputs[name], shape) for name, shape in shapes.items()}
    return [InputStep(tensors, "zeros")]


def random_array(tensor: ModelTensor, shape: Shape, settings: InputSettings, generator: np.random.Generator) -> Array:
    """Return random values of a tensor."""
    datatype = tensor.datatype
    if datatype is DataType.BYTES:
        return _random_strings(shape, settings, generator)
    if is_float(datatype):
        return generator.random(shape, np.float32).astype(datatype.numpy)
    if datatype is DataType.BOOL:
        return generator.integers(0, 2, shape).astype(np.bool_)
    bound = settings.integer_bounds.get(tensor.name) or _bound_of(tensor.name)
    return generator.integers(0, min(bound, int(np.iinfo(datatype.numpy).max) + 1), shape).astype(datatype.numpy)


def _bound_of(name: str) -> int:
    words = name.lower()
    return 2 if any(word in words for word in ("mask", "type_id", "segment")) else INTEGER_BOUND


def _random_strings(shape: Shape, settings: InputSettings, generator: np.random.Generator) -> Array:
    count = math.prod(shape)
    if settings.string_data is not None:
        return strings([settings.string_data.encode()] * count).reshape(shape)
    letters = _CHARACTERS[generator.integers(0, len(_CHARACTERS), (count, settings.string_length), np.uint8)]
    return strings([row.tobytes() for row in letters]).reshape(shape)


def _zeros(tensor: ModelTensor, shape: Shape) -> Array:
    if tensor.datatype is DataType.BYTES:
        return strings([b""] * math.prod(shape)).reshape(shape)
    return np.zeros(shape, tensor.datatype.numpy)


def _shapes(signature: Signature) -> dict[str, Shape]:
    """Return the shapes of inputs; an optional input without a known shape is left out.

    Variable dimensions are taken from the warm-up.
    """
    shapes: dict[str, Shape] = {}
    for tensor in signature.inputs.values():
        if -1 not in tensor.dims:
            shapes[tensor.name] = tensor.dims
        elif tensor.warm_up_dims:
            shapes[tensor.name] = tensor.warm_up_dims
        elif not tensor.is_optional:
            raise InputError(
                f"input '{tensor.name}' of model '{signature.model}' has shape {list(tensor.dims)}, with a variable "
                f"dimension; give it, for example with {tensor.example_flag}"
            )
    return shapes


def _checked_bytes(signature: Signature, shapes: dict[str, Shape], text_bytes: int, batch_size: int) -> int:
    """Return the bytes of a row; strings have `text_bytes`. Raises InputError for a request too large."""
    sizes = {
        name: math.prod(shape) * (signature.inputs[name].datatype.item_bytes or text_bytes + 4)
        for name, shape in shapes.items()
    }
    size = sum(sizes.values())
    if size * batch_size > _MAX_REQUEST_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        raise InputError(
            f"a request to model '{signature.model}' would have {size * batch_size} bytes, over 2 GiB: batch size "
            f"{batch_size}, and input '{largest}' with shape {list(shapes[largest])}; use a smaller shape or batch"
        )
    return size
