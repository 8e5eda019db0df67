"""Functions that jax.export has serialised, for tests."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from support.digits_classifier import digits_classifier


def shape(dims: str, dtype: Any = np.float32) -> Any:
    return jax.ShapeDtypeStruct(export.symbolic_shape(dims), dtype)


def serialise(function: Any, *arguments: Any, platforms: tuple[str, ...] = ("cpu",), **keywords: Any) -> bytes:
    return bytes(export.export(jax.jit(function), platforms=platforms)(*arguments, **keywords).serialize())


def shapes_of_one_scope(dims: str, *dtypes: Any) -> list[Any]:
    """Return arguments whose free dimensions are the same ones."""
    symbolic = export.symbolic_shape(dims)
    return [jax.ShapeDtypeStruct(symbolic, dtype) for dtype in dtypes]


def digits_function(image: Any) -> Any:
    digits = digits_classifier()
    hidden = jax.nn.relu(image @ jnp.asarray(digits.hidden_weights) + digits.hidden_bias)
    return {"probabilities": jax.nn.softmax(hidden @ jnp.asarray(digits.weights) + digits.bias)}
